//! What a node costs the controller under a configuration, as its `--check-config` tells.

use std::io;

use serde::{Deserialize, Serialize};

use crate::output::{BOLD, harmless};

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
        let bytes = self.bytes_per_node;
        writeln!(
            out,
            "  each node takes about {BOLD}{bytes} bytes{BOLD:#} of memory (a typical one: {})",
            harmless(&self.typical_node)
        )?;
        let fields = if self.fields.is_empty() {
            "none".to_owned()
        } else {
            self.fields.join(", ")
        };
        writeln!(
            out,
            "    kept of it: labels {}, annotations {}, other fields that rules read: {}",
            harmless(&self.labels),
            harmless(&self.annotations),
            harmless(&fields)
        )
    }
}
