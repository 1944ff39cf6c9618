//! Which events annotation `quarantineHealthEvent` names.

use std::collections::{BTreeMap, BTreeSet};

use health_event::HealthEvent;
use health_event::incident::Incident;

use super::facts::FaultFacts;

/// What annotation `quarantineHealthEvent` shall say: one element per event, oldest first, with
/// only the entities and codes still open. An event whose open parts are no full product of
/// entities and codes gives one element for each group of codes that share their entities.
pub fn open_events(faults: &[FaultFacts], incident: &Incident) -> Vec<HealthEvent> {
    let open: BTreeSet<_> = incident.open_faults().map(|f| &f.id).collect();
    let mut events: BTreeMap<u64, Vec<&FaultFacts>> = BTreeMap::new();
    for fault in faults.iter().filter(|f| open.contains(&f.id)) {
        events.entry(fault.seq).or_default().push(fault);
    }
    events
        .into_values()
        .flat_map(|parts| elements(&parts))
        .collect()
}

fn elements(parts: &[&FaultFacts]) -> Vec<HealthEvent> {
    let mut by_code: BTreeMap<&str, Vec<&FaultFacts>> = BTreeMap::new();
    for part in parts {
        by_code.entry(&part.id.key.code).or_default().push(part);
    }
    let mut groups: BTreeMap<BTreeSet<&str>, (Vec<&str>, Vec<&FaultFacts>)> = BTreeMap::new();
    for (code, faults) in by_code {
        let devices = faults.iter().map(|f| f.id.key.device.as_str()).collect();
        let group = groups.entry(devices).or_default();
        group.0.push(code);
        group.1 = faults;
    }
    groups
        .into_values()
        .map(|(codes, faults)| element(&codes, &faults))
        .collect()
}

fn element(codes: &[&str], faults: &[&FaultFacts]) -> HealthEvent {
    let mut event = faults[0].event.clone();
    let known = |e: &health_event::Entity| faults.iter().any(|f| f.device.entities().contains(e));
    event.entities.retain(known);
    if event.entities.is_empty() {
        let devices = faults.iter().flat_map(|f| f.device.entities());
        event.entities = devices.cloned().collect();
    }
    event
        .error_codes
        .retain(|code| codes.contains(&code.as_str()));
    event
}
