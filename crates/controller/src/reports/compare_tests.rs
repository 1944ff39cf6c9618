use health_event::{Device, Entity, FaultKey, NodeName, Scope, Space, Subject};
use wire::warden::v1::Detector;

use super::*;

fn detectors(states: &[(&str, DetectorState)]) -> DetectorStates {
    let detector = |(name, state): &(&str, DetectorState)| Detector {
        name: (*name).to_owned(),
        state: *state as i32,
        why: String::new(),
    };
    DetectorStates::new(&states.iter().map(detector).collect::<Vec<_>>())
}

fn event(code: &str) -> HealthEvent {
    HealthEvent {
        agent: "syslog-health-monitor".into(),
        component_class: "GPU".into(),
        check_name: "SysLogsXIDError".into(),
        error_codes: vec![code.into()],
        entities: vec![Entity::new("PCI", "0000:17:00")],
        ..HealthEvent::default()
    }
}

fn closable(code: &str, detector: &str, order: &str) -> Closable {
    let event = event(code);
    let device = Device::new(event.entities.clone());
    let scope = Scope::of(&event, NodeName::new("gpu-1").unwrap());
    assert_eq!(
        scope.subject,
        Subject::Node(NodeName::new("gpu-1").unwrap())
    );
    Closable {
        fault: AssertedFault {
            sent: SentIdentity::of(&event, &device, code),
            id: FaultId {
                scope,
                key: FaultKey {
                    space: Space::ExecuteRemediation,
                    device: device.key(),
                    code: code.into(),
                },
            },
            order: Some(order.parse().unwrap()),
            open: true,
        },
        detector: detector.into(),
    }
}

#[test]
fn settled_means_all_that_are_on() {
    use DetectorState::{DetectorBlind, DetectorOff, DetectorSettled, DetectorStarting};
    let table = [
        (vec![], false),
        (vec![("a", DetectorSettled)], true),
        (vec![("a", DetectorSettled), ("b", DetectorOff)], true),
        (vec![("a", DetectorSettled), ("b", DetectorStarting)], false),
        (vec![("a", DetectorSettled), ("b", DetectorBlind)], false),
    ];
    for (states, want) in table {
        assert_eq!(detectors(&states).all_settled(), want, "{states:?}");
    }
    let odd = Detector {
        name: "a".into(),
        state: 77,
        why: String::new(),
    };
    assert!(!DetectorStates::new(&[odd]).all_settled());
}

#[test]
fn what_closes_because_it_is_no_longer_asserted() {
    use DetectorState::{DetectorBlind, DetectorOff, DetectorSettled, DetectorStarting};
    // (state of the detector, order of our last event, asserted there, whether it closes);
    // the report says spool s2, number 10.
    let table = [
        (Some(DetectorSettled), "b/s2/10", false, true),
        (Some(DetectorSettled), "b/s2/10", true, false),
        (Some(DetectorOff), "b/s2/10", false, true),
        (Some(DetectorStarting), "b/s2/10", false, false),
        (Some(DetectorBlind), "b/s2/10", false, false),
        (None, "b/s2/10", false, false),
        (Some(DetectorSettled), "b/s2/11", false, false),
        (Some(DetectorSettled), "b/s1/99", false, true),
        (Some(DetectorSettled), "b/s3/1", false, false),
    ];
    for (state, order, asserted, closes) in table {
        let states: Vec<(&str, DetectorState)> = state.map(|s| ("d", s)).into_iter().collect();
        let theirs = if asserted {
            identities(&[event("79")])
        } else {
            BTreeSet::new()
        };
        let ours = [closable("79", "d", order)];
        let missing = missing_there(&ours, &theirs, &detectors(&states), "s2", 10);
        assert_eq!(!missing.is_empty(), closes, "{state:?} {order} {asserted}");
    }
}

#[test]
fn an_event_of_two_devices_and_codes_asserts_four_faults() {
    let mut event = event("79");
    event.error_codes.push("48".into());
    event.entities.push(Entity::new("PCI", "0000:18:00"));
    assert_eq!(identities_of(&event).len(), 4);
    assert_eq!(identities(&[event.clone(), event]).len(), 4);
}
