//! The rule sets that ship: what they match, and the opt-out that all of them carry.

use super::*;

fn not_opted_out(node: &NodeValue) -> (bool, usize) {
    let n0 = shipped()[0].all[1].clone();
    outcome(
        set("s", vec![n0], Vec::new()),
        &event("a", "c", true, &[]),
        node,
    )
}

#[test]
fn row_046_a_node_that_opts_in_matches() {
    assert_eq!(not_opted_out(&labels(&[(OPT_OUT, "true")])), (true, 0));
}

#[test]
fn row_048_a_node_that_opts_out_fails_without_error() {
    assert_eq!(not_opted_out(&labels(&[(OPT_OUT, "false")])), (false, 0));
}

#[test]
fn a_node_without_labels_or_with_others_has_not_opted_out() {
    assert_eq!(not_opted_out(&labels(&[])), (true, 0));
    assert_eq!(not_opted_out(&labels(&[("zone", "a")])), (true, 0));
    assert_eq!(not_opted_out(&NodeValue::Map(BTreeMap::new())), (true, 0));
}

#[test]
fn the_shipped_sets_match_what_the_reference_s_match() {
    let sets = RuleSets::compile(&shipped()).unwrap();
    let table = [
        (
            "gpu-health-monitor",
            "GPU",
            "GpuXidError",
            true,
            Some("GPU fatal error ruleset"),
        ),
        ("gpu-health-monitor", "GPU", "GpuXidError", false, None),
        ("gpu-health-monitor", "NVSwitch", "GpuXidError", true, None),
        (
            "csp-health-monitor",
            "GPU",
            "CSPMaintenance",
            true,
            Some("CSP health monitor fatal error ruleset"),
        ),
        (
            "syslog-health-monitor",
            "GPU",
            "SysLogsXIDError",
            true,
            Some("Syslog fatal error ruleset"),
        ),
        (
            "syslog-health-monitor",
            "NIC",
            "X",
            true,
            Some("Syslog fatal error ruleset"),
        ),
        (
            "nic-health-monitor",
            "NIC",
            "X",
            true,
            Some("NIC health monitor fatal error ruleset"),
        ),
        (
            "kubernetes-object-monitor",
            "Node",
            "X",
            true,
            Some("Kubernetes object monitor fatal error ruleset"),
        ),
        (
            "preflight-dcgm",
            "GPU",
            "X",
            true,
            Some("Preflight check fatal error ruleset"),
        ),
        ("health-events-analyzer", "GPU", "X", true, None),
        ("warden-host", "Host", "X", true, None),
    ];
    for (agent, class, check, fatal, want) in table {
        let event = HealthEvent {
            component_class: class.to_owned(),
            ..event(agent, check, fatal, &[])
        };
        let names = sets.evaluate(&event, || labels(&[])).names();
        assert_eq!(
            names.iter().next().map(String::as_str),
            want,
            "{agent} {check}"
        );
        let opted_out = sets.evaluate(&event, || labels(&[(OPT_OUT, "false")]));
        assert!(opted_out.matched.is_empty() && opted_out.errors.is_empty());
    }
}
