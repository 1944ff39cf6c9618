//! The drain of the node: what goes on, which pods it waits for and until when, and what a person can
//! do about them.

use jiff::Timestamp;
use wire::api::{Blocker, Drain, Incident};

use super::Facts;
use super::can_do::{Command, command};
use super::next::Line;
use crate::output::counted;
use crate::stages;
use crate::words::Clock;

/// Pods that are told in full.
const PODS: usize = 10;
/// Pods that are told by name only.
const NAMES: usize = 5;
/// Pods whose commands are spelled out.
const ACTS: usize = 3;
/// Why pods block, what needs a person most first.
const KINDS: [(&str, &str); 7] = [
    ("budget", "refused by a disruption budget"),
    ("failed", "whose eviction failed"),
    ("came", "that came during the drain"),
    ("asked", "asked to go"),
    ("completion", "that may finish"),
    ("timeout", "that may finish until they are deleted"),
    ("terminating", "going"),
];

/// What goes on, and what blocks it.
pub(super) fn lines(facts: &Facts, incident: &Incident, clock: &Clock) -> Vec<Line> {
    let Some(drain) = &incident.drain else {
        return stages::off(facts.status.as_ref(), |status| &status.drain)
            .map(|off| {
                Line::Blocks(format!(
                    "Its pods are left alone: drains are {off}. What runs on the node runs on."
                ))
            })
            .into_iter()
            .collect();
    };
    let since = clock.since(drain.since);
    match drain.state.as_str() {
        "Waiting" => waiting(drain, clock),
        "Draining" => draining(drain, clock),
        "Drained" => {
            let text = format!("Drained {since}: no pod that counts is left on it.");
            with_passed_over(vec![Line::Comes(text)], drain)
        }
        "Failed" => failed(drain, clock),
        "Cancelled" => {
            let why = stages::newest(&facts.steps, "drain")
                .map(stages::why)
                .filter(|why| !why.is_empty());
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            let text = format!(
                "The drain was ended {since} before it was done{why}; a fault that joins begins it anew."
            );
            vec![Line::Comes(text)]
        }
        other => vec![Line::Comes(format!("The drain is {other} {since}."))],
    }
}

fn waiting(drain: &Drain, clock: &Clock) -> Vec<Line> {
    let why = match (drain.detail.as_str(), drain.not_before) {
        ("first_action", Some(at)) => format!(
            "drains were switched on a short time ago (drain.first_action_delay); no pod is asked to go before {}",
            clock.until(at)
        ),
        ("turn", _) => "drains were switched on over several nodes that are out, which go one after the other, the \
                        oldest incident first: this one waits for its turn (a few in each quarantine.circuitBreaker \
                        window)"
            .to_owned(),
        ("paused", _) => format!(
            "the node is paused (annotation {}pause), and no pod is asked to go",
            health_event::keys::PREFIX
        ),
        ("dry_run", _) => {
            let mut lines = vec![Line::Blocks(
                "Dry run of drains: no pod is moved. What would be asked to go, or waited for:"
                    .to_owned(),
            )];
            lines.extend(pods(drain, clock));
            return with_passed_over(lines, drain);
        }
        ("other_drainer", _) => {
            "another node-drainer runs in this cluster, and both would evict the same pods".to_owned()
        }
        ("own_node", _) => {
            "the controller itself runs on this node, which is drained last: once no other node is drained \
             or repaired, or once the controller runs elsewhere"
                .to_owned()
        }
        (other, _) => other.to_owned(),
    };
    vec![Line::Blocks(format!(
        "The drain waits since {}: {why}.",
        clock.since(drain.since)
    ))]
}

fn draining(drain: &Drain, clock: &Clock) -> Vec<Line> {
    let since = clock.since(drain.since);
    if drain.blockers.is_empty() {
        let text = format!("Draining since {since}; its pods are looked at.");
        return with_passed_over(vec![Line::Comes(text)], drain);
    }
    let count = counted(drain.blockers.len() as u64, "pod");
    let mut lines = vec![Line::Comes(format!(
        "Draining since {since}; it waits for {count}:"
    ))];
    lines.extend(pods(drain, clock));
    let has = |kinds: &[&str]| drain.blockers.iter().any(|b| kinds.contains(&&*b.why));
    let evicted = has(&["budget", "failed", "asked", "came", "terminating"]);
    let deadlines = [
        (
            "Evicted pods have to be gone",
            drain.immediate_deadline.filter(|_| evicted),
        ),
        (
            "Pods of AllowCompletion have to be at their end",
            drain.completion_deadline.filter(|_| has(&["completion"])),
        ),
    ];
    let told = deadlines.into_iter();
    lines.extend(told.filter_map(|(what, at)| Some(at_deadline(drain, what, at?, clock))));
    with_passed_over(lines, drain)
}

/// By when pods have to be gone, and what becomes of those that are left then.
fn at_deadline(drain: &Drain, what: &str, at: Timestamp, clock: &Clock) -> Line {
    let is_ahead = clock.is_ahead(at);
    let then = match (drain.at_deadline.as_str(), is_ahead) {
        ("fail", true) => {
            "what is left then is not asked any more, the drain fails, and a person is needed \
             (drain.at_deadline is fail)"
        }
        ("fail", false) => {
            "what is left is not asked any more, the drain is about to fail, and a person is needed \
             (drain.at_deadline is fail)"
        }
        ("delete", true) => {
            "what is left then is deleted, without grace and past its disruption budgets \
             (drain.at_deadline is delete); what is still there drain.stuck_timeout later fails the drain"
        }
        ("delete", false) => {
            "what is left is deleted now, without grace and past its disruption budgets \
             (drain.at_deadline is delete); what is still there drain.stuck_timeout later fails the drain"
        }
        _ => "else the drain fails and a person is needed, or they are deleted (drain.at_deadline)",
    };
    if is_ahead {
        Line::Comes(format!("  {what} by {}: {then}.", clock.until(at)))
    } else {
        Line::Blocks(format!(
            "  {what} by {}, which is over: {then}.",
            clock.since(at)
        ))
    }
}

fn failed(drain: &Drain, clock: &Clock) -> Vec<Line> {
    let why = match drain.detail.as_str() {
        "immediate" => "pods that were to go at once are still there at their deadline",
        "deleted" => "pods that were deleted are still there, drain.stuck_timeout after they were",
        "completion" => "pods that were to finish by themselves have not at their deadline",
        other => other,
    };
    let configured = match (drain.detail.as_str(), drain.at_deadline.as_str()) {
        ("immediate" | "completion", "fail") => " (drain.at_deadline is fail)",
        _ => "",
    };
    let mut lines = vec![Line::Person(format!(
        "A person is needed: the drain failed {}: {why}{configured}, and are not asked to go any more; the others are, \
         until their own time. Once these are gone the node counts as drained, and it goes on by itself:",
        clock.since(drain.since)
    ))];
    lines.extend(pods(drain, clock));
    with_passed_over(lines, drain)
}

fn rank(blocker: &Blocker) -> usize {
    let place = KINDS.iter().position(|(kind, _)| *kind == blocker.why);
    place.unwrap_or(KINDS.len())
}

fn sorted(drain: &Drain) -> Vec<&Blocker> {
    let mut sorted: Vec<&Blocker> = drain.blockers.iter().collect();
    sorted.sort_by(|a, b| (rank(a), &a.pod).cmp(&(rank(b), &b.pod)));
    sorted
}

/// The pods that it waits for, and of the rest how many of each kind.
fn pods(drain: &Drain, clock: &Clock) -> Vec<Line> {
    let sorted = sorted(drain);
    let told = sorted.iter().take(PODS);
    let mut lines: Vec<Line> = told.map(|blocker| pod(blocker, clock)).collect();
    let rest = sorted.get(PODS..).unwrap_or_default();
    if !rest.is_empty() {
        let count = |kind: &str| rest.iter().filter(|b| b.why == kind).count();
        let kinds = KINDS.iter().map(|(kind, words)| (count(kind), words));
        let kinds = kinds.filter(|(count, _)| *count > 0);
        let kinds: Vec<String> = kinds.map(|(n, words)| format!("{n} {words}")).collect();
        lines.push(Line::Blocks(format!(
            "  and {} more: {}",
            rest.len(),
            kinds.join(", ")
        )));
    }
    lines
}

fn pod(blocker: &Blocker, clock: &Clock) -> Line {
    let detail = &blocker.detail;
    let why = match blocker.why.as_str() {
        "asked" => "was asked to go".to_owned(),
        "terminating" => "is going; its time of grace runs, or its node does not answer".to_owned(),
        "budget" => format!("a disruption budget keeps it; it is asked again and again: {detail}"),
        "failed" => format!("asking it to go failed; it is asked again: {detail}"),
        "completion" => "may finish by itself (AllowCompletion)".to_owned(),
        "came" => "came while the node was drained, and is asked to go a while later: something puts pods \
             there in spite of the cordon (a toleration of node.kubernetes.io/unschedulable, or a node name)"
            .to_owned(),
        "timeout" => "may finish by itself until it is deleted (DeleteAfterTimeout)".to_owned(),
        other => format!("{other} {detail}").trim_end().to_owned(),
    };
    let until = match blocker.until {
        Some(at) if clock.is_ahead(at) => format!("; at the latest {}", clock.until(at)),
        Some(at) => format!("; the time for that was over {}", clock.since(at)),
        None if blocker.why == "completion" => "; nothing ends that".to_owned(),
        None => String::new(),
    };
    Line::Blocks(format!("  {}: {why}{until}", blocker.pod))
}

fn with_passed_over(mut lines: Vec<Line>, drain: &Drain) -> Vec<Line> {
    let count = drain.passed_over.len();
    if count == 0 {
        return lines;
    }
    let names: Vec<&str> = drain.passed_over.iter().map(String::as_str).collect();
    let more = match count.saturating_sub(NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    lines.push(Line::Comes(format!(
        "  Not waited for, since the repair ends their processes: {}{more}",
        names[..count.min(NAMES)].join(", ")
    )));
    lines
}

/// What a person can do about it.
pub(super) fn commands(facts: &Facts, incident: &Incident) -> Vec<Command> {
    let Some(drain) = &incident.drain else {
        return by_hand(facts, incident);
    };
    match (drain.state.as_str(), drain.detail.as_str()) {
        ("Waiting", "other_drainer") => vec![command(
            "kubectl get deployments -A | grep node-drainer",
            "which other drainer runs: scaled to 0 replicas, Warden drains",
        )],
        ("Waiting", "own_node") => vec![command(
            "kubectl -n warden rollout restart deployment/warden-controller",
            "move the controller to another node: then this one has its turn",
        )],
        ("Draining" | "Failed", _) => of_pods(drain),
        _ => Vec::new(),
    }
}

fn by_hand(facts: &Facts, incident: &Incident) -> Vec<Command> {
    let off = stages::off(facts.status.as_ref(), |status| &status.drain);
    let has_fault = incident.faults.iter().any(|f| f.closed_at.is_none());
    let off = off.filter(|_| has_fault && incident.state == "Quarantined");
    let drain = |_| {
        command(
            format!(
                "kubectl drain {} --ignore-daemonsets --delete-emptydir-data",
                facts.node.name
            ),
            "move its pods away yourself: here Warden does not",
        )
    };
    off.map(drain).into_iter().collect()
}

fn of_pods(drain: &Drain) -> Vec<Command> {
    let has_failed = drain.state == "Failed";
    let mut list = Vec::new();
    let mut namespaces: Vec<&str> = Vec::new();
    for blocker in sorted(drain) {
        if list.len() >= ACTS * 2 {
            break;
        }
        let Some((namespace, name)) = blocker.pod.split_once('/') else {
            continue;
        };
        let delete = format!("kubectl -n {namespace} delete pod {name}");
        match blocker.why.as_str() {
            "budget" => {
                if !namespaces.contains(&namespace) {
                    namespaces.push(namespace);
                    list.push(command(
                        format!("kubectl -n {namespace} get poddisruptionbudgets"),
                        "what the budget needs: give it more healthy pods, or lower it",
                    ));
                }
                let effect = "delete it past the budget, if its owner agrees";
                list.push(command(delete, effect));
            }
            "completion" | "timeout" => {
                let effect = "do not wait for it to finish, if its owner agrees";
                list.push(command(delete, effect));
            }
            "terminating" if has_failed => list.push(command(
                format!("{delete} --grace-period=0 --force"),
                "forget it; its processes may run on until the machine reboots",
            )),
            "asked" | "failed" | "came" => list.push(command(
                format!("kubectl -n {namespace} describe pod {name}"),
                "what keeps it",
            )),
            _ => {}
        }
    }
    list
}
