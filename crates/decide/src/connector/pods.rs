//! Core/v1 Events for what a drain waits for, in the reference's form.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_api::names;

use super::EventPost;
use crate::drain::{BlockedBy, Blocker};

/// Longest list in a message, in bytes; the API server takes 1,024 in all.
const LIST: usize = 400;
/// Longest text that is taken over from a server, in bytes.
const WORDS: usize = 200;

/// The Events about the pods that a drain of a node waits for. Pods that only go make none.
pub fn drain_posts(node: &str, blockers: &[Blocker], at: Timestamp) -> Vec<EventPost> {
    let completion = [names::AWAITING_POD_COMPLETION, "Normal"];
    let timeout = [names::WAITING_BEFORE_FORCE_DELETE, "Warning"];
    let budget = [names::EVICTION_BLOCKED, "Warning"];
    let all = [
        (completion, awaits_completion(blockers)),
        (timeout, waits_for_time(blockers)),
        (budget, kept_by_budgets(blockers)),
    ];
    let posts = all.into_iter().filter_map(|([reason, kind], message)| {
        Some(EventPost {
            node: node.to_owned(),
            kind: kind.to_owned(),
            reason: reason.to_owned(),
            message: message?,
            component: names::FIELD_MANAGER.text.to_owned(),
            at,
        })
    });
    posts.collect()
}

fn awaits_completion(blockers: &[Blocker]) -> Option<String> {
    let pods = list(blockers, |b| b.why == BlockedBy::Completion, qualified)?;
    Some(format!("Waiting for following pods to finish: {pods}"))
}

fn waits_for_time(blockers: &[Blocker]) -> Option<String> {
    let of_time = |b: &Blocker| b.why == BlockedBy::Timeout;
    let pods = list(blockers, of_time, |b| b.pod.name.clone())?;
    let namespaces = list(blockers, of_time, |b| b.pod.namespace.clone())?;
    let waiting = blockers.iter().filter(|b| of_time(b));
    let at = waiting.filter_map(|b| b.until).min()?;
    let second = Timestamp::from_second(at.as_second()).unwrap_or(at);
    Some(format!(
        "Waiting for following pods to finish: {pods} in namespace: {namespaces} or they will be \
         force deleted on: {second}"
    ))
}

fn kept_by_budgets(blockers: &[Blocker]) -> Option<String> {
    let is_kept = |b: &Blocker| matches!(b.why, BlockedBy::Budget(_));
    let pods = list(blockers, is_kept, qualified)?;
    let mut words = blockers.iter().filter_map(|blocker| match &blocker.why {
        BlockedBy::Budget(words) => Some(words.as_str()),
        BlockedBy::Asked
        | BlockedBy::Terminating
        | BlockedBy::Failed(_)
        | BlockedBy::Completion
        | BlockedBy::Timeout
        | BlockedBy::Came => None,
    });
    let words = words.next().unwrap_or_default();
    let words = &words[..words.floor_char_boundary(WORDS)];
    Some(format!(
        "Disruption budgets do not allow the eviction of: {pods}: {words}"
    ))
}

fn qualified(blocker: &Blocker) -> String {
    format!("{}/{}", blocker.pod.namespace, blocker.pod.name)
}

/// `[a b c]`, sorted, each once, of more than fit the number; none of nothing.
fn list(
    blockers: &[Blocker],
    is: impl Fn(&Blocker) -> bool,
    name: impl Fn(&Blocker) -> String,
) -> Option<String> {
    let names: BTreeSet<String> = blockers.iter().filter(|b| is(b)).map(name).collect();
    if names.is_empty() {
        return None;
    }
    let mut text = String::from("[");
    for (index, name) in names.iter().enumerate() {
        if index > 0 {
            text.push(' ');
        }
        if text.len() + name.len() > LIST && index > 0 {
            // Writing to a string can't fail.
            let _ = write!(text, "+{} more", names.len() - index);
            break;
        }
        text.push_str(name);
    }
    text.push(']');
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::PodRef;
    use crate::kit::at;

    fn blocker(namespace: &str, name: &str, why: BlockedBy) -> Blocker {
        Blocker {
            pod: PodRef {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: "u".to_owned(),
            },
            why,
            until: Some(at(60)),
        }
    }

    #[test]
    fn an_event_says_what_the_references_says_in_one_order() {
        let blockers = [
            blocker("b", "z", BlockedBy::Completion),
            blocker("b", "y", BlockedBy::Timeout),
            blocker("a", "x", BlockedBy::Timeout),
            blocker("a", "z", BlockedBy::Completion),
            blocker(
                "a",
                "w",
                BlockedBy::Budget("needs 2 healthy pods".to_owned()),
            ),
            blocker("a", "v", BlockedBy::Terminating),
            blocker("a", "u", BlockedBy::Asked),
        ];
        let said: Vec<_> = drain_posts("gpu-1", &blockers, at(0))
            .into_iter()
            .map(|post| (post.kind, post.reason, post.message))
            .collect();
        let post = |kind: &str, reason: &str, message: &str| {
            (kind.to_owned(), reason.to_owned(), message.to_owned())
        };
        let want = [
            post(
                "Normal",
                "AwaitingPodCompletion",
                "Waiting for following pods to finish: [a/z b/z]",
            ),
            post(
                "Warning",
                "WaitingBeforeForceDelete",
                "Waiting for following pods to finish: [x y] in namespace: [a b] or they will be \
                 force deleted on: 1970-01-01T01:00:00Z",
            ),
            post(
                "Warning",
                "EvictionBlocked",
                "Disruption budgets do not allow the eviction of: [a/w]: needs 2 healthy pods",
            ),
        ];
        assert_eq!(said, want);
        assert_eq!(drain_posts("gpu-1", &blockers[5..], at(0)), []);
    }

    #[test]
    fn no_number_of_pods_makes_a_message_that_the_api_server_refuses() {
        let words = "ä".repeat(2_000);
        let pods = |why: &BlockedBy| -> Vec<Blocker> {
            let name = |n: usize| format!("{n:03}{}", "n".repeat(250));
            (0..300)
                .map(|n| blocker(&"s".repeat(63), &name(n), why.clone()))
                .collect()
        };
        for why in [
            BlockedBy::Completion,
            BlockedBy::Timeout,
            BlockedBy::Budget(words),
        ] {
            let posts = drain_posts(&"n".repeat(253), &pods(&why), at(0));
            let message = &posts[0].message;
            assert!(message.len() <= 1_024, "{}", message.len());
            assert!(message.contains(" more]"), "{message}");
        }
    }
}
