//! Waiting for a condition, with a deadline and an error that says what was seen last.

use std::fmt::Display;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use tokio::time::{Instant, sleep_until, timeout_at};

/// The first pause between two looks; each further one is half as long again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause: a test notices within this time.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// Looks at `condition` until it answers `Ok(Some(_))`, and answers that value.
///
/// `Ok(None)` means "not yet", and so does an error, which is reported if it is the last thing
/// seen. A look that hangs is cut off at the deadline.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let mut looks = 0;
/// let third = testbed::wait_for("the third look", Duration::from_secs(5), || {
///     looks += 1;
///     let seen = (looks == 3).then_some(looks);
///     async move { Ok(seen) }
/// })
/// .await;
/// assert_eq!(third.unwrap(), 3);
/// # });
/// ```
///
/// # Errors
/// The deadline passed; the text names `what`, the time, and the last error if there was one.
pub async fn wait_for<T, F, Fut>(
    what: impl Display,
    deadline: Duration,
    mut condition: F,
) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<Option<T>>>,
{
    let end = Instant::now() + deadline;
    let mut pause = FIRST_PAUSE;
    let last = loop {
        let look = match timeout_at(end, condition()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => break Some(anyhow!("the last look did not return in time")),
        };
        if Instant::now() + pause >= end {
            break look;
        }
        sleep_until(Instant::now() + pause).await;
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    };
    let gave_up = format!("gave up after {deadline:.1?} waiting for {what}");
    match last {
        Some(error) => Err(error).context(gave_up),
        None => Err(anyhow!("{gave_up}: it did not come about")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn deadline_error_names_what_was_awaited_and_the_last_error() {
        let never = wait_for("rain", SHORT, || async { Ok(None::<()>) }).await;
        let text = format!("{:#}", never.unwrap_err());
        assert_eq!(
            text,
            "gave up after 50.0ms waiting for rain: it did not come about"
        );
        let failing = wait_for("rain", SHORT, || async {
            Err::<Option<()>, _>(anyhow!("the sky is gone"))
        })
        .await;
        let text = format!("{:#}", failing.unwrap_err());
        assert!(text.ends_with("for rain: the sky is gone"), "{text}");
    }

    #[tokio::test]
    async fn look_that_hangs_is_cut_off_at_the_deadline() {
        let hung = wait_for("rain", SHORT, || {
            std::future::pending::<anyhow::Result<Option<()>>>()
        })
        .await;
        let text = format!("{:#}", hung.unwrap_err());
        assert!(text.contains("did not return in time"), "{text}");
    }
}
