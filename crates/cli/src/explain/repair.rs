//! The repair of the node: what is planned or ordered, what keeps it, by when its effect has to be
//! seen, and what a person can do.

use health_event::keys;
use wire::api::{Incident, Repair, RepairAttempt};

use super::Facts;
use super::can_do::{Command, command};
use super::next::Line;
use crate::stages::{self, rung};
use crate::words::Clock;

/// What goes on, and what blocks it.
pub(super) fn lines(facts: &Facts, incident: &Incident, clock: &Clock) -> Vec<Line> {
    let Some(repair) = &incident.repair else {
        return stages::off(facts.status.as_ref(), |status| &status.remediation)
            .map(|off| Line::Blocks(format!("Nothing is repaired: repairs are {off}.")))
            .into_iter()
            .collect();
    };
    let since = clock.since(repair.since);
    let attempt = repair.attempt.as_ref();
    let ordered = attempt.map_or_else(|| since.clone(), |a| clock.since(a.requested_at));
    match repair.state.as_str() {
        "Planned" => match stages::off(facts.status.as_ref(), |status| &status.remediation) {
            Some(off) => vec![Line::Blocks(format!(
                "Planned is {}, and not ordered: repairs are {off}.",
                rung(&repair.detail)
            ))],
            None => vec![planned(facts, incident, repair)],
        },
        "Requested" if repair.blocked_by.as_deref() == Some("order_refused") => {
            vec![Line::Person(format!(
                "{} was ordered {ordered}, and the API server refuses its object; it is tried again until its \
                 deadline. The controller's log says why: an admission webhook, a missing permission, or \
                 no definition of RebootNode (deploy/crds).",
                name(attempt)
            ))]
        }
        "Requested" => under_way(
            attempt,
            &format!("was ordered {ordered}; the API server has not shown its object yet"),
            clock,
        ),
        "Running" if matches!(repair.blocked_by.as_deref(), Some("queued" | "own_node")) => {
            queued(attempt, repair.blocked_by.as_deref(), &ordered)
        }
        "Running" => under_way(attempt, &format!("is under way since {since}"), clock),
        "Unknown" => under_way(
            attempt,
            &format!(
                "was under way; its object went {since} before its end was seen. Nothing is sent a second \
                 time: the node alone can tell what became of it"
            ),
            clock,
        ),
        "Succeeded" => succeeded(attempt, &since),
        "Failed" => failed(repair, &since, clock),
        "NeedsOperator" => vec![needs_operator(facts, repair, &since, clock)],
        "Cancelled"
            if incident
                .faults
                .iter()
                .any(|fault| fault.closed_at.is_none()) =>
        {
            vec![Line::Comes(format!(
                "No repair is ordered since {since}: the machine has booted since its faults were last said, \
                 which covers them. They are waited for to be closed, or said again; if neither happens \
                 within remediation.settle_timeout, a person is called."
            ))]
        }
        "Cancelled" => {
            let text = format!("The repair was ended {since}: what it was for is over.");
            vec![Line::Comes(text)]
        }
        other => vec![Line::Comes(format!("The repair is {other} {since}."))],
    }
}

fn planned(facts: &Facts, incident: &Incident, repair: &Repair) -> Line {
    let what = rung(&repair.detail);
    let why = match repair.blocked_by.as_deref() {
        None => return Line::Comes(format!("Next comes {what}: it is about to be ordered.")),
        Some("own_node") => {
            return Line::Person(format!(
                "Planned is {what}, and not ordered: the controller itself runs on this node, and would end \
                 with it. It stays so until the controller runs on another node: a person has to move it."
            ));
        }
        Some("left_repair") => {
            return Line::Person(format!(
                "Planned is {what}, and not ordered: another RebootNode of this node is not at its end although its \
                 time is over, and nobody ends it: is its janitor gone? A person has to look at the machine, and to \
                 delete that object."
            ));
        }
        Some("not_drained") if cannot_read_pods(facts) => {
            "the node is to be empty first, and its pods can't be read: whether any are left is not known. A right \
             is missing (below)"
        }
        Some("not_drained") if !is_drained_here(incident) => {
            "the node is to be empty first, and drains are off or only shown; with \
             remediation.without_drain it is repaired with its pods on it"
        }
        Some("not_drained") => {
            return Line::Comes(format!("Once the node is empty, {what} is ordered."));
        }
        Some("dry_run") => "repairs are in a dry run: it is shown, and not ordered",
        Some("other_remediation") => {
            "another fault-remediation runs in this cluster, and both would order it"
        }
        Some("paused") => "the node is paused, and nothing new is started",
        Some("external_owner") => {
            "another system repairs the node; once it hands back, it is planned anew"
        }
        Some("other_repair") => {
            "another repair of this node is not at its end; there is never more than one"
        }
        Some("first_action") => {
            "repairs were just switched on; `remediation.first_action_delay` says how long they are only \
             shown"
        }
        Some("turn") => {
            "repairs were switched on over several nodes that are out, which go one after the other, the oldest \
             incident first: this one waits for its turn (a few in each quarantine.circuitBreaker window)"
        }
        Some("objects_unknown") => {
            "the RebootNode objects can't be read; may the controller read them? `warden status` says why"
        }
        Some("no_definition") => {
            "the definition of RebootNode is not installed: `kubectl apply -f \
             deploy/crds/janitor.dgxc.nvidia.com_rebootnodes.yaml`. Then it is ordered at once"
        }
        Some("api_error") => {
            "the API server refuses or does not answer a call that it needs; the controller's log says which"
        }
        Some("starting") => {
            "the controller has just begun to lead, and waits for the lease's length"
        }
        Some(other) => other,
    };
    Line::Blocks(format!("Planned is {what}, and not ordered: {why}."))
}

/// Whether the drain acts, so that the node will be empty.
fn is_drained_here(incident: &Incident) -> bool {
    let drain = incident.drain.as_ref();
    drain.is_some_and(|drain| drain.state != "Waiting" || drain.detail != "dry_run")
}

/// `Attempt 1 (a reboot, for RESTART_BM; RebootNode NAME)`
fn name(attempt: Option<&RepairAttempt>) -> String {
    let Some(attempt) = attempt else {
        return "The repair".to_owned();
    };
    let force = if attempt.force { " with force" } else { "" };
    format!(
        "Attempt {} ({}{force}, for {}; {} {})",
        attempt.number,
        rung(&attempt.rung),
        attempt.action,
        stages::object_kind(&attempt.rung),
        attempt.object
    )
}

fn queued(attempt: Option<&RepairAttempt>, by: Option<&str>, ordered: &str) -> Vec<Line> {
    let why = match by {
        Some("own_node") => {
            "the controller itself runs on this node, and would go down with it. A person has to move it: nothing \
             is sent until it runs on another node"
        }
        _ => {
            "as many repairs as may run at a time run already, the provider can't be reached, the node is \
             paused or locked, or no janitor runs"
        }
    };
    let text = format!(
        "{} was ordered {ordered}, and nobody has begun it: {why}.",
        name(attempt)
    );
    vec![
        match by {
            Some("own_node") => Line::Person(text),
            _ => Line::Blocks(text),
        },
        Line::Comes(
            "  Nothing was sent. Its time counts from when it is begun; one that is given up in the queue is \
             no attempt on the machine."
                .to_owned(),
        ),
    ]
}

fn under_way(attempt: Option<&RepairAttempt>, what: &str, clock: &Clock) -> Vec<Line> {
    let mut lines = vec![Line::Comes(format!("{} {what}.", name(attempt)))];
    let Some(attempt) = attempt else {
        return lines;
    };
    let boot = match (attempt.rung.as_str(), attempt.boot_before.as_str()) {
        ("reboot", "") => {
            "It is proven by the object's end, and Ready: the boot before is not known".to_owned()
        }
        ("reboot", boot) => format!("It is proven by another boot than {boot}, and Ready"),
        _ => "Its object tells when it is done".to_owned(),
    };
    let deadline = if clock.is_ahead(attempt.deadline) {
        format!(
            "{}, else the attempt is used up",
            clock.until(attempt.deadline)
        )
    } else {
        format!(
            "{}: the attempt is about to be used up",
            clock.local(attempt.deadline)
        )
    };
    lines.push(Line::Comes(format!("  {boot}, by {deadline}.")));
    lines.push(Line::Comes(
        "  Until it is at its end the node is not given back, also if its faults end before."
            .to_owned(),
    ));
    lines
}

fn succeeded(attempt: Option<&RepairAttempt>, since: &str) -> Vec<Line> {
    let seen = match attempt.map(|attempt| attempt.rung.as_str()) {
        Some("reboot") => "the node is Ready in another boot",
        _ => "its object says that it is done",
    };
    vec![
        Line::Comes(format!("{} succeeded {since}: {seen}.", name(attempt))),
        Line::Comes(
            "  Now the node's agent tells what it still finds: faults that are gone close, one that is said \
             again starts the next attempt."
                .to_owned(),
        ),
    ]
}

fn failed(repair: &Repair, since: &str, clock: &Clock) -> Vec<Line> {
    let why = match repair.detail.as_str() {
        "no_reboot_observed" => {
            "it is said to be done, and the node is Ready in the same boot: it did not reboot. The next \
             attempt asks for force where that is possible"
                .to_owned()
        }
        "refused" => format!("the API server does not take its object: {}", repair.words),
        "object" => format!("its object says: {}", repair.words),
        "deadline" => "its effect was not seen by its deadline".to_owned(),
        "not_begun" => format!("nothing was sent for it: {}", repair.words),
        "provider_refused" => format!(
            "the provider refused it before it took it on, so that it is no attempt on the machine: {}",
            repair.words
        ),
        other => other.to_owned(),
    };
    vec![
        Line::Blocks(format!(
            "{} failed {since}: {why}.",
            name(repair.attempt.as_ref())
        )),
        Line::Comes(match repair.again_at {
            Some(at) => format!(
                "  The provider is asked again by itself {}, each time after a longer pause.",
                clock.until(at)
            ),
            None => "  If an attempt is left, the next one is ordered; else a person is needed."
                .to_owned(),
        }),
    ]
}

fn needs_operator(facts: &Facts, repair: &Repair, since: &str, clock: &Clock) -> Line {
    let why = match repair.detail.as_str() {
        "unsupported" => format!(
            "no repair is configured for action {} (remediation.remediationActions)",
            repair.words
        ),
        "exhausted" => match repair.again_at {
            Some(at) => format!(
                "all attempts of {} on this machine are used up for remediation.attempts_window, those of \
                 earlier incidents among them; this incident has one left, and it is ordered by itself at {}, \
                 unless the node is paused by then (below){}",
                rung(&repair.words),
                clock.until(at),
                sooner(facts, repair)
            ),
            None => format!(
                "all attempts of {} in this incident are used up (remediation.max_attempts), and Warden orders \
                 nothing more in it{}",
                rung(&repair.words),
                sooner(facts, repair)
            ),
        },
        "not_begun" => "nobody began its orders, so that nothing was sent. Does a janitor run, and does the \
             provider answer? They are ordered again a day after the last one, or reboot it yourself"
            .to_owned(),
        "provider_refused" => format!(
            "the provider answers, and refuses its orders: \"{}\". Nothing was sent. Mend what it refuses (its \
             token, a permission, what it knows of this node). It is asked again by itself {}",
            repair.words,
            repair.again_at.map_or_else(|| "later".to_owned(), |at| clock.until(at))
        ),
        "called_off" => format!(
            "its order was deleted before anything was sent, so that nothing more is ordered in this \
             incident{}",
            sooner(facts, repair)
        ),
        "still_open" => format!(
            "{}, and its faults are neither said again nor closed. Close those that are over",
            if was_seen(repair) {
                "it was repaired"
            } else {
                "the machine has booted since its faults were last said"
            }
        ),
        other => other.to_owned(),
    };
    let last = repair.attempt.as_ref();
    let last = last.map_or_else(String::new, |last| {
        let came = match last.effect.as_str() {
            "seen" => "it worked",
            "not_seen" => "it did not happen",
            "not_begun" => "nobody began it, and nothing was sent",
            "provider_refused" => "the provider refused it",
            "failed" => "it failed",
            _ => "its end is not known",
        };
        format!(
            " Last: attempt {} ({}): {came}.",
            last.number,
            rung(&last.rung)
        )
    });
    Line::Person(format!(
        "A person is needed since {since}: {why}. The node stays out until its faults end.{last}"
    ))
}

/// Whether the API server does not let Warden read pods.
fn cannot_read_pods(facts: &Facts) -> bool {
    let mut missing = facts
        .status
        .iter()
        .flat_map(|status| &status.missing_rights);
    missing.any(|right| right.resource == "pods" && matches!(&*right.verb, "list" | "watch"))
}

/// What a person can do about it.
pub(super) fn commands(facts: &Facts, incident: &Incident) -> Vec<Command> {
    let Some(repair) = &incident.repair else {
        return Vec::new();
    };
    match (repair.state.as_str(), repair.blocked_by.as_deref()) {
        ("Planned", Some("other_repair" | "left_repair")) => vec![command(
            "kubectl get rebootnodes",
            "which other repair of the node is not at its end",
        )],
        ("Planned", Some("other_remediation")) => vec![command(
            "kubectl get deployments -A | grep fault-remediation",
            "which other remediation runs: scaled to 0 replicas, Warden repairs",
        )],
        // Where an unfinished drain waits for the same, that tells it.
        ("Planned" | "Running", Some("own_node")) => {
            let mut list = vec![command(
                "kubectl -n warden rollout restart deployment/warden-controller",
                "move the controller to another node: then this one has its turn",
            )];
            list.extend(of_object(repair));
            list
        }
        ("NeedsOperator", _) => {
            let paused = repair.again_at.map(|_| pause(&facts.node.name));
            once_more(facts, repair).into_iter().chain(paused).collect()
        }
        ("Requested" | "Running" | "Failed", _) => of_object(repair),
        _ => Vec::new(),
    }
}

fn was_seen(repair: &Repair) -> bool {
    let last = repair.attempt.as_ref();
    last.is_some_and(|last| last.effect == "seen")
}

/// Who is at the machine keeps Warden from rebooting it.
fn pause(node: &str) -> Command {
    command(
        format!("kubectl annotate node {node} {}pause=TEXT", keys::PREFIX),
        "keep Warden from ordering it, as while somebody is at the machine; without the annotation it goes on",
    )
}

/// Whether an order of a person's own would have the node rebooted, although Warden orders nothing more.
fn takes_a_persons_order(facts: &Facts, repair: &Repair) -> bool {
    let rung = match repair.detail.as_str() {
        "exhausted" => Some(repair.words.as_str()),
        "called_off" => repair.attempt.as_ref().map(|last| last.rung.as_str()),
        _ => None,
    };
    rung == Some("reboot") && !stages::janitor_is_off(facts.status.as_ref())
}

/// What a person can do who does not want to wait.
fn sooner(facts: &Facts, repair: &Repair) -> &'static str {
    if takes_a_persons_order(facts, repair) {
        ". To have it rebooted now, make a RebootNode of your own (below)"
    } else {
        ". To have it back now, repair it yourself"
    }
}

/// A person's own order, which needs no attempt that is left.
fn once_more(facts: &Facts, repair: &Repair) -> Option<Command> {
    let effect = if stages::janitor_is_manual(facts.status.as_ref()) {
        "order one more reboot, under the same lock; the janitor waits for you to send the signal"
    } else {
        "order one more reboot: the janitor carries it out under the same lock; the faults that it ends give \
         the node back"
    };
    takes_a_persons_order(facts, repair).then(|| command(order_by_hand(&facts.node.name), effect))
}

/// The command that orders a reboot, to be pasted.
fn order_by_hand(node: &str) -> String {
    // The name of a node has no character that JSON or a shell reads.
    format!(
        r#"echo '{{"apiVersion":"janitor.dgxc.nvidia.com/v1alpha1","kind":"RebootNode","metadata":{{"generateName":"by-hand-"}},"spec":{{"nodeName":"{node}","force":false}}}}' | kubectl create -f -"#
    )
}

fn of_object(repair: &Repair) -> Vec<Command> {
    let reboots = |attempt: &&RepairAttempt| attempt.rung == "reboot";
    let Some(attempt) = repair.attempt.as_ref().filter(reboots) else {
        return Vec::new();
    };
    let object = &attempt.object;
    let mut list = vec![command(
        format!("kubectl describe rebootnode {object}"),
        "where it stands, and what the provider said",
    )];
    if repair.state != "Failed" {
        list.push(command(
            format!("kubectl delete rebootnode {object}"),
            "call it off; a signal that was sent can't be recalled",
        ));
    }
    list
}

/// Whether a person has to repair the machine: Warden does not, or has nothing left.
pub(super) fn is_by_hand(facts: &Facts) -> Option<&'static str> {
    let repair = facts.open().and_then(|incident| incident.repair.as_ref());
    match repair.map(|repair| repair.state.as_str()) {
        Some("NeedsOperator") => {
            Some("yourself: Warden has no repair left; it looks again after the boot")
        }
        Some(_) if !is_dry(repair) => None,
        _ if stages::acts(facts.status.as_ref(), |status| &status.remediation)
            && facts.open().is_some() =>
        {
            None
        }
        _ => Some("yourself: here Warden does not; it looks again after the boot"),
    }
}

fn is_dry(repair: Option<&Repair>) -> bool {
    repair.is_some_and(|repair| repair.blocked_by.as_deref() == Some("dry_run"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_api::reboot_node::NewRebootNode;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_order_by_hand_has_the_kind_and_the_spec_of_those_that_warden_makes() {
        let command = order_by_hand("gpu-17");
        let quoted: Vec<&str> = command.split('\'').collect();
        let [echo, body, kubectl] = quoted[..] else {
            panic!("{command}");
        };
        assert_eq!((echo, kubectl), ("echo ", " | kubectl create -f -"));
        let body: Value = serde_json::from_str(body).unwrap();
        let ours = NewRebootNode {
            name: "",
            node: "gpu-17",
            node_uid: "",
            force: false,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        };
        let ours = ours.render();
        for key in ["apiVersion", "kind", "spec"] {
            assert_eq!(body[key], ours[key], "{key}");
        }
        assert_eq!(body["metadata"], json!({ "generateName": "by-hand-" }));
    }
}
