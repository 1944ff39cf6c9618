//! Places where a test may let the process die: before and after every commit and every remote
//! write. `--crash-at NAME` or `NAME:N` (the N-th time), in builds with debug assertions only.

/// Every place.
pub const POINTS: [&str; 18] = [
    "spool.begin.before",
    "spool.begin.after",
    "spool.replace.before",
    "spool.replace.amid",
    "spool.replace.after",
    "spool.copy.before",
    "spool.copy.amid",
    "spool.copy.after",
    "spool.commit.before",
    "spool.commit.after",
    "spool.compact.before",
    "spool.compact.after",
    "spool.take-out.before",
    "spool.take-out.after",
    "delivery.send.before",
    "delivery.send.after",
    "report.send.before",
    "report.send.after",
];

#[cfg(debug_assertions)]
mod chosen {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static CHOSEN: OnceLock<(String, AtomicU32)> = OnceLock::new();

    pub(super) fn choose(text: &str) -> bool {
        let (name, times) = text.split_once(':').unwrap_or((text, "1"));
        let Ok(times) = times.parse() else {
            return false;
        };
        let known = super::POINTS.contains(&name);
        known && CHOSEN.set((name.to_owned(), AtomicU32::new(times))).is_ok()
    }

    pub(super) fn reached(name: &str) {
        let Some((chosen, left)) = CHOSEN.get() else {
            return;
        };
        if chosen == name && left.fetch_sub(1, Ordering::SeqCst) == 1 {
            // SIGKILL: nothing of us runs any more, as in a power cut.
            let own = rustix::process::getpid();
            let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        }
    }
}

/// Chooses the place to die at. Answers whether there is such a place in this build.
#[cfg(debug_assertions)]
pub fn choose(text: &str) -> bool {
    chosen::choose(text)
}

/// A place. Does nothing in released builds.
pub fn point(name: &'static str) {
    debug_assert!(POINTS.contains(&name), "{name} is not in the list");
    #[cfg(debug_assertions)]
    chosen::reached(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}
