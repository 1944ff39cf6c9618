//! The comparison of what an agent asserts with what is kept here: pure.

use std::collections::{BTreeMap, BTreeSet};

use event_store::AssertedFault;
use health_event::{FaultId, HealthEvent, Order, SentIdentity, devices_of, keys};
use wire::warden::v1::DetectorState;

/// Each detector's state, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DetectorStates(BTreeMap<String, DetectorState>);

impl DetectorStates {
    /// From a report; unknown numbers read as starting, which closes nothing.
    pub fn new(detectors: &[wire::warden::v1::Detector]) -> Self {
        let state = |number| match DetectorState::try_from(number) {
            Ok(DetectorState::DetectorUnspecified) | Err(_) => DetectorState::DetectorStarting,
            Ok(known) => known,
        };
        Self(
            detectors
                .iter()
                .map(|d| (d.name.clone(), state(d.state)))
                .collect(),
        )
    }

    /// Whether the agent is settled: it has detectors, and each is settled or off.
    pub fn all_settled(&self) -> bool {
        let done = |state: &DetectorState| match state {
            DetectorState::DetectorSettled | DetectorState::DetectorOff => true,
            DetectorState::DetectorUnspecified
            | DetectorState::DetectorStarting
            | DetectorState::DetectorBlind => false,
        };
        !self.0.is_empty() && self.0.values().all(done)
    }

    /// Whether a detector's silence about a fault means that the fault is not there. One that the
    /// report does not know at all says nothing.
    fn denies(&self, detector: &str) -> bool {
        match self.0.get(detector) {
            Some(DetectorState::DetectorSettled | DetectorState::DetectorOff) => true,
            Some(
                DetectorState::DetectorUnspecified
                | DetectorState::DetectorStarting
                | DetectorState::DetectorBlind,
            )
            | None => false,
        }
    }

    /// What tells two reports apart beside the sets.
    pub(super) fn signature(&self) -> Vec<(String, i32)> {
        self.0
            .iter()
            .map(|(name, state)| (name.clone(), *state as i32))
            .collect()
    }

    /// Those that are not settled, for people.
    pub(super) fn unsettled(detectors: &[wire::warden::v1::Detector]) -> Vec<String> {
        let name_of = |state| match DetectorState::try_from(state) {
            Ok(DetectorState::DetectorSettled | DetectorState::DetectorOff) => None,
            Ok(DetectorState::DetectorBlind) => Some("blind"),
            Ok(DetectorState::DetectorStarting | DetectorState::DetectorUnspecified) | Err(_) => {
                Some("starting")
            }
        };
        let line = |d: &wire::warden::v1::Detector| {
            let state = name_of(d.state)?;
            let why: String = d
                .why
                .chars()
                .filter(|c| !c.is_control())
                .take(200)
                .collect();
            let why = if why.is_empty() {
                why
            } else {
                format!(" ({why})")
            };
            Some(format!("{}: {state}{why}", d.name))
        };
        detectors.iter().filter_map(line).collect()
    }
}

/// A fault that the agent asserts as far as we know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closable {
    /// As stored.
    pub fault: AssertedFault,
    /// The detector that asserted it; empty if its event named none.
    pub detector: String,
}

/// The identities that an agent's list asserts.
pub(super) fn identities(events: &[HealthEvent]) -> BTreeSet<SentIdentity> {
    events.iter().flat_map(identities_of).collect()
}

/// The identities of one event.
pub(super) fn identities_of(event: &HealthEvent) -> Vec<SentIdentity> {
    let codes = health_event::fault::codes_of(event);
    devices_of(&event.entities)
        .iter()
        .flat_map(|device| {
            codes
                .iter()
                .map(|code| SentIdentity::of(event, device, code))
        })
        .collect()
}

/// Which of `ours` the agent no longer asserts: not in its list, of a detector that denies, and
/// not told of after the report was made.
pub fn missing_there(
    ours: &[Closable],
    theirs: &BTreeSet<SentIdentity>,
    detectors: &DetectorStates,
    spool: &str,
    last_number: u64,
) -> Vec<FaultId> {
    let told_later = |order: &Order| is_told_later(order, spool, last_number);
    ours.iter()
        .filter(|closable| !theirs.contains(&closable.fault.sent))
        .filter(|closable| detectors.denies(&closable.detector))
        .filter(|closable| !closable.fault.order.as_ref().is_some_and(told_later))
        .map(|closable| closable.fault.id.clone())
        .collect()
}

/// Whether an event was numbered after a report of this spool and number was made.
pub(super) fn is_told_later(order: &Order, spool: &str, last_number: u64) -> bool {
    match (*order.spool).cmp(spool) {
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Equal => order.number > last_number,
        std::cmp::Ordering::Greater => true,
    }
}

/// The detector that an event names.
pub(super) fn detector_of(event: &HealthEvent) -> String {
    event
        .metadata
        .get(keys::DETECTOR)
        .cloned()
        .unwrap_or_default()
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
