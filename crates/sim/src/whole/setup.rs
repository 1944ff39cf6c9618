//! What is fixed in one configuration of the whole loop.

use std::collections::BTreeMap;

use decide::drain::{self, AtDeadline, EvictMode, Namespaces};
use decide::quarantine::FaultFacts;
use decide::{janitor, remediation};
use health_event::incident::Rung;
use jiff::{SignedDuration, Timestamp};

use super::{What, Wrong};
use crate::world;

/// One move of the clock. All spans of the settings are counted in it, so that a timer is either due
/// or not.
pub(super) const TICK: SignedDuration = SignedDuration::from_mins(10);
/// The action that is repaired by a reboot.
pub const REBOOT: &str = "RESTART_BM";
/// An action that no repair is configured for.
pub const PERSON: &str = "CONTACT_SUPPORT";
/// Longer than any history.
const NEVER: SignedDuration = SignedDuration::from_hours(10_000);

/// How a pod leaves the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Leaves {
    /// It is evicted.
    Evicted,
    /// It finishes by itself.
    Completes,
}

/// One configuration: bounds, settings, and how often what may happen.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches of one configuration"
)]
pub struct Setup {
    pub(super) base: world::Setup,
    /// How often each bounded thing may happen.
    pub limits: BTreeMap<What, u8>,
    /// What each of the two faults asks for.
    pub actions: [&'static str; 2],
    /// Whether the sender of each of the two knows boots.
    pub knows_boots: [bool; 2],
    /// Identities of faults: 1 or 2. The first cordons, the second taints.
    pub faults: usize,
    /// Whether time passes also while the controller has something to do at once: deadlines of
    /// minutes run out within the milliseconds of a turn.
    pub restless_clock: bool,
    /// Pods on the node at first.
    pub pods: Vec<Leaves>,
    /// Whether an agent runs on the node.
    pub agent: bool,
    /// Settings of the drain.
    pub drain: drain::Policy,
    /// Settings of the remediation.
    pub remediation: remediation::Policy,
    /// Settings of the janitor.
    pub janitor: janitor::Policy,
    /// Reboots that may run at a time.
    pub max_parallel: usize,
    /// Whether the watch over repair objects may lag behind.
    pub lags: bool,
    /// Whether the node says how far drain and repair are; read by nobody here, it only makes more states.
    pub labels: bool,
    /// The rule that is broken on purpose.
    pub wrong: Option<Wrong>,
}

impl Setup {
    /// A configuration in which, beside what the loop does, so much may happen.
    pub fn new(limits: &[(What, u8)]) -> Self {
        let mut base = world::Setup::new(1, 2, &[]);
        base.policy.settle_timeout = TICK;
        Self {
            base,
            limits: limits.iter().copied().collect(),
            actions: [REBOOT, REBOOT],
            knows_boots: [true, true],
            faults: 1,
            restless_clock: false,
            pods: Vec::new(),
            agent: true,
            drain: drain_policy(),
            remediation: remediation_policy(),
            janitor: janitor_policy(),
            max_parallel: usize::MAX,
            lags: false,
            labels: false,
            wrong: None,
        }
    }

    /// With these pods on the node.
    #[must_use]
    pub fn with_pods(mut self, pods: &[Leaves]) -> Self {
        self.pods = pods.to_vec();
        self
    }

    /// With a rule that is broken on purpose.
    #[must_use]
    pub fn breaking(mut self, wrong: Wrong) -> Self {
        self.wrong = Some(wrong);
        self
    }

    /// Whether anybody waits for a place.
    pub(super) fn max_parallel_is_bound(&self) -> bool {
        self.max_parallel < usize::MAX
    }

    pub(super) fn is_wrong(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    /// The time after so many moves of the clock.
    pub fn now(clock: u16) -> Timestamp {
        Timestamp::UNIX_EPOCH + TICK * i32::from(clock)
    }

    pub(super) fn template(&self, fault: usize) -> &FaultFacts {
        self.base.template(0, fault)
    }
}

/// Not before the end of time.
#[must_use]
pub fn never() -> SignedDuration {
    NEVER
}

fn drain_policy() -> drain::Policy {
    let modes = [
        ("evicted", EvictMode::Immediate),
        ("completes", EvictMode::AllowCompletion),
    ];
    drain::Policy {
        mode: drain::Mode::Enforce,
        namespaces: Namespaces::new(modes, "").expect("two names are patterns"),
        grace: None,
        immediate_deadline: TICK,
        delete_after: NEVER,
        completion_deadline: Some(TICK * 2),
        at_deadline: AtDeadline::Fail,
        // What is passed over has its tests beside the decision; here each pod counts.
        stuck_timeout: NEVER,
        not_ready_timeout: NEVER,
        dead_kubelet_timeout: NEVER,
        gpu_pods_only: false,
        first_action_until: None,
    }
}

fn remediation_policy() -> remediation::Policy {
    let executor = remediation::Executor {
        rung: Rung::Reboot,
        deadline: TICK * 3,
    };
    remediation::Policy {
        executors: BTreeMap::from([(REBOOT.to_owned(), executor)]),
        ladder: vec![REBOOT.to_owned()],
        max_attempts: 2,
        window: SignedDuration::from_hours(24),
        settle_timeout: TICK,
        queue_timeout: janitor_policy().queue_timeout,
        mode: remediation::Mode::Enforce,
        first_action_until: None,
    }
}

fn janitor_policy() -> janitor::Policy {
    janitor::Policy {
        timeout: TICK * 2,
        queue_timeout: TICK * 6,
        no_reboot_after: TICK,
        ask_interval: SignedDuration::from_secs(15),
        manual: false,
    }
}
