//! What an incident costs the API server.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::kit::Loop;
use super::settings::Settings;

/// Calls of one incident beside its evictions, and how often each is made at most: marks put on, label
/// and marks changed on the way, marks taken off; the condition put and taken off; the repair's object,
/// its lock, and what its status says of signal and end. One more of each write that may find its
/// object changed by another, and of the label where a slow machine orders later than a second after the drain.
const CALLS: [(&str, usize); 7] = [
    ("create leases/", 1),
    ("create rebootnodes/", 1),
    ("delete leases/", 1),
    ("get nodes/", 1),
    ("patch nodes/", 4),
    ("patch nodes/status", 3),
    ("patch rebootnodes/status", 3),
];
/// Pods that are evicted.
const PODS: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn an_incident_with_a_repair_costs_each_call_once_and_one_a_pod() {
    const USER: &str = "w-counted";
    let settings = Settings {
        user: Some(USER),
        // A new leader waits before its first order, and the node says meanwhile that it is drained.
        set: vec![("lease", "enabled", "false")],
        ..Settings::default()
    };
    let mut at = Loop::start_with("w-costs", settings).await;
    at.work("at-once", PODS).await;
    let since = Timestamp::now();
    at.falls_ill();
    at.rebooted().await;
    at.released().await;
    at.once().await;
    let mut calls: BTreeMap<String, usize> = BTreeMap::new();
    for call in at.turn.testbed.audit_events().unwrap() {
        // Its own Lease is renewed and the API server's version asked whatever happens; a watch waits for
        // what others do.
        let is_lease = call.resource == "leases" && call.name == e2e::programs::LEASE;
        let is_own = is_lease || call.resource.is_empty();
        if call.user == USER && call.at >= since && call.verb != "watch" && !is_own {
            let call = format!("{} {}/{}", call.verb, call.resource, call.subresource);
            *calls.entry(call).or_default() += 1;
        }
    }
    println!("calls of an incident with {PODS} pods: {calls:?}");
    assert_eq!(
        calls.remove("create pods/eviction"),
        Some(PODS),
        "{calls:?}"
    );
    let most = BTreeMap::from(CALLS);
    let is_few = |(call, count): (&String, &usize)| {
        most.get(call.as_str()).is_some_and(|most| count <= most)
    };
    assert!(calls.iter().all(is_few), "{calls:?}");
    let made = calls["create rebootnodes/"] + calls["patch nodes/"];
    assert!(made >= 3, "{calls:?}");
    at.controller.stop().unwrap();
}
