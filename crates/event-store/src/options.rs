//! How a store is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use health_event::checks::{ALIASES, Alias};

/// Called with the name of a point that the writer passes; a crash test stops the process there.
pub type CrashPoints = Arc<dyn Fn(&'static str) + Send + Sync>;

/// How a store is opened. [`Options::default`] is what production uses.
#[derive(Clone)]
pub struct Options {
    /// Events, transitions and closed incidents older than this may go. Default 14 days.
    pub retention_age: Duration,
    /// Bytes of content above which the oldest events go, whoever has not seen them. Default 2 GiB.
    pub retention_bytes: u64,
    /// With fewer bytes free on the file system events are refused. Default 64 MiB.
    pub reserve: u64,
    /// Accept a network file system; the store then leaves WAL and guards itself with a mark that
    /// it rewrites every 5 s. Default false.
    pub allow_network_fs: bool,
    /// How long a healthy statement is remembered, and with it closed faults and the ids of
    /// repeats; at least the longest age of an agent's spool. Default 24 h.
    pub fault_memory: Duration,
    /// Of the repeats of one fault at most one is stored in this time. Default 1 min.
    pub repeat_window: Duration,
    /// Checks whose repeats are only counted; `None` = all. Default `None`.
    pub repeat_checks: Option<Vec<String>>,
    /// Older names of checks: events are kept under the present ones, and what is stored under an
    /// older one is renamed at opening. Default [`ALIASES`].
    pub aliases: &'static [Alias],
    /// Test hook: called with `store.begin.before` and `store.begin.after` at each commit of an
    /// opening (a step of the schema, checks renamed), and with `store.commit.before` and
    /// `store.commit.after` at each later one.
    pub crash_points: Option<CrashPoints>,
}

impl Default for Options {
    fn default() -> Self {
        const HOUR: Duration = Duration::from_hours(1);
        Self {
            retention_age: HOUR * 24 * 14,
            retention_bytes: 2 << 30,
            reserve: 64 << 20,
            allow_network_fs: false,
            fault_memory: HOUR * 24,
            repeat_window: Duration::from_mins(1),
            repeat_checks: None,
            aliases: &ALIASES,
            crash_points: None,
        }
    }
}

impl Options {
    /// Passes a point at which a crash test may stop the process.
    pub(crate) fn pass(&self, point: &'static str) {
        if let Some(hook) = &self.crash_points {
            hook(point);
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("retention_age", &self.retention_age)
            .field("retention_bytes", &self.retention_bytes)
            .field("reserve", &self.reserve)
            .field("allow_network_fs", &self.allow_network_fs)
            .field("fault_memory", &self.fault_memory)
            .field("repeat_window", &self.repeat_window)
            .field("repeat_checks", &self.repeat_checks)
            .field("aliases", &self.aliases)
            .field("crash_points", &self.crash_points.is_some())
            .finish()
    }
}
