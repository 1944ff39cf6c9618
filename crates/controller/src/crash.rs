//! Stopping the process at a named point, as `kill -9` would: for crash tests. Release builds have
//! no such points.

/// The points, so that a test can enumerate them and a misspelt name is refused.
pub const POINTS: [&str; 12] = [
    "store.commit.before",
    "store.commit.after",
    "ingest.before-append",
    "ingest.after-append",
    "report.before-compare",
    "report.after-close",
    "quarantine.before-intent",
    "quarantine.after-intent",
    "quarantine.before-patch",
    "quarantine.after-patch",
    "connector.before-patch",
    "connector.after-patch",
];

#[cfg(debug_assertions)]
mod armed {
    use std::sync::OnceLock;

    static POINT: OnceLock<String> = OnceLock::new();

    /// Arms one point of [`super::POINTS`] for the rest of the process's life.
    pub fn arm(point: &str) {
        // A second call would be a programming error in a test; the first one stands.
        let _ = POINT.set(point.to_owned());
    }

    /// Stops the process here if this point is armed: no destructor, no flush, no answer.
    pub fn point(name: &'static str) {
        debug_assert!(super::POINTS.contains(&name), "{name} is not listed");
        if POINT.get().is_some_and(|armed| armed == name) {
            std::process::abort();
        }
    }
}

#[cfg(debug_assertions)]
pub use armed::{arm, point};

/// Nothing, in release builds.
#[cfg(not(debug_assertions))]
#[inline]
pub fn point(_name: &'static str) {}
