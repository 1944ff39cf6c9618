//! Stopping the process at a named point, as `kill -9` would: for crash tests. `--crash-at NAME` or
//! `NAME:N`, the N-th pass: points that a start passes too are so met in the midst of the loop.
//! Release builds have no such points.

/// The points, so that a test can enumerate them and a misspelt name is refused.
pub const POINTS: [&str; 53] = [
    // Those of a start: each step of the schema, and checks that have another name since.
    "store.begin.before",
    "store.begin.after",
    "store.commit.before",
    "store.commit.after",
    "ingest.before-append",
    "ingest.after-append",
    "report.before-compare",
    "report.after-close",
    "quarantine.before-intent",
    "quarantine.after-intent",
    "drain.before-transition",
    "drain.after-transition",
    "remediation.before-transition",
    "remediation.after-transition",
    "janitor.before-intent",
    "janitor.before-send",
    "janitor.after-send",
    // Those of `kubernetes::Write`: each write to the API server passes two.
    "write.node.before",
    "write.node.after",
    "write.conditions.before",
    "write.conditions.after",
    "write.event.before",
    "write.event.after",
    "write.event-count.before",
    "write.event-count.after",
    "write.lease.before",
    "write.lease.after",
    "write.lease-renewal.before",
    "write.lease-renewal.after",
    "write.authority.before",
    "write.authority.after",
    "write.authority-change.before",
    "write.authority-change.after",
    "write.bundle.before",
    "write.bundle.after",
    "write.bundle-change.before",
    "write.bundle-change.after",
    "write.eviction.before",
    "write.eviction.after",
    "write.pod-deletion.before",
    "write.pod-deletion.after",
    "write.repair.before",
    "write.repair.after",
    "write.repair-deletion.before",
    "write.repair-deletion.after",
    "write.repair-status.before",
    "write.repair-status.after",
    "write.repair-expiry.before",
    "write.repair-expiry.after",
    "write.node-lock.before",
    "write.node-lock.after",
    "write.node-unlock.before",
    "write.node-unlock.after",
];

#[cfg(debug_assertions)]
mod armed {
    use std::str::FromStr;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A pass of a point.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Pass {
        name: &'static str,
        number: u32,
    }

    impl FromStr for Pass {
        type Err = String;

        fn from_str(text: &str) -> Result<Self, String> {
            let (name, number) = text.split_once(':').unwrap_or((text, "1"));
            let known = super::POINTS.iter().find(|point| **point == name);
            let number = number.parse().ok().filter(|number| *number > 0);
            match (known, number) {
                (Some(name), Some(number)) => Ok(Self { name, number }),
                (None, _) => Err(format!("want one of {}", super::POINTS.join(", "))),
                (_, None) => Err("want NAME or NAME:N, N from 1".to_owned()),
            }
        }
    }

    static ARMED: OnceLock<(&'static str, AtomicU32)> = OnceLock::new();

    /// Arms one pass of one point for the rest of the process's life.
    pub fn arm(pass: Pass) {
        // A second call would be a programming error in a test; the first one stands.
        let _ = ARMED.set((pass.name, AtomicU32::new(pass.number)));
    }

    /// Stops the process here if this pass is armed: no destructor, no flush, no answer.
    pub fn point(name: &'static str) {
        debug_assert!(super::POINTS.contains(&name), "{name} is not listed");
        let Some((armed, left)) = ARMED.get() else {
            return;
        };
        if *armed == name && left.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::process::abort();
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_point_is_named_alone_or_with_the_number_of_the_pass() {
            let pass = |text: &str| text.parse::<Pass>().map(|pass| (pass.name, pass.number));
            let name = "store.commit.after";
            assert_eq!(pass(name), Ok((name, 1)));
            assert_eq!(pass("store.commit.after:12"), Ok((name, 12)));
            for bad in [
                "",
                "store",
                "store.commit.after:0",
                "store.commit.after:x",
                ":1",
            ] {
                assert!(pass(bad).is_err(), "{bad}");
            }
        }
    }
}

#[cfg(debug_assertions)]
pub use armed::{Pass, arm, point};

/// Nothing, in release builds.
#[cfg(not(debug_assertions))]
#[inline]
pub fn point(_name: &'static str) {}
