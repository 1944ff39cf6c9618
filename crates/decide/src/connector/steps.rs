//! Core/v1 Events for what the modules do not do: nodes that the quarantine withholds, the trip of a
//! breaker, drains that failed or may not begin, and how repairs go.

use health_event::text::counted;
use jiff::Timestamp;
use k8s_api::names;

use super::EventPost;
use crate::drain;
use crate::quarantine::ADOPTED;

/// Longest text that is taken over, in bytes; the API server takes 1,024 in all.
const TEXT: usize = 160;
/// The same of a text that names pods or objects.
const LONG_TEXT: usize = 700;

/// A step of the audit trail, as far as an Event needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step<'a> {
    /// Node.
    pub node: &'a str,
    /// Module that made it.
    pub module: StepOf,
    /// Whether the incident waits after it, although the node should be out.
    pub withheld: bool,
    /// Code of its reason, see [`crate::quarantine::Reason::code`].
    pub reason: &'a str,
    /// The same for people.
    pub text: &'a str,
    /// The trip of a breaker that came with it.
    pub trip: Option<Trip<'a>>,
    /// Object of a repair that was under way when the incident went to its end.
    pub repair_left: Option<&'a str>,
    /// Annotations of ours that something takes off again and again.
    pub marks_removed: Option<&'a str>,
    /// When.
    pub at: Timestamp,
}

/// Whose step it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOf {
    /// The quarantine's.
    Quarantine,
    /// The drain's; whether the drain failed with it.
    Drain {
        /// A deadline is over and pods are left.
        failed: bool,
    },
    /// The repair's.
    Repair(RepairStep),
    /// Another module's.
    Other,
}

/// What a step of a repair means for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairStep {
    /// The attempt failed.
    Failed,
    /// A person is needed.
    NeedsOperator,
    /// Nothing that a person would be told: the node's label and the order itself say it.
    Quiet,
}

/// A trip, as it was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trip<'a> {
    /// Pool.
    pub pool: &'a str,
    /// `level` or `rate`.
    pub bound: &'a str,
    /// Rule set with the largest share.
    pub rule: &'a str,
    /// Check with the largest share.
    pub check: &'a str,
    /// Nodes of the largest share.
    pub share: u64,
    /// Nodes counted.
    pub counted: u64,
}

/// The Events that a step makes, on its node. A step that only changes an incident's faults makes
/// none.
pub fn step_posts(step: &Step<'_>) -> Vec<EventPost> {
    match step.module {
        StepOf::Quarantine => quarantine_posts(step),
        StepOf::Drain { failed } => drain_posts(step, failed),
        StepOf::Repair(what) => repair_post(step, what).into_iter().collect(),
        StepOf::Other => Vec::new(),
    }
}

/// A drain that only waits for its turn is no news.
fn drain_posts(step: &Step<'_>, failed: bool) -> Vec<EventPost> {
    let (text, node) = (cut_to(step.text, LONG_TEXT), step.node);
    let more = format!("`warden explain {node}` tells more");
    if failed {
        let message = format!("the drain failed, a person is needed: {text}; {more}");
        return vec![post(step, names::DRAIN_FAILED, message)];
    }
    if step.reason == drain::Reason::OtherDrainer.code() {
        let message = format!("not drained: {text}; {more}");
        return vec![post(step, names::DRAIN_WITHHELD, message)];
    }
    Vec::new()
}

fn repair_post(step: &Step<'_>, what: RepairStep) -> Option<EventPost> {
    let reason = match what {
        RepairStep::Failed => names::REPAIR_FAILED,
        RepairStep::NeedsOperator => names::REPAIR_NEEDS_OPERATOR,
        RepairStep::Quiet => return None,
    };
    let text = cut_to(step.text, LONG_TEXT);
    let message = format!("{text}; `warden explain {}` tells more", step.node);
    Some(post(step, reason, message))
}

fn quarantine_posts(step: &Step<'_>) -> Vec<EventPost> {
    const WITHHOLD: [&str; 4] = [
        "breaker_withholds",
        "first_action_delay",
        "paced",
        "other_quarantine",
    ];
    let mut posts = Vec::new();
    if let Some(trip) = &step.trip {
        posts.push(post(step, names::BREAKER_TRIPPED, tripped(trip)));
    }
    if let Some(object) = step.repair_left {
        let message = format!(
            "given back while its repair was under way: {}. What of RebootNode {} is not sent is \
             recalled; what may be sent can't be: the machine may still reboot, and nothing else is \
             ordered for it before that ends; `warden explain {}` tells more",
            cut(step.text),
            cut_to(object, LONG_TEXT),
            step.node
        );
        posts.push(post(step, names::REPAIR_NOT_RECALLED, message));
    }
    if let Some(which) = step.marks_removed {
        let message = format!(
            "something takes Warden's marks off this node again and again ({}): they are put back more and more \
             rarely, up to each 10 min. Look for a controller that removes annotations it does not know; \
             `warden explain {}` tells more",
            cut_to(which, LONG_TEXT),
            step.node
        );
        posts.push(post(step, names::MARKS_REMOVED, message));
    }
    if step.withheld && WITHHOLD.contains(&step.reason) {
        let text = cut(step.text);
        let message = format!(
            "not taken out of service: {text}; `warden explain {}` tells more",
            step.node
        );
        posts.push(post(step, names::QUARANTINE_WITHHELD, message));
    }
    posts
}

fn tripped(trip: &Trip<'_>) -> String {
    let (pool, bound) = (cut(trip.pool), trip.bound);
    let largest = match (trip.share, trip.rule, trip.check) {
        (0, ..) | (_, "", "") => String::new(),
        (share, rule, check) => format!(", {share} of them {}", taken_out_for(rule, check)),
    };
    format!(
        "the {bound} bound of pool {pool} is reached: {} counted{largest}. No further node of \
         the pool is taken out until `warden breaker reset --pool {pool}`; recoveries go on",
        counted(trip.counted, "node")
    )
}

/// What the largest share was taken out for; as `warden breaker` says it.
fn taken_out_for(rule: &str, check: &str) -> String {
    let what = match (rule, check) {
        (ADOPTED, _) => return "out already when the store was lost".to_owned(),
        ("hold", "") => return "by persons (warden hold)".to_owned(),
        ("forced", _) => "forced by the sender".to_owned(),
        (rule, _) => format!("by rule set {}", cut(rule)),
    };
    match check {
        "" => what,
        check => format!("{what} on check {}", cut(check)),
    }
}

fn cut(text: &str) -> &str {
    cut_to(text, TEXT)
}

fn cut_to(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

fn post(step: &Step<'_>, reason: &str, message: String) -> EventPost {
    warning(step.node, reason, message, step.at)
}

/// The Event about a reboot of the node that the controller runs on.
pub fn controller_here_post(node: &str, object: &str, at: Timestamp) -> EventPost {
    let message = format!(
        "RebootNode {object} is not begun: the controller itself runs on this node. Move it to another node \
         (`kubectl -n warden rollout restart deployment/warden-controller`), or delete the object; else it ends \
         once its time in the queue is over (janitor.queue_timeout)"
    );
    warning(node, names::REBOOT_WAITS, message, at)
}

fn warning(node: &str, reason: &str, message: String, at: Timestamp) -> EventPost {
    EventPost {
        node: node.to_owned(),
        kind: "Warning".to_owned(),
        reason: reason.to_owned(),
        message,
        component: names::FIELD_MANAGER.text.to_owned(),
        at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(reason: &'static str) -> Step<'static> {
        Step {
            node: "gpu-1",
            module: StepOf::Quarantine,
            withheld: true,
            reason,
            text: "the breaker's level bound is reached",
            trip: None,
            repair_left: None,
            marks_removed: None,
            at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn what_is_withheld_is_told_on_its_node_and_nothing_else_is() {
        let posts = step_posts(&step("breaker_withholds"));
        assert_eq!(posts.len(), 1);
        assert_eq!(
            (posts[0].node.as_str(), posts[0].reason.as_str()),
            ("gpu-1", "QuarantineWithheld")
        );
        assert_eq!(
            posts[0].message,
            "not taken out of service: the breaker's level bound is reached; `warden explain gpu-1` \
             tells more"
        );
        assert!(step_posts(&step("faults_change")).is_empty());
        let taken = Step {
            withheld: false,
            ..step("permitted")
        };
        assert!(step_posts(&taken).is_empty());
    }

    #[test]
    fn what_takes_our_marks_off_again_and_again_is_told_with_which() {
        let posts = step_posts(&Step {
            withheld: false,
            marks_removed: Some("warden.dev/incident"),
            ..step("marks_restored")
        });
        assert_eq!((posts.len(), posts[0].reason.as_str()), (1, "MarksRemoved"));
        assert!(
            posts[0].message.contains("(warden.dev/incident)"),
            "{posts:?}"
        );
        let once = Step {
            withheld: false,
            ..step("marks_restored")
        };
        assert!(step_posts(&once).is_empty());
    }

    #[test]
    fn a_person_is_told_of_a_repair_that_may_still_come() {
        let posts = step_posts(&Step {
            withheld: false,
            repair_left: Some("maintenance-gpu-1-x-1"),
            text: "a person uncordoned the node",
            ..step("manual_uncordon")
        });
        assert_eq!(posts.len(), 1);
        assert_eq!(
            (posts[0].reason.as_str(), posts[0].kind.as_str()),
            ("RepairNotRecalled", "Warning")
        );
        let message = &posts[0].message;
        assert!(
            message.starts_with(
                "given back while its repair was under way: a person uncordoned the node. "
            ) && message.contains("RebootNode maintenance-gpu-1-x-1"),
            "{message}"
        );
    }

    #[test]
    fn a_trip_names_the_rule_and_check_with_the_largest_share_first() {
        let whole = Trip {
            pool: "gpu",
            bound: "level",
            rule: "R",
            check: "C",
            share: 3,
            counted: 4,
        };
        let tripping = |trip: Trip<'static>| Step {
            trip: Some(trip),
            ..step("breaker_withholds")
        };
        let posts = step_posts(&tripping(whole.clone()));
        assert_eq!(posts.len(), 2);
        assert_eq!(posts[0].reason, "BreakerTripped");
        assert_eq!(
            posts[0].message,
            "the level bound of pool gpu is reached: 4 nodes counted, 3 of them by rule set R on \
             check C. No further node of the pool is taken out until `warden breaker reset --pool \
             gpu`; recoveries go on"
        );
        let of = |rule, check| {
            let trip = Trip {
                rule,
                check,
                ..whole.clone()
            };
            let text = step_posts(&tripping(trip))[0].message.clone();
            let (_, share) = text.split_once("3 of them ").unwrap();
            share.split_once('.').unwrap().0.to_owned()
        };
        assert_eq!(of(ADOPTED, ""), "out already when the store was lost");
        assert_eq!(of("hold", ""), "by persons (warden hold)");
        assert_eq!(of("forced", "C"), "forced by the sender on check C");
        assert_eq!(of("R", ""), "by rule set R");
        let none = Trip {
            share: 0,
            rule: "",
            check: "",
            ..whole
        };
        assert!(!step_posts(&tripping(none))[0].message.contains("of them"));
    }

    #[test]
    fn a_drain_that_fails_or_may_not_begin_is_told_of_and_one_that_waits_is_not() {
        let of = |reason, failed| {
            let step = Step {
                module: StepOf::Drain { failed },
                withheld: false,
                text: "2 pods (a/b, a/c)",
                ..step(reason)
            };
            let posts = step_posts(&step).into_iter();
            posts.map(|p| (p.reason, p.message)).collect::<Vec<_>>()
        };
        let failed = "the drain failed, a person is needed: 2 pods (a/b, a/c); `warden explain gpu-1` \
                      tells more";
        let want = ("DrainFailed".to_owned(), failed.to_owned());
        assert_eq!(of("deadline", true), [want]);
        let withheld = of("other_drainer", false);
        assert_eq!(withheld[0].0, "DrainWithheld");
        for reason in ["wanted", "kept_waiting", "empty", "breaker_withholds"] {
            assert_eq!(of(reason, false), [], "{reason}");
        }
    }

    #[test]
    fn an_end_of_a_repair_that_a_person_is_to_know_of_is_told_in_its_own_words() {
        let of = |what| {
            let step = Step {
                module: StepOf::Repair(what),
                withheld: false,
                text: "attempt 1 failed: why",
                ..step("object_failed")
            };
            let posts = step_posts(&step).into_iter();
            posts.map(|p| (p.reason, p.kind, p.message)).next()
        };
        let message = "attempt 1 failed: why; `warden explain gpu-1` tells more".to_owned();
        for (what, reason, kind) in [
            (RepairStep::Failed, "RepairFailed", "Warning"),
            (RepairStep::NeedsOperator, "RepairNeedsOperator", "Warning"),
        ] {
            let want = (reason.to_owned(), kind.to_owned(), message.clone());
            assert_eq!(of(what), Some(want));
        }
        assert_eq!(of(RepairStep::Quiet), None);
    }

    #[test]
    fn no_text_makes_a_message_that_the_api_server_refuses() {
        let long = "ä".repeat(2_000);
        let trip = Trip {
            pool: &long,
            bound: "level",
            rule: &long,
            check: &long,
            share: 1,
            counted: 1,
        };
        let long_name = "n".repeat(253);
        let step = Step {
            node: &long_name,
            text: &long,
            trip: Some(trip),
            ..step("paced")
        };
        let drain = Step {
            module: StepOf::Drain { failed: true },
            ..step.clone()
        };
        let repair = Step {
            module: StepOf::Repair(RepairStep::Failed),
            ..step.clone()
        };
        let posts = [&step, &drain, &repair].map(step_posts);
        for post in posts.into_iter().flatten() {
            assert!(post.message.len() <= 1_024, "{}", post.message.len());
        }
    }
}
