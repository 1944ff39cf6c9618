//! What a reporter says: one observation about one part of one node.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

/// One observation, as it came over the wire and passed the checks there. Field names and
/// meanings are those of `datamodels.HealthEvent` of the reference.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HealthEvent {
    /// The sender's id; on the socket the agent replaces it and keeps the sender's in metadata.
    pub id: String,
    /// Version of the contract that the sender speaks; kept, never used.
    pub version: u32,
    /// The program that observed, for example `syslog-health-monitor`.
    pub agent: String,
    /// The kind of part, for example `GPU`.
    pub component_class: String,
    /// The check that speaks; never empty. It is also the type of the node condition.
    pub check_name: String,
    /// Whether the sender says that work on the part can't go on.
    pub is_fatal: bool,
    /// Whether this says that all is well with what it names.
    pub is_healthy: bool,
    /// For people; at most 16 KiB.
    pub message: String,
    /// What the sender asks for.
    pub recommended_action: RecommendedAction,
    /// The name of the action if it is [`RecommendedAction::Custom`]; else empty.
    pub custom_recommended_action: String,
    /// Error codes, for example `79`; at most 64.
    pub error_codes: Vec<String>,
    /// What the event is about; grouped into devices by [`crate::devices_of`].
    pub entities: Vec<Entity>,
    /// Free facts, and our own under `warden.dev/` (see [`crate::keys`]).
    pub metadata: BTreeMap<String, String>,
    /// When the sender says that it happened.
    pub generated_at: Option<Timestamp>,
    /// The node, a DNS subdomain.
    pub node_name: String,
    /// What the quarantine module is told beyond its rules.
    pub quarantine_overrides: Option<BehaviourOverrides>,
    /// What the drain module is told beyond its policies.
    pub drain_overrides: Option<BehaviourOverrides>,
    /// How far the event may act.
    pub strategy: ProcessingStrategy,
}

/// A named part: `GPU 0`, `PCI 0000:17:00`, `NICPort 1`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entity {
    /// The type, as the reference spells it.
    pub kind: String,
    /// The value as sent; compared in its normal form only.
    pub value: String,
}

impl Entity {
    /// An entity from its two texts.
    pub fn new(kind: &str, value: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            value: value.to_owned(),
        }
    }
}

/// `force` and `skip` of the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BehaviourOverrides {
    /// Act even where no rule matches; honoured from allowed senders only.
    pub force: bool,
    /// Do not act.
    pub skip: bool,
}

/// What should be done about a fault. Numbers are those of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RecommendedAction {
    /// Nothing (0).
    #[default]
    None,
    /// Reset the component (2).
    ComponentReset,
    /// A person must look (5).
    ContactSupport,
    /// Run the field diagnostic (6).
    RunFieldDiag,
    /// Restart the virtual machine (15).
    RestartVm,
    /// Restart the bare-metal host (24).
    RestartBm,
    /// Replace the virtual machine (25).
    ReplaceVm,
    /// Run the DCGM end-user diagnostic (26).
    RunDcgmEud,
    /// The name stands in `custom_recommended_action` (27).
    Custom,
    /// The sender does not know (99).
    Unknown,
    /// A number that this version does not know: kept as it came, treated as
    /// [`RecommendedAction::ContactSupport`].
    Unrecognised(i32),
}

impl RecommendedAction {
    const NAMED: [(Self, i32, &'static str); 10] = [
        (Self::None, 0, "NONE"),
        (Self::ComponentReset, 2, "COMPONENT_RESET"),
        (Self::ContactSupport, 5, "CONTACT_SUPPORT"),
        (Self::RunFieldDiag, 6, "RUN_FIELDDIAG"),
        (Self::RestartVm, 15, "RESTART_VM"),
        (Self::RestartBm, 24, "RESTART_BM"),
        (Self::ReplaceVm, 25, "REPLACE_VM"),
        (Self::RunDcgmEud, 26, "RUN_DCGMEUD"),
        (Self::Custom, 27, "CUSTOM"),
        (Self::Unknown, 99, "UNKNOWN"),
    ];

    /// From the wire's number; every number has an answer.
    pub fn from_number(number: i32) -> Self {
        Self::NAMED
            .iter()
            .find(|(_, n, _)| *n == number)
            .map_or(Self::Unrecognised(number), |(action, _, _)| *action)
    }

    /// The wire's number.
    pub fn number(self) -> i32 {
        if let Self::Unrecognised(number) = self {
            return number;
        }
        Self::NAMED
            .iter()
            .find(|(a, _, _)| *a == self)
            .map_or(99, |(_, n, _)| *n)
    }

    /// The wire's name; a number without one reads as `CONTACT_SUPPORT`, which is how it acts.
    pub fn name(self) -> &'static str {
        Self::NAMED
            .iter()
            .find(|(a, _, _)| *a == self)
            .map_or("CONTACT_SUPPORT", |(_, _, n)| *n)
    }

    /// From the wire's name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMED
            .iter()
            .find(|(_, _, n)| *n == name)
            .map(|(action, _, _)| *action)
    }

    /// How strong a repair the action asks for: while a fault is open its action only rises.
    /// A stronger repair contains the weaker ones (terminate > hand-over > reboot > reset);
    /// asking for a person stands above the automatic repairs, because they can't answer it.
    pub fn strength(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Unknown => 1,
            Self::ComponentReset => 2,
            Self::RunFieldDiag | Self::RunDcgmEud => 3,
            Self::RestartVm => 4,
            Self::RestartBm => 5,
            Self::Custom => 6,
            Self::ReplaceVm => 7,
            Self::ContactSupport | Self::Unrecognised(_) => 8,
        }
    }
}

impl fmt::Display for RecommendedAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How far an event may act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum ProcessingStrategy {
    /// Everything (1). An unspecified strategy (0) is this.
    #[default]
    ExecuteRemediation,
    /// Stored, exported, analysed; no effect on nodes (3).
    StoreAndAnalyse,
    /// Stored and exported only (2). An unknown strategy is this.
    StoreOnly,
}

/// The fault space of a strategy: a fault that may act and one that is only observed are two
/// faults, even on the same device. A healthy event closes in its own space and in all weaker
/// ones. The order of the variants is from strong to weak.
pub type Space = ProcessingStrategy;

impl ProcessingStrategy {
    /// From the wire's number.
    pub fn from_number(number: i32) -> Self {
        match number {
            0 | 1 => Self::ExecuteRemediation,
            3 => Self::StoreAndAnalyse,
            _ => Self::StoreOnly,
        }
    }

    /// The wire's number.
    pub fn number(self) -> i32 {
        match self {
            Self::ExecuteRemediation => 1,
            Self::StoreAndAnalyse => 3,
            Self::StoreOnly => 2,
        }
    }

    /// The wire's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ExecuteRemediation => "EXECUTE_REMEDIATION",
            Self::StoreAndAnalyse => "STORE_AND_ANALYSE",
            Self::StoreOnly => "STORE_ONLY",
        }
    }

    /// Whether a healthy event of this strategy closes faults of that one.
    pub fn closes(self, other: Self) -> bool {
        self <= other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_go_both_ways() {
        for (action, number, name) in RecommendedAction::NAMED {
            assert_eq!(RecommendedAction::from_number(number), action);
            assert_eq!(action.number(), number);
            assert_eq!(RecommendedAction::from_name(name), Some(action));
            assert_eq!(action.name(), name);
        }
        let odd = RecommendedAction::from_number(77);
        assert_eq!((odd.number(), odd.name()), (77, "CONTACT_SUPPORT"));
        assert_eq!(odd.strength(), RecommendedAction::ContactSupport.strength());
    }

    #[test]
    fn an_unspecified_strategy_acts_and_an_unknown_one_only_stores() {
        let numbers = [0, 1, 2, 3, 4, -1].map(|n| ProcessingStrategy::from_number(n).number());
        assert_eq!(numbers, [1, 1, 2, 3, 2, 2]);
    }
}
