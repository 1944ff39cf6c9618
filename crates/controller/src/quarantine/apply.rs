//! From a decided write to a call: the one gate, and the one place that writes to nodes.

use std::time::Duration;

use decide::quarantine::{Mode, NodeWrite, WriteKind};
use tokio::time::Instant;

use crate::kubernetes::patch::node_patch;
use crate::kubernetes::{CallError, Kube, Reference};
use crate::lease::Leadership;
use crate::nodes::NodeFacts;

/// Longest time for one write with its repetitions: longer than the API server's own timeout for
/// a quick request would only hold a worker.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// What keeps a write from being started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocked {
    /// This process does not lead (any more).
    NotLeading,
    /// The module only decides, or is off.
    Mode(&'static str),
    /// A person paused the node, and the write would take more of it out.
    Paused,
    /// The reference's own fault-quarantine runs: two must not act on one node.
    ReferenceRuns,
    /// Whether it runs could not be asked yet.
    ReferenceUnknown,
}

impl Blocked {
    /// Static name.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::NotLeading => "not_leading",
            Self::Mode(by) => by,
            Self::Paused => "paused",
            Self::ReferenceRuns => "reference_runs",
            Self::ReferenceUnknown => "reference_unknown",
        }
    }
}

/// What a write needs beside itself.
#[derive(Debug)]
pub(super) struct Apply {
    pub(super) kube: Kube,
    pub(super) leadership: Leadership,
    pub(super) label_prefix: String,
    pub(super) mode: Mode,
    pub(super) reference: Reference,
}

impl Apply {
    /// The gate: every write of the module passes it. Answers until when the write may run.
    pub(super) fn gate(&self, write: &NodeWrite, node: &NodeFacts) -> Result<Instant, Blocked> {
        if let Some(by) = self.mode.blocks() {
            return Err(Blocked::Mode(by));
        }
        if !self.reference.is_known() {
            return Err(Blocked::ReferenceUnknown);
        }
        // Since the decision, which knew of none.
        if self.reference.runs() {
            return Err(Blocked::ReferenceRuns);
        }
        let takes_more = match write.kind {
            WriteKind::Apply => true,
            WriteKind::Update
            | WriteKind::Release
            | WriteKind::StepBack
            | WriteKind::CleanUp
            | WriteKind::State => false,
        };
        if takes_more && node.annotation(k8s_api::names::PAUSE.text).is_some() {
            return Err(Blocked::Paused);
        }
        self.leadership
            .write_deadline(WRITE_TIMEOUT)
            .ok_or(Blocked::NotLeading)
    }

    /// Sends the write; answers the version of the node that it made.
    pub(super) async fn send(
        &self,
        write: &NodeWrite,
        deadline: Instant,
    ) -> Result<u64, CallError> {
        let patch = node_patch(write, &self.label_prefix);
        let act = match write.kind {
            WriteKind::Apply => "taking out",
            WriteKind::Update => "change of the marks",
            WriteKind::Release => "release",
            WriteKind::StepBack => "removal of the marks",
            WriteKind::CleanUp => "removal of stray marks",
            WriteKind::State => "change of the state label",
        };
        let metadata = self
            .kube
            .patch_node(&write.node, act, &patch, deadline)
            .await?;
        Ok(metadata.resource_version.parse().unwrap_or_default())
    }
}
