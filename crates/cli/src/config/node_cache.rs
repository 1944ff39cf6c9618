//! What a node costs the controller under a configuration, as its `--check-config` tells.

use std::io;

use serde::{Deserialize, Serialize};

use crate::output::{BOLD, harmless};
use crate::words;

/// See [`NodeCache::print`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeCache {
    bytes_per_node: u64,
    /// What the node has by which this is told.
    typical_node: String,
    /// Which are kept: `23 by name`, or `all`.
    labels: String,
    annotations: String,
    /// Other fields that rules read.
    fields: Vec<String>,
}

impl NodeCache {
    /// For people.
    pub(super) fn print(&self, out: &mut impl io::Write) -> io::Result<()> {
        let (one, thousand) = (
            self.bytes_per_node,
            self.bytes_per_node.saturating_mul(1_000),
        );
        writeln!(
            out,
            "  memory: {BOLD}{}{BOLD:#} of the controller for each node of the cluster, {} at 1,000 nodes",
            words::bytes(one),
            words::bytes(thousand)
        )?;
        let kept = |what: &str, kept: &str| match kept.strip_suffix(" by name") {
            Some(count) => format!("{count} {what} by their names"),
            None => format!("{kept} {what}"),
        };
        let fields = if self.fields.is_empty() {
            String::new()
        } else {
            format!(", and for the rules {}", self.fields.join(", "))
        };
        let text = format!(
            "counted for a node with {}; it keeps of that what rule sets and modules read: {}, {}{fields}",
            self.typical_node,
            kept("labels", &self.labels),
            kept("annotations", &self.annotations)
        );
        writeln!(out, "    {}", harmless(&text))
    }
}
