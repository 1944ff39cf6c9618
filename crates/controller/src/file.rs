//! The configuration file of the running process, and how what it says now differs from what runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use telemetry::ControllerMetrics;
use tracing::{info, warn};

/// The file. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct ConfigFile(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    path: Option<PathBuf>,
    text: String,
    told: Mutex<Told>,
}

/// How the file differs from what runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Told {
    /// Why its rule sets are not those that run.
    pub problem: Option<Problem>,
    /// Keys that are otherwise there, and take effect at the next start only.
    pub needs_restart: Vec<String>,
}

/// See [`Told::problem`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Static name: `config_unreadable`, `config_bad` or `rules_beyond_breaker`.
    pub code: &'static str,
    /// What is wrong and what to do.
    pub why: String,
    /// Since when that is so.
    pub since: Timestamp,
}

impl ConfigFile {
    /// As it was read at the start; without a path it never changes.
    pub fn new(path: Option<PathBuf>, text: String) -> Self {
        Self(Arc::new(Inner {
            path,
            text,
            told: Mutex::default(),
        }))
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// What it said at the start.
    pub(crate) fn text(&self) -> &str {
        &self.0.text
    }

    /// How it differs now.
    pub fn told(&self) -> Told {
        self.lock().clone()
    }

    /// Why its rule sets do not run; none: they do. What is new is logged.
    pub(crate) fn tell_problem(
        &self,
        metrics: &ControllerMetrics,
        problem: Option<(&'static str, String)>,
    ) {
        let mut told = self.lock();
        let before = told.problem.take();
        let shown = self.path().unwrap_or_else(|| Path::new("")).display();
        told.problem = problem.map(|(code, why)| {
            let same = before.as_ref().filter(|b| b.code == code);
            if same.is_none_or(|same| same.why != why) {
                warn!(code, file = %shown, why, "the rule sets of the file do not run: those from before stay");
            }
            let since = same.map_or_else(Timestamp::now, |same| same.since);
            Problem { code, why, since }
        });
        if told.problem.is_none() && before.is_some() {
            info!(file = %shown, "the rule sets of the file run");
        }
        metrics
            .config_refused
            .set(i64::from(told.problem.is_some()));
    }

    /// Which keys differ from what runs.
    pub(crate) fn tell_restart(&self, keys: Vec<String>) {
        let mut told = self.lock();
        if told.needs_restart != keys && !keys.is_empty() {
            warn!(
                code = "config_needs_restart",
                keys = keys.join(", "),
                "these keys have changed in the file, and take effect at the next start only"
            );
        }
        told.needs_restart = keys;
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
