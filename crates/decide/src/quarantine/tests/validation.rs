//! A node is given back once its validation passed, where one was asked for.

use health_event::incident::{Validation, ValidationStatus};

use super::world::{World, at, event, healthy};
use crate::quarantine::Note;

const XID: &str = "GpuXidError";

/// A node that is out, and what its validation came to.
fn with(status: Option<ValidationStatus>) -> World {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0", ""));
    let incident = world.incident.as_mut().unwrap();
    incident.validation = status.map(|status| Validation {
        status,
        since: at(1),
    });
    incident.version += 1;
    world
}

#[test]
fn a_validation_that_has_not_passed_keeps_the_node_out() {
    let kept = |note: &Note| {
        matches!(
            note,
            Note::Blocked {
                by: "validation",
                ..
            }
        )
    };
    let failed = ValidationStatus::Failed("a GPU is slow".to_owned());
    for status in [ValidationStatus::Running, failed] {
        let mut world = with(Some(status));
        world.say(healthy(XID, "GPU 0", ""));
        assert_eq!(world.status(), "Quarantined");
        assert!(world.decide().notes.iter().any(kept));
        let incident = world.incident.as_mut().unwrap();
        let validation = incident.validation.as_mut().unwrap();
        validation.status = ValidationStatus::Passed;
        incident.version += 1;
        world.settle();
        assert_eq!(world.status(), "none");
    }
    for status in [None, Some(ValidationStatus::Passed)] {
        let mut world = with(status);
        world.say(healthy(XID, "GPU 0", ""));
        assert_eq!(world.status(), "none");
    }
}

#[test]
fn what_was_found_before_another_fault_says_nothing_of_it() {
    let mut world = with(Some(ValidationStatus::Passed));
    world.say(event(XID, "GPU 1", ""));
    let validation = world.incident.as_ref().unwrap().validation.clone();
    assert_eq!(validation.unwrap().status, ValidationStatus::Running);
    let mut none = with(None);
    none.say(event(XID, "GPU 1", ""));
    assert_eq!(none.incident.as_ref().unwrap().validation, None);
}
