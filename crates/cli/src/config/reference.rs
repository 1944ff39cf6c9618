//! A file of the reference, as `warden-controller` tells it in Warden's keys.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::output::{BOLD, DIM, GREEN, RED, YELLOW, counted, harmless};

/// Top-level keys by which a file of the reference is known, in TOML or JSON.
const KEYS: [&str; 25] = [
    "rule-sets",
    "label-prefix",
    "circuitBreaker",
    "evictionTimeoutInSeconds",
    "userNamespaces",
    "systemNamespaces",
    "deleteAfterTimeoutMinutes",
    "notReadyTimeoutMinutes",
    "drainGPUPods",
    "partialDrainEnabled",
    "customDrain",
    "remediationActions",
    "updateRetry",
    "template",
    "templates",
    "rules",
    "cacheSize",
    "cacheTTL",
    "allowedLabels",
    "suppressionWindow",
    "includeChecks",
    "cleanupInterval",
    // YAML, of which the controller says what to do about it.
    "apiVersion",
    "rebootNodeController",
    "global",
];

/// Whether a file may be one of the reference, so that the controller is asked what it is.
pub(super) fn may_be(text: &str, table: &toml::Table) -> bool {
    let is_json = text.trim_start().starts_with('{');
    let has_line = |key: &str| {
        let mut lines = text.lines();
        lines.any(|line| {
            line.strip_prefix(key)
                .is_some_and(|rest| rest.starts_with(':'))
        })
    };
    is_json
        || KEYS
            .iter()
            .any(|key| table.contains_key(*key) || has_line(key))
}

/// What the controller tells of it.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Reference {
    file: String,
    taken: Vec<String>,
    changed: Vec<Told>,
    left: Vec<Told>,
    toml: String,
}

/// A key that is not simply taken.
#[derive(Debug, Deserialize, Serialize)]
struct Told {
    key: String,
    value: String,
    why: String,
}

impl Reference {
    /// What becomes of each key, and the same in Warden's.
    pub(super) fn print(
        &self,
        out: &mut impl io::Write,
        path: &Path,
        faults: usize,
    ) -> io::Result<()> {
        let path = path.display().to_string();
        write!(
            out,
            "{BOLD}{}{BOLD:#} ({}): ",
            harmless(&path),
            harmless(&self.file)
        )?;
        if self.toml.is_empty() {
            return writeln!(out, "{RED}not read{RED:#}");
        }
        let key = |list: usize| counted(list as u64, "key");
        writeln!(
            out,
            "{GREEN}{} taken as they are{GREEN:#}, {YELLOW}{} otherwise, {} left out{YELLOW:#}",
            key(self.taken.len()),
            self.changed.len(),
            self.left.len()
        )?;
        if !self.taken.is_empty() {
            writeln!(
                out,
                "  {DIM}as they are:{DIM:#} {}",
                harmless(&self.taken.join(", "))
            )?;
        }
        for (word, list) in [("otherwise", &self.changed), ("left out", &self.left)] {
            for told in list {
                told.print(out, word)?;
            }
        }
        let state = if faults > 0 {
            format!("{RED}and what is wrong with it stands below{RED:#}")
        } else {
            "as its own file, or in one with the others (of several profiles the highest)"
                .to_owned()
        };
        writeln!(
            out,
            "\n{BOLD}The same for warden-controller{BOLD:#}, {state}:\n"
        )?;
        for line in self.toml.trim_end().lines() {
            writeln!(out, "{}", harmless(line))?;
        }
        writeln!(out)
    }
}

impl Told {
    fn print(&self, out: &mut impl io::Write, word: &str) -> io::Result<()> {
        let value = if self.value.is_empty() {
            " is absent".to_owned()
        } else {
            format!(" = {}", self.value)
        };
        writeln!(
            out,
            "  {BOLD}{}{BOLD:#}{}",
            harmless(&self.key),
            harmless(&value)
        )?;
        writeln!(out, "    {word}: {}", harmless(&self.why))
    }
}
