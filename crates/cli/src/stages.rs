//! Plain words for drain and repair: their states, and why they changed.

use serde_json::Value;
use wire::api::{Incident, NodeLine, Status, Step};

/// Why a drain or a repair changed, by the codes of `decide::drain::Reason` and
/// `decide::remediation::Reason`.
const REASONS: [(&str, &str, &str); 27] = [
    ("drain", "wanted", "an open fault wants the node empty"),
    (
        "drain",
        "kept_waiting",
        "something keeps the drain from beginning",
    ),
    (
        "drain",
        "other_drainer",
        "another node-drainer runs in the cluster",
    ),
    ("drain", "empty", "no pod that counts is left"),
    ("drain", "nothing_to_do", "no pod that counts was there"),
    (
        "drain",
        "came_late",
        "a pod came while the node was being taken out",
    ),
    ("drain", "deadline", "a deadline is over, and pods are left"),
    (
        "drain",
        "goes_on",
        "what was over its time went, and the rest has time left",
    ),
    (
        "drain",
        "not_wanted",
        "no open fault wants the node empty any more",
    ),
    ("drain", "off", "drains were switched off"),
    ("remediation", "faults_ask", "open faults ask for it"),
    (
        "remediation",
        "node_empty",
        "the node is empty, and nothing keeps the order",
    ),
    ("remediation", "object_seen", "its object was seen"),
    (
        "remediation",
        "begun",
        "it waited in a queue, and its time counts from when it was begun",
    ),
    (
        "remediation",
        "not_begun",
        "nothing was sent: nobody began it, or the provider refused it",
    ),
    (
        "remediation",
        "off",
        "repairs were switched off before it was begun",
    ),
    (
        "remediation",
        "object_gone",
        "its object is gone before its end was seen",
    ),
    (
        "remediation",
        "other_boot",
        "the node is Ready in another boot",
    ),
    (
        "remediation",
        "object_done",
        "its object says that it is done",
    ),
    (
        "remediation",
        "object_failed",
        "its object says that it failed",
    ),
    (
        "remediation",
        "object_refused",
        "the API server does not take its object",
    ),
    (
        "remediation",
        "deadline",
        "its effect was not seen by its deadline",
    ),
    ("remediation", "faults_gone", "what it was for is over"),
    (
        "remediation",
        "booted",
        "the machine has booted since its faults were last said",
    ),
    (
        "remediation",
        "nothing_left",
        "no repair is left that may be ordered",
    ),
    (
        "remediation",
        "still_open",
        "the machine has booted or was repaired, and its faults are open still",
    ),
    (
        "remediation",
        "found",
        "the store that knew of it was lost, and its object tells",
    ),
];

/// Whose state a step tells, for people; none = the quarantine's, which is the node's own.
pub(crate) fn part(step: &Step) -> Option<&'static str> {
    match step.module.as_str() {
        "drain" => Some("drain"),
        "remediation" => Some("repair"),
        _ => None,
    }
}

/// Why a step of drain or remediation was taken: the controller's words, else those of its code.
pub(crate) fn why(step: &Step) -> String {
    let text = |key: &str| step.cause.get(key).and_then(Value::as_str);
    if let Some(words) = text("text") {
        return words.to_owned();
    }
    let code = text("reason").unwrap_or_default();
    let mut known = REASONS.iter();
    let known = known.find(|(module, reason, _)| *module == step.module && *reason == code);
    known.map_or(code, |(_, _, words)| words).to_owned()
}

/// The newest step of a module.
pub(crate) fn newest<'a>(steps: &'a [Step], module: &str) -> Option<&'a Step> {
    steps.iter().rfind(|step| step.module == module)
}

/// A rung of the ladder as a noun.
pub(crate) fn rung(name: &str) -> &str {
    match name {
        "reset" => "a reset",
        "reboot" => "a reboot",
        "hand-over" => "a hand-over",
        "terminate" => "the machine's end",
        other => other,
    }
}

/// What orders a rung.
pub(crate) fn object_kind(rung: &str) -> &'static str {
    match rung {
        "reboot" => "RebootNode",
        _ => "object",
    }
}

/// Whether a module writes.
pub(crate) fn acts(status: Option<&Status>, word: impl Fn(&Status) -> &str) -> bool {
    status.is_some_and(|status| word(status) == "enforce")
}

/// Whether nobody here carries orders of reboots out.
pub(crate) fn janitor_is_off(status: Option<&Status>) -> bool {
    status.is_some_and(|status| status.janitor == "off")
}

/// Whether the janitor leaves the signal to a person.
pub(crate) fn janitor_is_manual(status: Option<&Status>) -> bool {
    status.is_some_and(|status| status.janitor == "manual")
}

/// Says that a module is off, and by what; none = it is not, or the controller does not tell.
pub(crate) fn off(status: Option<&Status>, word: impl Fn(&Status) -> &str) -> Option<String> {
    let status = status.filter(|status| word(status) == "off")?;
    Some(format!("off (profile {})", status.profile))
}

/// What goes on in an incident whose node is out, for the headline; none = nothing but that.
pub(crate) fn headline(incident: &Incident) -> Option<String> {
    let repair = incident.repair.as_ref();
    let attempt = repair.and_then(|repair| repair.attempt.as_ref());
    let what = attempt.map_or("a repair", |attempt| rung(&attempt.rung));
    let drain = incident.drain.as_ref().map(|drain| drain.state.as_str());
    if incident.needs_operator.is_some() || drain == Some("Failed") {
        return Some("is out of service, and a person is needed".to_owned());
    }
    match (repair.map(|r| (r.state.as_str(), r.detail.as_str())), drain) {
        (Some(("NeedsOperator", _)), _) => {
            Some("is out of service, and a person is needed".to_owned())
        }
        (Some(("Requested" | "Running" | "Unknown", _)), _) => {
            Some(format!("is out of service, and {what} is under way"))
        }
        (Some(("Succeeded", _)), _) => {
            Some("is out of service and repaired; what is left is looked at".to_owned())
        }
        (_, Some("Draining")) => Some("is out of service and being drained".to_owned()),
        (_, Some("Waiting")) => Some("is out of service, and its drain waits".to_owned()),
        (Some(("Planned", planned)), Some("Drained")) => Some(format!(
            "is out of service and empty; {} is planned",
            rung(planned)
        )),
        (_, Some("Drained")) => Some("is out of service and empty".to_owned()),
        _ => None,
    }
}

/// The furthest of what goes on on a node, behind its state: `, repair Running`.
pub(crate) fn of_line(node: &NodeLine) -> String {
    let person = if node.needs_person {
        ", needs a person"
    } else {
        ""
    };
    let stage = match (node.repair.as_deref(), node.drain.as_deref()) {
        (Some(repair), _) if !matches!(repair, "Planned" | "Cancelled") => {
            format!(", repair {repair}")
        }
        (_, Some(drain)) if drain != "Cancelled" => format!(", drain {drain}"),
        (Some("Planned"), _) => ", repair Planned".to_owned(),
        _ => String::new(),
    };
    let marks = if node.marks_removed > 0 {
        ", something takes its marks off"
    } else {
        ""
    };
    format!("{stage}{marks}{person}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes are the decisions' own; one that is not listed here would be told as a bare code.
    #[test]
    fn every_reason_of_drain_and_remediation_has_words() {
        use decide::{drain, remediation};
        let drains = [
            drain::Reason::Wanted,
            drain::Reason::KeptWaiting,
            drain::Reason::OtherDrainer,
            drain::Reason::Empty,
            drain::Reason::NothingToDo,
            drain::Reason::CameLate,
            drain::Reason::Deadline,
            drain::Reason::GoesOn,
            drain::Reason::NotWanted,
            drain::Reason::Off,
        ];
        let repairs = [
            remediation::Reason::FaultsAsk,
            remediation::Reason::NodeEmpty,
            remediation::Reason::ObjectSeen,
            remediation::Reason::Begun,
            remediation::Reason::NotBegun,
            remediation::Reason::Off,
            remediation::Reason::ObjectGone,
            remediation::Reason::OtherBoot,
            remediation::Reason::ObjectDone,
            remediation::Reason::ObjectFailed,
            remediation::Reason::ObjectRefused,
            remediation::Reason::Deadline,
            remediation::Reason::FaultsGone,
            remediation::Reason::Booted,
            remediation::Reason::NothingLeft,
            remediation::Reason::StillOpen,
            remediation::Reason::Found,
        ];
        let drains = drains.iter().map(|reason| ("drain", reason.code()));
        let repairs = repairs.iter().map(|reason| ("remediation", reason.code()));
        let wanted: Vec<(&str, &str)> = drains.chain(repairs).collect();
        let told: Vec<(&str, &str)> = REASONS.iter().map(|(m, code, _)| (*m, *code)).collect();
        assert_eq!(told, wanted);
    }
}
