//! From cache, store and objects to what a decision looks at.

use std::collections::BTreeSet;

use decide::remediation::{FaultFacts, Found, NodeLook, Object, object_name};
use event_store::StoredFault;
use health_event::incident::{Incident, IncidentId, Rung};
use health_event::{BootId, Boots, FaultId, RecommendedAction};
use jiff::Timestamp;
use k8s_api::reboot_node::{
    self, NO_REBOOT_OBSERVED, NODE_EXCLUDED, NODE_NOT_FOUND, NODE_READY, RECALLED, RebootNode,
    SIGNAL_SENT, TIMEOUT,
};
use k8s_api::{names, remediation_state};

use crate::nodes::{ConditionStatus, NodeFacts};

/// Ends of an object that was not begun, where it has no start.
const UNBEGUN: [&str; 4] = [TIMEOUT, RECALLED, NODE_EXCLUDED, NODE_NOT_FOUND];
/// Numbers above are not ours: no incident comes to so many attempts, and the next has to have another number.
const ATTEMPTS_MAX: u32 = 1 << 20;
/// Longest text that is kept of an object's or the API server's words, in bytes.
const WORDS: usize = 512;

/// Words of others: without control characters, cut.
pub(super) fn words(text: &str) -> String {
    let clean = text.replace(char::is_control, " ");
    clean[..clean.floor_char_boundary(WORDS)].to_owned()
}

/// The open faults of an incident, as the store knows them now.
pub(super) fn open_faults<'a>(
    incident: &Incident,
    stored: &'a [StoredFault],
) -> Vec<&'a StoredFault> {
    let ids: BTreeSet<&FaultId> = incident.open_faults().map(|fault| &fault.id).collect();
    let of_incident = stored.iter().filter(|fault| ids.contains(&fault.id));
    of_incident.collect()
}

/// One of them, as the decision sees it.
pub(super) fn fault_facts(fault: &StoredFault) -> FaultFacts {
    FaultFacts {
        id: fault.id.clone(),
        action: action(fault),
        boot: fault.boot.clone(),
        last_at: fault.last_at,
    }
}

/// The name of the action that a fault asks for: a custom one has its own.
fn action(fault: &StoredFault) -> String {
    let custom = &fault.event.custom_recommended_action;
    if fault.action == RecommendedAction::Custom && !custom.is_empty() {
        custom.clone()
    } else {
        fault.action.name().to_owned()
    }
}

/// Whether a fault wants the node empty before it is repaired.
pub(super) fn wants_drain(fault: &StoredFault) -> bool {
    let overrides = fault.event.drain_overrides;
    !overrides.is_some_and(|overrides| overrides.skip)
}

/// The node as it is now, in the newest of its machine's boots.
pub(super) fn node_look(node: &NodeFacts, boots: &Boots, owners: &BTreeSet<String>) -> NodeLook {
    NodeLook {
        boot: boots.present().cloned().unwrap_or_default(),
        ready: node.ready == Some(ConditionStatus::True),
        paused: node.annotation(names::PAUSE.text).is_some(),
        external_owner: node.external_owner(owners),
    }
}

/// The incident that an object says it was ordered for.
pub(super) fn incident_of(object: &RebootNode) -> Option<IncidentId> {
    let text = object.metadata.annotations.get(names::INCIDENT.text)?;
    IncidentId::new(text)
}

/// Whether an object is what the incident ordered, and no copy under another name.
pub(super) fn is_ordered_by(object: &RebootNode, incident: &Incident) -> bool {
    let name = found(object).map(|found| object_name(incident, found.number));
    incident_of(object).as_ref() == Some(&incident.id)
        && object.spec.node_name == incident.node.as_str()
        && name.as_deref() == Some(&object.metadata.name)
}

/// What the object of an attempt of the incident tells; `intended_at`: when the signal was stored that may
/// have been sent for it.
pub(super) fn object(
    object: &RebootNode,
    incident: &IncidentId,
    intended_at: Option<Timestamp>,
) -> Object {
    if incident_of(object).as_ref() != Some(incident) {
        return Object::Refused(taken(object));
    }
    if !object.is_over() {
        let since = object.status.start_time.or(intended_at);
        return if since.is_none() && !object.may_have_begun() {
            Object::Queued
        } else {
            Object::Running { since }
        };
    }
    let is = |kind: &str, status: &str| {
        let condition = object.condition(kind);
        condition.filter(|condition| condition.status == status)
    };
    if is(NODE_READY, "True").is_some() {
        return Object::Done {
            since: object.status.start_time.or(intended_at),
        };
    }
    let not_ready = is(NODE_READY, "False");
    if not_ready.is_some_and(|why| why.reason == NO_REBOOT_OBSERVED) {
        return Object::NoReboot;
    }
    let why = is(SIGNAL_SENT, "False").or(not_ready);
    let said = match why {
        Some(why) => words(&format!("{}: {}", why.reason, why.message)),
        None => "it is at its end, and no condition says why".to_owned(),
    };
    if is_over_refused(object) {
        Object::ProviderRefused(said)
    } else if is_over_unsent(object) {
        Object::NotBegun(said)
    } else {
        Object::Failed(said)
    }
}

/// Whether an object ended without anything having been sent: it is no attempt on the machine. Ours says so
/// by an end without a start, or by both conditions where the provider refused; the reference's sets a start
/// before anything else, and leaves [`NODE_READY`] Unknown.
pub(super) fn is_over_unsent(object: &RebootNode) -> bool {
    let unbegun = has_ended(object, &UNBEGUN) && !object.may_have_begun();
    is_over_refused(object) || (object.is_over() && unbegun)
}

/// Whether an object ended because the provider refused it before it took anything on.
fn is_over_refused(object: &RebootNode) -> bool {
    let signal = object.condition(SIGNAL_SENT);
    let refused = signal.is_some_and(|signal| signal.status == "False");
    object.is_over() && refused && has_ended(object, &["Failed"])
}

fn has_ended(object: &RebootNode, reasons: &[&str]) -> bool {
    let ready = object.condition(NODE_READY);
    let ready = ready.filter(|ready| ready.status == "False");
    ready.is_some_and(|ready| reasons.contains(&&*ready.reason))
}

/// Another object has the name.
pub(super) fn taken(object: &RebootNode) -> String {
    let name = &object.metadata.name;
    let owner = match incident_of(object) {
        Some(other) => format!("of incident {other}"),
        None => "of somebody else".to_owned(),
    };
    let kind = reboot_node::KIND;
    words(&format!(
        "{kind} {name} is there already, and is {owner}; delete it"
    ))
}

/// What an object that we made tells of its attempt.
pub(super) fn found(object: &RebootNode) -> Option<Found> {
    let annotation = |name: names::Name| {
        let text = object.metadata.annotations.get(name.text);
        text.map(String::as_str).unwrap_or_default()
    };
    let ready = object.condition(NODE_READY);
    let is_done = ready.is_some_and(|ready| ready.status == "True");
    Some(Found {
        object: object.metadata.name.clone(),
        number: annotation(names::ATTEMPT)
            .parse()
            .ok()
            .filter(|number| (1..=ATTEMPTS_MAX).contains(number))?,
        action: words(annotation(names::ACTION)),
        rung: Rung::Reboot,
        force: object.spec.force,
        boot_before: BootId::new(annotation(names::BOOT_BEFORE)),
        made_at: object.metadata.creation_timestamp?,
        done_at: object.status.completion_time.filter(|_| is_done),
        is_there: true,
    })
}

/// The attempts of an incident that its node's annotation names. The boot before is not among what it says: the
/// present one is not older.
pub(super) fn noted(
    node: &NodeFacts,
    incident: &Incident,
    present: &BootId,
    now: Timestamp,
) -> Vec<Found> {
    let text = node.annotation(names::REMEDIATION_STATE.text);
    let noted = text.into_iter().flat_map(remediation_state::noted);
    let of_incident = noted.filter_map(|noted| {
        let number = noted.object.rsplit_once('-')?.1.parse().ok()?;
        let number = Some(number).filter(|number| (1..=ATTEMPTS_MAX).contains(number))?;
        (object_name(incident, number) == noted.object).then(|| Found {
            object: noted.object,
            number,
            action: words(&noted.action),
            rung: Rung::Reboot,
            force: false,
            boot_before: present.clone(),
            made_at: noted.ordered_at.min(now),
            done_at: None,
            is_there: false,
        })
    });
    of_incident.collect()
}

#[cfg(test)]
mod tests {
    use k8s_api::reboot_node::MANUAL_MODE;

    use super::*;

    fn id(text: &str) -> IncidentId {
        IncidentId::new(text).unwrap()
    }

    fn reboot(status: &str) -> RebootNode {
        let text = format!(
            r#"{{"metadata":{{"name":"r","creationTimestamp":"2026-01-02T03:04:05Z","annotations":{{
                "warden.dev/incident":"01ARZ3NDEKTSV4RRFFQ69G5FAV","warden.dev/attempt":"2",
                "warden.dev/action":"RESTART_BM","warden.dev/boot-before":"b1"}}}},
                "spec":{{"nodeName":"n","force":true}},"status":{status}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn condition(kind: &str, status: &str) -> String {
        format!(
            r#"{{"conditions":[{{"type":"{kind}","status":"{status}","reason":"R","message":"m\n"}}]}}"#
        )
    }

    fn over(kind: &str, status: &str) -> String {
        let conditions = condition(kind, status);
        conditions.replacen('{', r#"{"completionTime":"2026-01-02T03:05:05Z","#, 1)
    }

    #[test]
    fn repair_row_130_an_object_is_running_until_its_completion_time_says_how_it_ended() {
        let incident = id("01ARZ3NDEKTSV4RRFFQ69G5FAV");
        let running = || Object::Running { since: None };
        let started = r#"{"startTime":"2026-01-02T03:04:06Z"}"#.to_owned();
        let since = "2026-01-02T03:04:06Z".parse().ok();
        for (status, want) in [
            ("{}".to_owned(), Object::Queued),
            (condition(NODE_READY, "Unknown"), Object::Queued),
            (condition(NODE_READY, "True"), Object::Queued),
            (condition("Other", "True"), Object::Queued),
            (condition(SIGNAL_SENT, "Unknown"), Object::Queued),
            (condition(SIGNAL_SENT, "True"), running()),
            (condition(MANUAL_MODE, "True"), running()),
            (started.clone(), Object::Running { since }),
            (over(NODE_READY, "True"), Object::Done { since: None }),
            (
                over(NODE_READY, "False"),
                Object::Failed("R: m ".to_owned()),
            ),
            (
                over(NODE_READY, "False").replace("\"R\"", "\"NoRebootObserved\""),
                Object::NoReboot,
            ),
            (
                over(SIGNAL_SENT, "False"),
                Object::Failed("R: m ".to_owned()),
            ),
            (
                over(NODE_READY, "False").replace("\"R\"", "\"Timeout\""),
                Object::NotBegun("Timeout: m ".to_owned()),
            ),
            (
                over(NODE_READY, "False").replace("\"R\"", "\"Recalled\""),
                Object::NotBegun("Recalled: m ".to_owned()),
            ),
            (
                over(NODE_READY, "False")
                    .replace("\"R\"", "\"Timeout\"")
                    .replacen('{', r#"{"startTime":"2026-01-02T03:04:06Z","#, 1),
                Object::Failed("Timeout: m ".to_owned()),
            ),
        ] {
            assert_eq!(object(&reboot(&status), &incident, None), want, "{status}");
        }
        let intended = object(&reboot("{}"), &incident, since);
        assert_eq!(intended, Object::Running { since }, "its signal may be out");
        let silent = object(&reboot(&over("Other", "True")), &incident, None);
        assert!(matches!(silent, Object::Failed(_)));
        let refused = r#"{"completionTime":"2026-01-02T03:05:05Z","startTime":"2026-01-02T03:04:06Z","conditions":[
            {"type":"SignalSent","status":"False","reason":"Failed","message":"PermissionDenied: no\n"},
            {"type":"NodeReady","status":"False","reason":"Failed","message":"it was not sent"}]}"#;
        let words = "Failed: PermissionDenied: no ".to_owned();
        let refused = object(&reboot(&refused.replace('\n', " ")), &incident, None);
        assert_eq!(refused, Object::ProviderRefused(words));
        let other = id("01ARZ3NDEKTSV4RRFFQ69G5FAZ");
        let Object::Refused(words) = object(&reboot("{}"), &other, None) else {
            panic!("it is another's");
        };
        assert!(words.contains("01ARZ3NDEKTSV4RRFFQ69G5FAV"), "{words}");
    }

    #[test]
    fn what_may_have_been_sent_is_not_said_to_be_unsent() {
        for (status, sent) in [
            ("{}".to_owned(), false),
            (condition(SIGNAL_SENT, "Unknown"), false),
            (condition(SIGNAL_SENT, "True"), true),
            (condition(SIGNAL_SENT, "False"), true),
            (condition(SIGNAL_SENT, "odd"), true),
            (condition(MANUAL_MODE, "True"), true),
            (condition(MANUAL_MODE, "False"), false),
            (r#"{"startTime":"2026-01-02T03:04:06Z"}"#.to_owned(), true),
        ] {
            assert_eq!(reboot(&status).may_have_begun(), sent, "{status}");
        }
    }

    #[test]
    fn an_object_tells_of_its_attempt_unless_somebody_else_wrote_it() {
        let known = found(&reboot("{}")).unwrap();
        assert_eq!((known.number, known.force), (2, true));
        assert_eq!(known.boot_before, BootId::new("b1"));
        assert_eq!(known.done_at, None);
        for (status, done) in [("True", true), ("False", false), ("Unknown", false)] {
            let known = found(&reboot(&over(NODE_READY, status))).unwrap();
            assert_eq!(known.done_at.is_some(), done, "{status}");
        }
        for number in ["0", "-1", "x", "", "99999999999"] {
            let mut odd = reboot("{}");
            let key = names::ATTEMPT.text.to_owned();
            odd.metadata.annotations.insert(key, number.to_owned());
            assert_eq!(found(&odd), None, "{number}");
        }
        assert_eq!(words(&"ä\n".repeat(1_000)).len(), 512);
    }
}
