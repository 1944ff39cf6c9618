use serde_json::json;

use super::*;
use crate::nodes::Wanted;

/// A node whose condition Ready has this status since then.
fn node(ready: Option<(&str, Option<&str>)>) -> NodeFacts {
    let condition = |(status, since): (&str, Option<&str>)| {
        let mut condition = json!({ "type": "Ready", "status": status });
        if let Some(since) = since {
            condition["lastTransitionTime"] = json!(since);
        }
        condition
    };
    let conditions: Vec<_> = ready.into_iter().map(condition).collect();
    let line = json!({ "type": "ADDED", "object": {
        "metadata": { "name": "n", "uid": "u", "resourceVersion": "1" },
        "status": { "conditions": conditions } } });
    crate::nodes::decoded(&line.to_string(), Wanted::ours(""))
}

#[test]
fn a_node_is_out_since_it_is_not_ready_or_since_its_silence_is_seen() {
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let (before, now, ahead) = (
        "2026-01-02T03:00:00Z",
        "2026-01-02T03:10:00Z",
        "2026-01-02T03:20:00Z",
    );
    // (Ready and since when, whether the agent is silent, since when the node is out)
    let table = [
        (None, false, None),
        (None, true, Some(now)),
        (Some(("True", Some(before))), false, None),
        (Some(("True", Some(before))), true, Some(now)),
        (Some(("False", Some(before))), false, Some(before)),
        (Some(("Unknown", Some(before))), true, Some(before)),
        // A node that does not say since when, and one whose clock runs ahead.
        (Some(("False", None)), false, Some(now)),
        (Some(("Unknown", Some(ahead))), false, Some(now)),
    ];
    for (ready, quiet, want) in table {
        let since = out_since(&node(ready), quiet, at(now));
        assert_eq!(since, want.map(at), "{ready:?} {quiet}");
    }
}
