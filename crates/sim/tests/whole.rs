//! The whole loop, checked in every history of small configurations.

use std::collections::BTreeSet;

use decide::drain::{self, AtDeadline};
use decide::remediation;
use sim::whole::{Leaves, PERSON, Setup, What};

use crate::looped::{Taken, check};
use What::*;

const PODS: &[Leaves] = &[Leaves::Evicted, Leaves::Completes];

/// One configuration.
struct Config {
    name: &'static str,
    limits: &'static [(What, u8)],
    pods: &'static [Leaves],
    /// What else is set.
    set: fn(&mut Setup),
    /// What is done in some history.
    taken: &'static [Taken],
    /// How many states there are.
    states: usize,
}

const fn nothing(_: &mut Setup) {}

/// What every repair goes through.
const REPAIRED: &[Taken] = &[
    ("quarantine", "fault_matched"),
    ("quarantine", "write_seen"),
    ("drain", "nothing_to_do"),
    ("remediation", "faults_ask"),
    ("remediation", "node_empty"),
    ("remediation", "order"),
    ("remediation", "object_seen"),
    ("janitor", "lock"),
    ("janitor", "intend"),
    ("janitor", "send"),
    ("janitor", "sent"),
    ("janitor", "status"),
    ("janitor", "ask"),
    ("janitor", "Succeeded"),
    ("janitor", "unlock"),
    ("remediation", "other_boot"),
    ("quarantine", "recovered"),
];

const CONFIGS: [Config; 33] = [
    Config {
        name: "a fault",
        limits: &[(Break, 1)],
        pods: &[],
        set: nothing,
        taken: REPAIRED,
        states: 174,
    },
    Config {
        name: "pods and crashes",
        limits: &[(Break, 1), (Crash, 2)],
        pods: PODS,
        set: nothing,
        taken: &[
            ("drain", "wanted"),
            ("drain", "evict"),
            ("drain", "empty"),
            ("quarantine", "recovered"),
        ],
        states: 1_370,
    },
    Config {
        name: "a pod comes late",
        limits: &[(Break, 1), (PodComes, 1), (Crash, 1)],
        pods: PODS,
        set: nothing,
        taken: &[("drain", "came_late"), ("quarantine", "recovered")],
        states: 3_807,
    },
    Config {
        name: "again, before, during and after",
        limits: &[(Break, 2)],
        pods: &[],
        set: nothing,
        taken: &[("remediation", "faults_ask"), ("quarantine", "recovered")],
        states: 4_638,
    },
    Config {
        name: "two faults",
        limits: &[(Break, 2)],
        pods: &[],
        set: |setup| {
            setup.faults = 2;
            setup.remediation.max_attempts = 1;
        },
        taken: &[("quarantine", "marks_change"), ("quarantine", "recovered")],
        states: 4_768,
    },
    Config {
        name: "until the ladder ends",
        limits: &[(Break, 3)],
        pods: &[],
        set: nothing,
        taken: &[("remediation", "nothing_left")],
        states: 10_152,
    },
    Config {
        name: "nothing is configured for it",
        limits: &[(Break, 1), (Heal, 1), (Cancel, 1)],
        pods: &[],
        set: |setup| setup.actions = [PERSON, PERSON],
        taken: &[
            ("remediation", "nothing_left"),
            ("remediation", "faults_gone"),
            ("quarantine", "person_cancel"),
        ],
        states: 27,
    },
    Config {
        name: "a provider that can't be trusted",
        limits: &[(Break, 1), (Misbehave, 1), (Tick, 2)],
        pods: &[],
        set: nothing,
        taken: &[
            ("janitor", "refused"),
            ("janitor", "lost"),
            ("janitor", "Failed"),
            ("janitor", "Timeout"),
            ("remediation", "object_failed"),
        ],
        states: 24_198,
    },
    Config {
        name: "a provider that lies and says so",
        limits: &[(Break, 1), (Misbehave, 2), (Tick, 1)],
        pods: &[],
        set: |setup| setup.remediation.max_attempts = 1,
        taken: &[
            ("janitor", "NoRebootObserved"),
            ("remediation", "nothing_left"),
        ],
        states: 7_290,
    },
    Config {
        name: "answers come again",
        limits: &[(Break, 1), (Misbehave, 1), (AnswerAgain, 1)],
        pods: &[],
        set: nothing,
        taken: &[("janitor", "ask"), ("quarantine", "recovered")],
        states: 2_687,
    },
    Config {
        name: "uncordoned",
        limits: &[(Break, 1), (Uncordon, 1), (Crash, 1)],
        pods: PODS,
        set: nothing,
        taken: &[
            ("quarantine", "manual_uncordon"),
            ("janitor", "Recalled"),
            ("remediation", "recall"),
        ],
        states: 2_293,
    },
    Config {
        name: "uncordoned under a signal that may be lost",
        limits: &[(Break, 1), (Uncordon, 1), (Misbehave, 1)],
        pods: &[],
        set: nothing,
        taken: &[("quarantine", "manual_uncordon"), ("janitor", "lost")],
        states: 3_287,
    },
    Config {
        name: "uncordoned, and a fault again",
        limits: &[(Break, 2), (Uncordon, 1)],
        pods: &[],
        set: nothing,
        taken: &[
            ("quarantine", "manual_uncordon"),
            ("quarantine", "recovered"),
        ],
        states: 10_333,
    },
    Config {
        name: "cancelled",
        limits: &[(Break, 1), (Cancel, 1), (Crash, 1)],
        pods: PODS,
        set: nothing,
        taken: &[("quarantine", "person_cancel")],
        states: 2_861,
    },
    Config {
        name: "paused",
        limits: &[(Break, 1), (Pause, 2), (PodComes, 1)],
        pods: PODS,
        set: nothing,
        taken: &[("drain", "kept_waiting"), ("quarantine", "recovered")],
        states: 3_843,
    },
    Config {
        name: "deleted and registered anew",
        limits: &[(Break, 1), (Delete, 1), (Register, 1), (Crash, 1)],
        pods: &[Leaves::Evicted],
        set: nothing,
        taken: &[
            ("quarantine", "node_gone"),
            ("quarantine", "node_replaced"),
            ("quarantine", "recovered"),
        ],
        states: 5_596,
    },
    Config {
        name: "a person's reboot",
        limits: &[(Break, 1), (AskReboot, 1)],
        pods: &[],
        set: nothing,
        taken: &[("janitor", "Recalled"), ("quarantine", "recovered")],
        states: 4_816,
    },
    Config {
        name: "a person's reboot of a node that goes",
        limits: &[(AskReboot, 1), (Delete, 1), (Register, 1), (Crash, 1)],
        pods: &[],
        set: nothing,
        taken: &[("janitor", "NodeNotFound"), ("janitor", "Succeeded")],
        states: 778,
    },
    Config {
        name: "objects are deleted",
        limits: &[(Break, 1), (DeleteReboot, 2), (Crash, 1), (Tick, 1)],
        pods: &[],
        set: nothing,
        taken: &[("remediation", "object_gone"), ("quarantine", "recovered")],
        states: 10_816,
    },
    Config {
        name: "objects are refused",
        limits: &[(Break, 1), (RefuseOrder, 2), (Crash, 1)],
        pods: &[],
        set: nothing,
        taken: &[
            ("remediation", "object_refused"),
            ("remediation", "nothing_left"),
        ],
        states: 2_109,
    },
    Config {
        name: "healed",
        limits: &[(Break, 1), (Heal, 1), (Crash, 1)],
        pods: PODS,
        set: nothing,
        taken: &[("remediation", "faults_gone"), ("quarantine", "recovered")],
        states: 2_076,
    },
    Config {
        name: "the agent is slow",
        limits: &[(Break, 1), (Heal, 1), (Tick, 2)],
        pods: &[],
        set: nothing,
        taken: &[
            ("quarantine", "needs_operator"),
            ("quarantine", "faults_change"),
        ],
        states: 6_475,
    },
    Config {
        name: "an intent that died",
        limits: &[(Break, 1), (Crash, 1), (Tick, 2)],
        pods: &[],
        set: nothing,
        taken: &[("janitor", "Timeout"), ("quarantine", "recovered")],
        states: 11_047,
    },
    Config {
        name: "an object that is gone for good",
        limits: &[(Break, 1), (DeleteReboot, 1), (Tick, 1)],
        pods: &[],
        set: |setup| {
            let deadline = setup.janitor.timeout / 2;
            for executor in setup.remediation.executors.values_mut() {
                executor.deadline = deadline;
            }
        },
        taken: &[("remediation", "object_gone"), ("remediation", "deadline")],
        states: 2_535,
    },
    Config {
        name: "healed while the machine boots",
        limits: &[(Break, 1), (Heal, 1), (SelfReboot, 1)],
        pods: &[Leaves::Evicted],
        set: nothing,
        taken: &[("drain", "not_wanted"), ("quarantine", "recovered")],
        states: 5_659,
    },
    Config {
        name: "a budget refuses",
        limits: &[(Break, 1), (Budget, 1), (Tick, 2)],
        pods: &[Leaves::Evicted],
        set: nothing,
        taken: &[("drain", "deadline"), ("drain", "empty")],
        states: 6_877,
    },
    Config {
        name: "what is left at a deadline is deleted",
        limits: &[(Break, 1), (Tick, 2)],
        pods: PODS,
        set: |setup| setup.drain.at_deadline = AtDeadline::Delete,
        taken: &[("drain", "delete")],
        states: 3_220,
    },
    Config {
        name: "one pod is late",
        limits: &[(Break, 1), (Tick, 1)],
        pods: PODS,
        set: nothing,
        taken: &[("drain", "deadline"), ("drain", "goes_on")],
        states: 1_032,
    },
    Config {
        name: "both stages in dry run",
        limits: &[(Break, 1), (Heal, 1), (Cancel, 1)],
        pods: &[Leaves::Evicted],
        set: |setup| {
            setup.drain.mode = drain::Mode::DryRun;
            setup.remediation.mode = remediation::Mode::DryRun;
        },
        taken: &[("drain", "kept_waiting"), ("quarantine", "recovered")],
        states: 27,
    },
    Config {
        name: "without drain, and the machine reboots by itself",
        limits: &[(Break, 1), (SelfReboot, 1), (Crash, 1)],
        pods: &[],
        set: |setup| setup.drain.mode = drain::Mode::Off,
        taken: &[("remediation", "order"), ("janitor", "Recalled")],
        states: 7_767,
    },
    Config {
        name: "an order waits",
        limits: &[(Break, 1), (Pause, 2), (Tick, 3)],
        pods: &[],
        set: |setup| {
            let tick = setup.janitor.timeout / 2;
            setup
                .remediation
                .executors
                .values_mut()
                .for_each(|executor| executor.deadline = tick);
            setup.janitor.queue_timeout = tick * 2;
            setup.remediation.queue_timeout = tick * 2;
        },
        taken: &[
            ("remediation", "begun"),
            ("remediation", "not_begun"),
            ("janitor", "Timeout"),
            ("quarantine", "recovered"),
        ],
        states: 74_570,
    },
    Config {
        name: "without an agent",
        limits: &[(Break, 1), (Heal, 1), (Tick, 3)],
        pods: &[],
        set: |setup| setup.agent = false,
        taken: &[("remediation", "still_open"), ("quarantine", "recovered")],
        states: 5_839,
    },
    Config {
        name: "without an agent, and the machine reboots by itself",
        limits: &[(Break, 1), (SelfReboot, 1), (Tick, 2)],
        pods: &[],
        set: |setup| setup.agent = false,
        taken: &[("remediation", "booted"), ("remediation", "still_open")],
        states: 5_249,
    },
];

/// What is done in some configuration.
pub(crate) fn taken() -> impl Iterator<Item = Taken> {
    CONFIGS.iter().flat_map(|config| config.taken).copied()
}

fn run(name: &str) {
    let found = CONFIGS.iter().find(|config| config.name == name);
    let config = found.unwrap_or_else(|| panic!("no configuration is named {name:?}"));
    let mut setup = Setup::new(config.limits).with_pods(config.pods);
    (config.set)(&mut setup);
    check(config.name, setup, config.taken, config.states);
}

macro_rules! configurations {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                run($name);
            }
        )*

        #[test]
        fn each_configuration_is_checked() {
            let run: BTreeSet<&str> = [$($name),*].into();
            let all: BTreeSet<&str> = CONFIGS.iter().map(|config| config.name).collect();
            assert_eq!(run, all);
        }
    };
}

configurations! {
    a_fault_is_repaired: "a fault",
    pods_are_moved_off_through_crashes: "pods and crashes",
    a_pod_that_comes_late_is_moved_off: "a pod comes late",
    a_fault_comes_again: "again, before, during and after",
    two_faults_are_repaired_together: "two faults",
    the_ladder_ends: "until the ladder ends",
    what_nothing_is_configured_for_is_a_persons: "nothing is configured for it",
    a_provider_misbehaves: "a provider that can't be trusted",
    a_provider_lies: "a provider that lies and says so",
    an_answer_comes_again: "answers come again",
    a_person_uncordons_the_node: "uncordoned",
    a_person_uncordons_under_a_signal: "uncordoned under a signal that may be lost",
    a_person_uncordons_and_a_fault_comes_again: "uncordoned, and a fault again",
    a_person_cancels: "cancelled",
    a_person_pauses_the_node: "paused",
    the_node_is_deleted_and_registered_anew: "deleted and registered anew",
    a_person_reboots_the_node: "a person's reboot",
    a_person_reboots_a_node_that_goes: "a person's reboot of a node that goes",
    a_person_deletes_objects: "objects are deleted",
    the_api_server_refuses_objects: "objects are refused",
    a_fault_heals_at_any_time: "healed",
    the_agent_is_slow: "the agent is slow",
    a_budget_refuses: "a budget refuses",
    what_is_left_is_deleted: "what is left at a deadline is deleted",
    a_drain_that_failed_goes_on: "one pod is late",
    dry_run: "both stages in dry run",
    the_machine_reboots_by_itself: "without drain, and the machine reboots by itself",
    an_order_waits: "an order waits",
    no_agent_runs_there: "without an agent",
    a_lost_intent_runs_out: "an intent that died",
    a_signal_without_object_runs_out: "an object that is gone for good",
    no_agent_runs_there_and_the_machine_reboots: "without an agent, and the machine reboots by itself",
    a_fault_heals_while_the_machine_boots: "healed while the machine boots",
}
