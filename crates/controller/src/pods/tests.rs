use std::collections::BTreeSet;
use std::time::Duration;

use decide::drain::Phase;
use health_event::NodeName;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::decode::Pod;
use super::watch::{Plan, Steps, own_of};
use super::{MOST_OWN_WATCHES, Pods};
use crate::kubernetes::{Change, Trouble};

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn pod(node: &str, uid: &str) -> Value {
    json!({
        "metadata": { "name": format!("pod-{uid}"), "namespace": "train", "uid": uid },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }] },
        "status": { "phase": "Running" },
    })
}

fn read(object: Value) -> Pod {
    serde_json::from_value(object).unwrap()
}

fn put(pods: &Pods, feed: u64, object: Value) -> Vec<NodeName> {
    pods.take(feed, Change::Put(read(object)), Timestamp::now())
}

fn say(pods: &Pods, feed: u64, change: Change<Pod>) -> Vec<NodeName> {
    pods.take(feed, change, Timestamp::now())
}

/// UIDs of a node's pods, and whether they may be old.
fn known(pods: &Pods, node: &str) -> Option<(Vec<String>, bool)> {
    let known = pods.of_node(&name(node))?;
    let uids = known.pods.iter().map(|p| p.pod.uid.clone()).collect();
    Some((uids, known.old_since.is_some()))
}

#[test]
fn a_pod_is_read_for_what_a_drain_looks_at() {
    let with = |patch: Value| {
        let mut object = pod("n", "u");
        json_patch(&mut object, patch);
        read(object).facts()
    };
    let plain = with(json!({})).unwrap();
    assert_eq!(plain.pod.namespace, "train");
    assert_eq!(
        (plain.pod.name.as_str(), plain.pod.uid.as_str()),
        ("pod-u", "u")
    );
    assert!(!plain.of_daemon_set && !plain.is_mirror && !plain.has_devices);
    assert_eq!((plain.deleted_by, plain.not_ready_since), (None, None));
    assert_eq!(plain.phase, Phase::Running);

    let owners = json!({"metadata": {"ownerReferences": [{"kind": "X"}, {"kind": "DaemonSet"}]}});
    assert!(with(owners).unwrap().of_daemon_set);
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "hash"}}});
    assert!(with(mirror).unwrap().is_mirror);
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}});
    let at = "2026-01-02T03:04:05Z".parse().unwrap();
    assert_eq!(with(deleted).unwrap().deleted_by, Some(at));
    let unready = json!({"status": {"conditions": [
        {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}});
    assert_eq!(with(unready).unwrap().not_ready_since, Some(at));
    assert_eq!(
        with(json!({"status": {"phase": "Pending"}})).unwrap().phase,
        Phase::Pending
    );
    for over in ["Succeeded", "Failed"] {
        assert_eq!(with(json!({"status": {"phase": over}})), None, "{over}");
    }
}

#[test]
fn devices_are_known_by_annotation_limits_and_claims() {
    let limits = |name: &str| {
        json!({"spec": {"containers": [
        {"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "1", name: "1"}}}]}})
    };
    let init = json!({"spec": {"initContainers": [
        {"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}});
    let annotated = json!({"metadata": {"annotations": {"dgxc.nvidia.com/devices": "{}"}}});
    let claims = json!({"spec": {"resourceClaims": [{"name": "gpu"}]}});
    for (patch, want) in [
        (limits("nvidia.com/gpu"), true),
        (limits("nvidia.com/pgpu"), true),
        (limits("nvidia.com/mig-1g.10gb"), true),
        (limits("nvidia.com/gpu-memory"), false),
        (limits("memory"), false),
        (init, true),
        (annotated, true),
        (claims, true),
        (json!({}), false),
    ] {
        let mut object = pod("n", "u");
        json_patch(&mut object, patch.clone());
        assert_eq!(read(object).facts().unwrap().has_devices, want, "{patch}");
    }
}

/// Merges one object into another.
fn json_patch(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                json_patch(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch,
    }
}

#[test]
fn nothing_is_known_before_the_list_and_what_a_new_list_lacks_is_gone() {
    let (pods, now) = (Pods::default(), Instant::now());
    pods.want(&name("a"));
    let mut plan = Plan::default();
    let steps = plan.follow(&pods, now);
    assert_eq!(steps.own, [(name("a"), 1)]);
    say(&pods, 1, Change::Listing);
    assert!(put(&pods, 1, pod("a", "1")).is_empty(), "the list runs");
    put(&pods, 1, pod("a", "2"));
    assert_eq!(known(&pods, "a"), None);
    assert_eq!(say(&pods, 1, Change::Listed), [name("a")]);
    let two = |old| Some((vec!["1".to_owned(), "2".to_owned()], old));
    assert_eq!(known(&pods, "a"), two(false));

    assert_eq!(put(&pods, 1, pod("a", "3")), [name("a")]);
    let mut finished = pod("a", "3");
    finished["status"]["phase"] = json!("Succeeded");
    assert_eq!(put(&pods, 1, finished), [name("a")]);
    assert_eq!(known(&pods, "a"), two(false), "finished is as good as gone");
    say(&pods, 1, Change::Failed(Trouble::Other("away".to_owned())));
    assert_eq!(known(&pods, "a"), two(true), "kept, and said to be old");
    say(&pods, 1, Change::Listing);
    put(&pods, 1, pod("a", "2"));
    assert_eq!(known(&pods, "a"), two(true), "until all were said");
    say(&pods, 1, Change::Listed);
    assert_eq!(known(&pods, "a"), Some((vec!["2".to_owned()], false)));
    assert_eq!(
        say(&pods, 1, Change::Gone(read(pod("a", "2")))),
        [name("a")]
    );
    assert_eq!(known(&pods, "a"), Some((Vec::new(), false)));
    pods.release(&name("a"));
    pods.want(&name("a"));
    let steps = plan.follow(&pods, now);
    assert_eq!(
        (steps.end, steps.own),
        (vec![1], vec![(name("a"), 2)]),
        "wanted again it is listed anew"
    );
    pods.release(&name("a"));
    assert_eq!(known(&pods, "a"), None);
    assert_eq!(
        plan.follow(&pods, now),
        Steps {
            end: vec![2],
            ..Steps::default()
        }
    );
}

#[test]
fn one_watch_more_than_the_bound_is_one_over_all_pods_that_keeps_what_was_wanted() {
    let (pods, now) = (Pods::default(), Instant::now());
    let mut plan = Plan::default();
    let nodes: Vec<NodeName> = (0..=MOST_OWN_WATCHES)
        .map(|n| name(&format!("n{n}")))
        .collect();
    for node in &nodes[..MOST_OWN_WATCHES] {
        pods.want(node);
    }
    assert_eq!(plan.follow(&pods, now).own.len(), MOST_OWN_WATCHES);
    say(&pods, 1, Change::Listing);
    say(&pods, 1, Change::Listed);
    assert_eq!(known(&pods, "n0"), Some((Vec::new(), false)));

    pods.want(&nodes[MOST_OWN_WATCHES]);
    let steps = plan.follow(&pods, now);
    assert_eq!((steps.end.len(), steps.own.len()), (MOST_OWN_WATCHES, 0));
    let all = steps.all.unwrap();
    assert_eq!(
        known(&pods, "n0"),
        Some((Vec::new(), true)),
        "old until it has listed"
    );
    assert!(
        say(&pods, 1, Change::Listed).is_empty(),
        "an ended watch feeds nobody"
    );
    say(&pods, all, Change::Listing);
    put(&pods, all, pod("n0", "1"));
    put(&pods, all, pod("elsewhere", "2"));
    put(&pods, all, pod("", "3"));
    assert_eq!(say(&pods, all, Change::Listed).len(), nodes.len());
    assert_eq!(known(&pods, "n0"), Some((vec!["1".to_owned()], false)));
    assert_eq!(known(&pods, "elsewhere"), None);

    // One that comes later was not kept by it: it has its own.
    pods.want(&name("late"));
    let steps = plan.follow(&pods, now);
    assert_eq!((steps.own.len(), steps.all, steps.end.len()), (1, None, 0));
    assert_eq!(own_of(&plan), BTreeSet::from([&name("late")]));

    // Few again: each has its own.
    for node in &nodes[10..] {
        pods.release(node);
    }
    let steps = plan.follow(&pods, now);
    assert_eq!((steps.own.len(), steps.all), (10, None));
    assert_eq!(steps.end, [all]);
}

#[test]
fn a_burst_lists_all_pods_again_after_a_while_only_and_then_for_all_that_wait() {
    let (pods, begin) = (Pods::default(), Instant::now());
    let mut plan = Plan::default();
    let at = |millis| begin + Duration::from_millis(millis);
    let mut wanted = 0;
    let mut want = |count: usize| {
        for n in wanted..wanted + count {
            pods.want(&name(&format!("n{n:04}")));
        }
        wanted += count;
    };
    want(MOST_OWN_WATCHES + 1);
    let first = plan.follow(&pods, at(0));
    assert_eq!((first.all, first.again_at), (Some(1), None));
    // Those that come have their own watches as far as they go, and then wait.
    let mut lists = 0;
    for millis in [100, 500, 1_000, 1_999] {
        want(200);
        let steps = plan.follow(&pods, at(millis));
        assert_eq!(steps.again_at, Some(at(2_000)), "{millis}");
        lists += usize::from(steps.all.is_some());
        assert_eq!(own_of(&plan).len(), MOST_OWN_WATCHES);
    }
    assert_eq!(lists, 0);
    let all = plan.follow(&pods, at(2_000));
    assert_eq!((all.again_at, all.own.len()), (None, 0));
    assert_eq!(all.end.len(), MOST_OWN_WATCHES + 1);
    let feed = all.all.unwrap();
    say(&pods, feed, Change::Listing);
    assert_eq!(say(&pods, feed, Change::Listed).len(), pods.wanted());
    assert_eq!(plan.follow(&pods, at(2_001)), Steps::default());
}
