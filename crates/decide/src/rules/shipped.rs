//! The rule sets that ship.

use super::{RuleConfig, RuleSetConfig};

/// Opt-out of a node, from the reference.
const NOT_OPTED_OUT: &str = "!('k8saas.nvidia.com/ManagedByNVSentinel' in node.metadata.labels && \
     node.metadata.labels['k8saas.nvidia.com/ManagedByNVSentinel'] == \"false\")";

/// The reference's six, in its order and with its names and expressions (quarantine 4); then
/// ours, which are off until a person switches them on.
pub fn shipped() -> Vec<RuleSetConfig> {
    let table: [(&str, bool, &str); 11] = [
        (
            "GPU fatal error ruleset",
            true,
            "event.agent == 'gpu-health-monitor' && event.componentClass == 'GPU' && event.isFatal == true",
        ),
        (
            "CSP health monitor fatal error ruleset",
            true,
            "event.agent == 'csp-health-monitor' && event.checkName == 'CSPMaintenance' && event.isFatal == true",
        ),
        (
            "Syslog fatal error ruleset",
            true,
            "event.agent == 'syslog-health-monitor' && (event.componentClass == 'GPU' || event.componentClass == 'NIC') && event.isFatal == true",
        ),
        (
            "NIC health monitor fatal error ruleset",
            true,
            "event.agent == 'nic-health-monitor' && event.isFatal == true",
        ),
        (
            "Kubernetes object monitor fatal error ruleset",
            true,
            "event.agent == 'kubernetes-object-monitor' && event.isFatal == true",
        ),
        (
            "Preflight check fatal error ruleset",
            true,
            "event.agent.startsWith('preflight-') && event.isFatal == true",
        ),
        (
            "Health events analyzer fatal error ruleset",
            false,
            "event.agent == 'health-events-analyzer' && event.isFatal == true",
        ),
        (
            "Node problem detector fatal error ruleset",
            false,
            "event.agent == 'node-problem-detector' && event.isFatal == true",
        ),
        (
            "Host fatal error ruleset",
            false,
            "event.agent == 'warden-host' && event.isFatal == true",
        ),
        (
            "Slurm drain monitor fatal error ruleset",
            false,
            "event.agent == 'slurm-drain-monitor' && event.isFatal == true",
        ),
        (
            "Maintenance request fatal error ruleset",
            false,
            "event.checkName == 'MaintenanceRequest' && event.isFatal == true",
        ),
    ];
    table
        .into_iter()
        .map(|(name, enabled, expression)| RuleSetConfig {
            name: name.to_owned(),
            version: "1".to_owned(),
            enabled,
            priority: 0,
            all: vec![rule("HealthEvent", expression), rule("Node", NOT_OPTED_OUT)],
            any: Vec::new(),
            taint: None,
            cordon: true,
        })
        .collect()
}

fn rule(kind: &str, expression: &str) -> RuleConfig {
    RuleConfig {
        kind: kind.to_owned(),
        expression: expression.to_owned(),
    }
}
