//! What the demo measured, each by a clock that is named.

use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;

/// One step on the way from the line to the node.
pub(crate) struct Step {
    /// Time since the line was written.
    pub(crate) after: Duration,
    /// What was done by then.
    pub(crate) what: &'static str,
    /// Whose clock says so.
    pub(crate) by: &'static str,
}

/// The table at the end.
#[derive(Default)]
pub(crate) struct Times(Vec<[String; 3]>);

impl Times {
    pub(crate) fn add(&mut self, what: &str, took: Duration, by: &str) {
        let shown = if took < Duration::from_secs(2) {
            format!("{:.1} ms", took.as_secs_f64() * 1e3)
        } else {
            format!("{:.1} s", took.as_secs_f64())
        };
        self.0.push([what.to_owned(), shown, by.to_owned()]);
    }

    pub(crate) fn rows(&self) -> &[[String; 3]] {
        &self.0
    }
}

/// When the agent had decoded the line about this GPU, by its log; none before it says so.
pub(crate) fn decoded_at(log: &str, pci: &str) -> Option<Timestamp> {
    let told = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = line["entities"].as_str()?.contains(pci);
        is_it.then(|| line["decoded_at"].as_str()?.parse().ok())?
    };
    log.lines().rev().find_map(told)
}

/// The moment under `key` of a JSON object.
pub(crate) fn moment(value: &serde_json::Value, key: &str) -> anyhow::Result<Timestamp> {
    let text = value[key]
        .as_str()
        .with_context(|| format!("there is no {key} in {value}"))?;
    text.parse()
        .with_context(|| format!("reading {key} {text}"))
}

/// Time from `from` to `to`, at least 0: clocks of whole milliseconds round down.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
