//! The answers that a server gives in place of its handlers: to a call that takes too long, and to
//! a message that is too large to be read.
//!
//! Existing clients retry UNAVAILABLE (and their own DEADLINE_EXCEEDED) and nothing else. The
//! library answers a call that ran out of time with CANCELLED, and too many bytes with
//! OUT_OF_RANGE and a text of its own.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service, ServiceExt as _};

use crate::validate::{RECEIVE_LIMIT, Refusal};

/// Header with which gRPC says when to try again.
pub const RETRY_HINT: &str = "grpc-retry-pushback-ms";
/// When a caller whose call took too long should come again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long before a caller's own deadline it is answered (half of the deadline at most). The
/// library ends the call at that deadline too, with a code that is not retried: ours must be first,
/// by more than the millisecond that timers are rounded to.
const BEFORE: Duration = Duration::from_millis(2);

/// UNAVAILABLE, which existing clients retry, with a hint when to.
pub fn unavailable(why: &str, after: Duration) -> Status {
    let status = Status::unavailable(format!("{why}; send the same again"));
    with_retry_hint(status, after)
}

/// Adds to a status when to try again.
pub fn with_retry_hint(mut status: Status, after: Duration) -> Status {
    let milliseconds = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    status
        .metadata_mut()
        .insert(RETRY_HINT, milliseconds.into());
    status
}

/// Wraps all services of a server; in place of the server's own `timeout`. Layers that make calls
/// wait (concurrency limits) belong inside, added after this one: the wait is then part of the
/// call's time.
#[derive(Debug, Clone, Copy)]
pub struct AnswersLayer {
    longest: Duration,
}

impl AnswersLayer {
    /// `longest`: what a call may take at most, its body included.
    pub fn new(longest: Duration) -> Self {
        Self { longest }
    }
}

impl<S> Layer<S> for AnswersLayer {
    type Service = Answers<S>;

    fn layer(&self, inner: S) -> Answers<S> {
        let longest = self.longest;
        Answers { inner, longest }
    }
}

/// The service around the services.
#[derive(Debug, Clone)]
pub struct Answers<S> {
    inner: S,
    longest: Duration,
}

impl<S> Service<Request<Body>> for Answers<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // Waiting for the inner one is part of the call, so that it ends in time too.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let own = deadline_of(request.headers());
        let longest = own.map_or(self.longest, |own| own.min(self.longest));
        let ends = own.map_or(self.longest, |own| {
            self.longest.min(own.saturating_sub(BEFORE.min(own / 2)))
        });
        // Made here and not once the call is polled: the library's own clock starts right after.
        let call = tokio::time::timeout(ends, self.inner.clone().oneshot(request));
        Box::pin(async move {
            let Ok(answer) = call.await else {
                let why = format!("the call was not done within {longest:?}");
                return Ok(unavailable(&why, AGAIN).into_http());
            };
            answer.map(readable)
        })
    }
}

/// No handler of ours says OUT_OF_RANGE: it is the library's word for a message beyond the limit
/// of bytes.
fn readable(answer: Response<Body>) -> Response<Body> {
    let code = Status::from_header_map(answer.headers()).map(|status| status.code());
    if code != Some(Code::OutOfRange) {
        return answer;
    }
    Refusal::batch(
        format!("takes more than {RECEIVE_LIMIT} bytes"),
        "at most 4 MiB (4194304 bytes) a batch",
    )
    .status()
    .into_http()
}

/// The caller's own deadline (`grpc-timeout`: at most eight digits and a unit). One that can't be
/// read is none.
fn deadline_of(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let good = digits.len() <= 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let count: u64 = digits.parse().ok().filter(|_| good)?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3_600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
