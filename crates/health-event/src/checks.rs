//! Names of agents, classes and checks, and how the faults of a check come to an end.

/// What brings a check's faults to an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClearedBy {
    /// The check reads that the part is well again.
    Reading,
    /// A reboot after which the check does not find the fault again.
    Reboot,
    /// Whichever comes first.
    Either,
}

/// One check that we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// Agent that speaks.
    pub agent: &'static str,
    /// Kind of part.
    pub component_class: &'static str,
    /// Name of the check, which is also the type of the node condition.
    pub name: &'static str,
    /// What ends its faults.
    pub cleared_by: ClearedBy,
    /// Whether the reference writes a condition of this type too.
    pub reference: bool,
}

/// Agent name of everything read from the kernel log, as the reference spells it.
pub const SYSLOG_AGENT: &str = "syslog-health-monitor";
/// Agent name of Warden's own agent.
pub const WARDEN_AGENT: &str = "warden-agent";
/// XIDs of the kernel log.
pub const XID: &str = "SysLogsXIDError";
/// The controller's: no agent reports from a node that should have one.
pub const AGENT_SILENT: &str = "AgentSilent";
/// The controller's: several agents report as one node.
pub const AGENT_CONFLICT: &str = "AgentConflict";
/// The controller's: a node's agent runs on another machine than the node object names.
pub const AGENT_MACHINE: &str = "AgentMachineMismatch";
/// The controller's: events of a node opened nothing, because it has as many open faults as a node may
/// have.
pub const TOO_MANY_FAULTS: &str = "TooManyFaults";
/// The controller's: the agents of a pool fall silent together.
pub const POOL_SILENT: &str = "PoolSilent";
/// The controller's: type of the condition of a node that would be taken out, or given back, if no
/// other fault-quarantine ran in the cluster.
pub const OTHER_QUARANTINE: &str = "OtherQuarantineActive";
/// The controller's: type of the condition of a node with more fatal checks of senders' own than a
/// node has conditions for.
pub const MORE_FAULTS: &str = "WardenMoreFaults";
/// The controller's: reason of the Event on a node that should be out of service and is withheld.
pub const QUARANTINE_WITHHELD: &str = "QuarantineWithheld";
/// The controller's: reason of the Event on the node at which a pool's breaker tripped.
pub const BREAKER_TRIPPED: &str = "BreakerTripped";

/// Under these names only the controller speaks.
const CONTROLLERS: [&str; 9] = [
    TOO_MANY_FAULTS,
    AGENT_SILENT,
    AGENT_CONFLICT,
    AGENT_MACHINE,
    POOL_SILENT,
    OTHER_QUARANTINE,
    MORE_FAULTS,
    QUARANTINE_WITHHELD,
    BREAKER_TRIPPED,
];

/// Whether the controller alone speaks under a check's name, whatever agent is named beside it: the
/// type of a node's condition is the check's name alone.
pub fn is_controllers(name: &str) -> bool {
    CONTROLLERS.contains(&name)
}

/// Whether Warden alone, its agents or its controller, speaks under a check's name.
pub fn is_wardens(name: &str) -> bool {
    let ours = |check: &Check| check.agent == WARDEN_AGENT && check.name == name;
    is_controllers(name) || CHECKS.iter().any(ours)
}

/// Every check with a known way to an end. Source of the reference's names:
/// log-and-nic-detection 1; ours: the design's wire-agent 2.
pub const CHECKS: [Check; 12] = [
    check(SYSLOG_AGENT, "GPU", XID, ClearedBy::Reboot, true),
    check(
        SYSLOG_AGENT,
        "GPU",
        "SysLogsSXIDError",
        ClearedBy::Reboot,
        true,
    ),
    check(
        SYSLOG_AGENT,
        "GPU",
        "SysLogsGPUFallenOff",
        ClearedBy::Reboot,
        true,
    ),
    check(
        SYSLOG_AGENT,
        "NIC",
        "SysLogsNICDriverError",
        ClearedBy::Reboot,
        true,
    ),
    check(
        WARDEN_AGENT,
        "Agent",
        "KernelLogUnreadable",
        ClearedBy::Reading,
        false,
    ),
    check(
        WARDEN_AGENT,
        "Agent",
        "SpoolUnwritable",
        ClearedBy::Reading,
        false,
    ),
    check(
        WARDEN_AGENT,
        "Agent",
        "EventsLost",
        ClearedBy::Reboot,
        false,
    ),
    check(
        WARDEN_AGENT,
        "Agent",
        "ClockSkew",
        ClearedBy::Reading,
        false,
    ),
    check(
        WARDEN_AGENT,
        "Agent",
        AGENT_SILENT,
        ClearedBy::Reading,
        false,
    ),
    check(
        WARDEN_AGENT,
        "Agent",
        AGENT_CONFLICT,
        ClearedBy::Reading,
        false,
    ),
    check(
        WARDEN_AGENT,
        "Agent",
        AGENT_MACHINE,
        ClearedBy::Reading,
        false,
    ),
    check(
        WARDEN_AGENT,
        "Agent",
        TOO_MANY_FAULTS,
        ClearedBy::Reading,
        false,
    ),
];

/// An older name of a check: what was or is said under it is about the present one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alias {
    /// Agent, as it was called.
    pub old_agent: &'static str,
    /// Check, as it was called.
    pub old_check: &'static str,
    /// Agent, as it is called now.
    pub agent: &'static str,
    /// Check, as it is called now: never an older name itself.
    pub check: &'static str,
}

/// Older names of agents and checks. Events are read under the present names, and what a store
/// holds under an older one is renamed when it opens.
pub const ALIASES: [Alias; 0] = [];

const fn check(
    agent: &'static str,
    component_class: &'static str,
    name: &'static str,
    cleared_by: ClearedBy,
    reference: bool,
) -> Check {
    Check {
        agent,
        component_class,
        name,
        cleared_by,
        reference,
    }
}

/// The check of this agent and name, if we know it.
pub fn find(agent: &str, name: &str) -> Option<&'static Check> {
    CHECKS.iter().find(|c| c.agent == agent && c.name == name)
}

/// What ends the faults of a check; one that we do not know is ended by its own readings.
pub fn cleared_by(agent: &str, name: &str) -> ClearedBy {
    find(agent, name).map_or(ClearedBy::Reading, |c| c.cleared_by)
}

/// The present agent and check name for a name that may be an older one.
pub fn present_name<'a>(agent: &'a str, name: &'a str, aliases: &[Alias]) -> (&'a str, &'a str) {
    aliases
        .iter()
        .find(|alias| alias.old_agent == agent && alias.old_check == name)
        .map_or((agent, name), |alias| (alias.agent, alias.check))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_log_checks_are_ended_by_a_reboot() {
        assert_eq!(cleared_by(SYSLOG_AGENT, XID), ClearedBy::Reboot);
        assert_eq!(cleared_by("someone", "Else"), ClearedBy::Reading);
    }

    #[test]
    fn what_warden_says_of_itself_is_its_own_and_the_references_names_are_not() {
        for name in [MORE_FAULTS, OTHER_QUARANTINE, AGENT_SILENT, POOL_SILENT] {
            assert!(is_wardens(name) && is_controllers(name), "{name}");
        }
        for name in ["EventsLost", "ClockSkew", "SpoolUnwritable"] {
            assert!(is_wardens(name) && !is_controllers(name), "{name}");
        }
        for name in [XID, "GpuMemWatch", "Ready"] {
            assert!(!is_wardens(name), "{name}");
        }
    }

    #[test]
    fn an_older_name_reads_as_the_present_one() {
        let aliases = [Alias {
            old_agent: "old-agent",
            old_check: "Old",
            agent: "new-agent",
            check: "New",
        }];
        assert_eq!(
            present_name("old-agent", "Old", &aliases),
            ("new-agent", "New")
        );
        assert_eq!(
            present_name("old-agent", "Other", &aliases),
            ("old-agent", "Other")
        );
    }

    #[test]
    fn an_alias_names_what_is_no_older_name_itself() {
        for alias in ALIASES {
            let name = (alias.agent, alias.check);
            assert_eq!(present_name(name.0, name.1, &ALIASES), name, "{alias:?}");
        }
    }
}
