//! Texts of our annotations.

use health_event::HealthEvent;
use health_event::incident::{IncidentId, Taint};

use super::facts::FaultFacts;

/// Greatest size of annotation `quarantineHealthEvent`, in bytes.
pub const EVENTS_LIMIT: usize = 32 * 1024;

/// Content of annotation `warden.dev/incident`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncidentMark {
    /// Incident.
    pub id: IncidentId,
    /// Its version when the write was planned.
    pub version: u64,
    /// UID of the node that it was written to.
    pub uid: String,
}

impl IncidentMark {
    /// From the annotation's text.
    pub fn parse(_text: &str) -> Option<Self> {
        None
    }

    /// The annotation's text: a JSON object.
    pub fn render(&self) -> String {
        String::new()
    }
}

/// One element of annotation `quarantineHealthEventAppliedTaints`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedTaint {
    /// Taint.
    pub taint: Taint,
    /// It stood there before us.
    pub pre_existing: bool,
}

/// Reads annotation `quarantineHealthEventAppliedTaints`, in either casing of its keys.
pub fn parse_applied_taints(_text: &str) -> Option<Vec<AppliedTaint>> {
    None
}

/// Annotation `quarantineHealthEvent`: a JSON array with one element per event that holds only
/// the entities and codes still open; at most [`EVENTS_LIMIT`] bytes.
pub fn render_events(_faults: &[&FaultFacts]) -> String {
    String::new()
}

/// Reads annotation `quarantineHealthEvent`; keys in any casing, one object or an array.
pub fn parse_events(_text: &str) -> Option<Vec<HealthEvent>> {
    None
}
