//! How long to wait before the next try: full jitter, doubling, bounded.

use std::time::Duration;

use ulid::Ulid;

/// A growing bound below which each wait is drawn.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    bound: Duration,
}

impl Backoff {
    /// The first wait is below `first`, later ones below twice the last, never above `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            bound: first,
        }
    }

    /// The next wait.
    pub fn wait(&mut self) -> Duration {
        let wait = self.bound.mul_f64(random());
        self.bound = self.bound.saturating_mul(2).min(self.most);
        wait
    }

    /// It worked: begin anew.
    pub fn reset(&mut self) {
        self.bound = self.first;
    }
}

/// From 0 to 1. A ULID's lower half is random, and a generator of our own would be one more
/// dependency.
pub fn random() -> f64 {
    let bits = u32::try_from(Ulid::new().random() & u128::from(u32::MAX)).unwrap_or(0);
    f64::from(bits) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_drawn_below_a_doubling_bound() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        for bound in [1, 2, 4, 5, 5] {
            assert!(backoff.wait() <= Duration::from_secs(bound));
        }
        backoff.reset();
        assert!(backoff.wait() <= Duration::from_secs(1));
    }
}
