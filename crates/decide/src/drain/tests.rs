use std::collections::BTreeMap;

use health_event::incident::{CloseReason, IncidentFault, Repair, Rung, Withheld};
use health_event::{FaultId, RecommendedAction};
use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;
use crate::kit::{MINUTE, at, fault_id};
use crate::later;

fn incident(drain: Option<DrainStatus>) -> Incident {
    let fault = IncidentFault {
        id: fault_id("79"),
        rules: ["gpu".to_owned()].into(),
        forced_by: None,
        action: RecommendedAction::RestartBm,
        seq: 1,
        joined_at: at(0),
        closed_at: None,
        through_agent: true,
    };
    Incident {
        faults: vec![fault],
        ..crate::kit::incident(drain)
    }
}

fn policy() -> Policy {
    let namespaces = [
        ("*", EvictMode::AllowCompletion),
        ("now", EvictMode::Immediate),
        ("later", EvictMode::DeleteAfterTimeout),
    ];
    Policy {
        mode: Mode::Enforce,
        namespaces: Namespaces::new(namespaces, "^kube-system$").unwrap(),
        grace: Some(MINUTE),
        immediate_deadline: MINUTE * 60,
        delete_after: MINUTE * 30,
        completion_deadline: None,
        at_deadline: AtDeadline::Fail,
        stuck_timeout: MINUTE * 5,
        not_ready_timeout: MINUTE * 5,
        dead_kubelet_timeout: MINUTE * 10,
        gpu_pods_only: false,
        first_action_until: None,
    }
}

fn pod(namespace: &str) -> PodFacts {
    PodFacts {
        pod: PodRef {
            namespace: namespace.to_owned(),
            name: "pod".to_owned(),
            uid: format!("uid-{namespace}"),
        },
        phase: Phase::Running,
        of_daemon_set: false,
        is_mirror: false,
        has_devices: true,
        created_at: None,
        deleted_by: None,
        not_ready_since: None,
    }
}

/// All that a view borrows.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Case {
    incident: Incident,
    overrides: BTreeMap<FaultId, Overrides>,
    ends_processes: bool,
    repair_under_way: bool,
    kubelet_silent_since: Option<Timestamp>,
    paused: bool,
    waits_as_own_node: bool,
    waits_for_turn: bool,
    pods: Option<Vec<PodFacts>>,
    asked: BTreeMap<String, Asked>,
    policy: Policy,
}

impl Case {
    fn new(drain: Option<DrainStatus>, pods: &[PodFacts]) -> Self {
        Self {
            incident: incident(drain),
            overrides: BTreeMap::new(),
            ends_processes: true,
            repair_under_way: false,
            kubelet_silent_since: None,
            paused: false,
            waits_as_own_node: false,
            waits_for_turn: false,
            pods: Some(pods.to_vec()),
            asked: BTreeMap::new(),
            policy: policy(),
        }
    }

    fn draining(pods: &[PodFacts]) -> Self {
        let deadlines = DrainDeadlines {
            immediate: at(60),
            delete: at(30),
            completion: None,
        };
        Self::new(Some(DrainStatus::Draining(deadlines)), pods)
    }

    fn failed(why: DrainFailure, pods: &[PodFacts]) -> Self {
        let mut case = Self::draining(pods);
        let drain = case.incident.drain.as_mut().unwrap();
        if let DrainStatus::Draining(deadlines) = drain.status {
            drain.status = DrainStatus::Failed(DrainFailed { why, deadlines });
        }
        case
    }

    /// Draining since the beginning of time, until these minutes of it.
    fn set_deadlines(&mut self, immediate: i64, delete: i64, completion: Option<i64>) {
        self.incident.drain = Some(Drain {
            status: DrainStatus::Draining(DrainDeadlines {
                immediate: at(immediate),
                delete: at(delete),
                completion: completion.map(at),
            }),
            since: at(0),
        });
    }

    fn status(&self) -> Option<DrainStatus> {
        self.incident
            .drain
            .as_ref()
            .map(|drain| drain.status.clone())
    }

    /// Why it fails now, if it does.
    fn fails(&self, now: Timestamp) -> Option<DrainFailure> {
        let DrainStatus::Failed(failed) = self.decide(now).transition?.to else {
            return None;
        };
        Some(failed.why)
    }

    fn view(&self) -> View<'_> {
        View {
            incident: &self.incident,
            overrides: &self.overrides,
            ends_processes: self.ends_processes,
            repair_under_way: self.repair_under_way,
            kubelet_silent_since: self.kubelet_silent_since,
            paused: self.paused,
            waits_as_own_node: self.waits_as_own_node,
            waits_for_turn: self.waits_for_turn,
            pods: self.pods.as_deref(),
            asked: &self.asked,
            policy: &self.policy,
        }
    }

    fn decide(&self, now: Timestamp) -> Decision {
        decide(&self.view(), now)
    }

    fn needs_pods(&self, now: Timestamp) -> bool {
        needs_pods(&self.view(), now)
    }

    /// State and reason of the transition.
    fn moves(&self, now: Timestamp) -> Option<(&'static str, &'static str)> {
        let transition = self.decide(now).transition?;
        Some((transition.to.as_str(), transition.reason.code()))
    }

    fn asks(&self, now: Timestamp) -> Vec<(String, How)> {
        let asks = self.decide(now).asks.into_iter();
        asks.map(|ask| (ask.pod.namespace, ask.how)).collect()
    }

    fn says(&mut self, overrides: Overrides) {
        self.overrides.insert(fault_id("79"), overrides);
    }

    fn take(&mut self, decision: &Decision) {
        if let Some(next) = &decision.incident {
            self.incident = next.clone();
        }
    }
}

const EVICT: How = How::Evict(Some(60));

#[test]
fn pods_go_by_the_mode_of_their_namespace() {
    let mut case = Case::new(None, &[pod("now"), pod("later"), pod("else")]);
    let begun = case.decide(at(0));
    assert_eq!(case.moves(at(0)), Some(("Draining", "wanted")));
    assert!(
        begun.asks.is_empty(),
        "nothing is asked before it is stored"
    );
    assert_eq!(begun.wake_at, Some(at(0)));
    case.take(&begun);
    assert_eq!(case.incident.version, 4);

    assert_eq!(case.asks(at(0)), [("now".to_owned(), EVICT)]);
    assert_eq!(case.decide(at(0)).wake_at, Some(at(30)));
    let why: Vec<_> = case
        .decide(at(0))
        .blockers
        .into_iter()
        .map(|b| (b.pod.namespace, b.why, b.until))
        .collect();
    assert_eq!(
        why,
        [
            ("else".to_owned(), BlockedBy::Completion, None),
            ("later".to_owned(), BlockedBy::Timeout, Some(at(30))),
            ("now".to_owned(), BlockedBy::Asked, Some(at(60))),
        ]
    );
    // Those that were given time are deleted when it is over, whatever the others do.
    let now = ("now".to_owned(), EVICT);
    assert_eq!(case.asks(at(30)), [("later".to_owned(), How::Delete), now]);
}

#[test]
fn what_counts_for_nothing_is_left_alone_and_nothing_waits_for_it() {
    let of = |change: fn(&mut PodFacts)| {
        let mut pod = pod("now");
        change(&mut pod);
        pod
    };
    for pod in [
        pod("kube-system"),
        of(|pod| pod.of_daemon_set = true),
        of(|pod| pod.is_mirror = true),
        of(|pod| pod.phase = Phase::Finished),
    ] {
        let case = Case::new(None, std::slice::from_ref(&pod));
        assert_eq!(
            case.moves(at(0)),
            Some(("Drained", "nothing_to_do")),
            "{pod:?}"
        );
        let case = Case::draining(std::slice::from_ref(&pod));
        assert_eq!(case.moves(at(0)), Some(("Drained", "empty")), "{pod:?}");
        assert_eq!(case.asks(at(0)), []);
    }
    let mut case = Case::new(None, &[of(|pod| pod.has_devices = false)]);
    assert_eq!(case.moves(at(0)), Some(("Draining", "wanted")));
    case.policy.gpu_pods_only = true;
    assert_eq!(case.moves(at(0)), Some(("Drained", "nothing_to_do")));
}

#[test]
fn nothing_is_drained_before_the_pods_are_known() {
    for drain in [None, Case::draining(&[]).incident.drain.map(|d| d.status)] {
        let mut case = Case::new(drain, &[]);
        case.pods = None;
        assert_eq!(case.decide(at(90)), Decision::default());
    }
    let mut failed = Case::failed(DrainFailure::Immediate, &[]);
    assert_eq!(failed.moves(at(90)), Some(("Drained", "empty")));
    failed.pods = None;
    assert_eq!(failed.moves(at(90)), None);
}

#[test]
fn pods_are_followed_as_long_as_something_is_decided_by_them() {
    let failed = Case::failed(DrainFailure::Immediate, &[]).status();
    let draining = Case::draining(&[]).incident.drain.map(|d| d.status);
    for status in [None, draining.clone(), failed, Some(DrainStatus::Cancelled)] {
        assert!(
            Case::new(status.clone(), &[]).needs_pods(at(0)),
            "{status:?}"
        );
        let mut off = Case::new(status, &[]);
        off.policy.mode = Mode::Off;
        assert!(!off.needs_pods(at(0)));
    }
    let mut case = Case::new(None, &[]);
    case.paused = true;
    assert!(!case.needs_pods(at(0)), "it waits for something else");
    let mut case = Case::new(None, &[]);
    case.policy.mode = Mode::DryRun;
    assert!(case.needs_pods(at(0)));
    case.says(Overrides {
        skip: true,
        force: false,
    });
    assert!(!case.needs_pods(at(0)), "nothing wants the node empty");

    let mut drained = Case::new(Some(DrainStatus::Drained), &[]);
    let since = drained.incident.drain.as_ref().unwrap().since;
    let late = later(since, LATE);
    assert!(drained.needs_pods(since) && !drained.needs_pods(late));
    assert_eq!(drained.decide(since).wake_at, Some(late));
    drained.incident.repair = Some(Repair {
        status: RepairStatus::Planned { rung: Rung::Reboot },
        since,
        attempt: None,
    });
    assert!(drained.needs_pods(late), "until the repair is ordered");
    for status in [RepairStatus::Requested, RepairStatus::Running] {
        drained.incident.repair.as_mut().unwrap().status = status;
        assert!(drained.needs_pods(late), "until it is begun");
        let mut comes = drained.clone();
        comes.pods = Some(vec![pod("now")]);
        assert_eq!(comes.moves(late), Some(("Draining", "came_late")));
    }
    drained.repair_under_way = true;
    assert!(!drained.needs_pods(since));
    drained.repair_under_way = false;
    drained.incident.repair = Some(Repair {
        status: RepairStatus::Succeeded,
        since,
        attempt: None,
    });
    assert!(
        !drained.needs_pods(since),
        "what it was emptied for is done"
    );

    let mut case = Case::new(draining, &[]);
    case.incident.quarantine = QuarantineStatus::Applying;
    assert!(
        case.needs_pods(at(0)),
        "a change of the marks ends no drain"
    );
    case.incident.quarantine = QuarantineStatus::Releasing(CloseReason::Recovered);
    assert!(!case.needs_pods(at(0)));
}

#[test]
fn overrides_of_the_faults_count_and_a_hold_alone_moves_nobody() {
    let mut case = Case::new(None, &[pod("else")]);
    case.says(Overrides {
        skip: true,
        force: false,
    });
    assert_eq!(case.moves(at(0)), None);
    case.incident.drain = Case::draining(&[]).incident.drain;
    assert_eq!(case.moves(at(0)), Some(("Cancelled", "not_wanted")));

    let mut case = Case::draining(&[pod("else"), pod("later")]);
    case.says(Overrides {
        skip: false,
        force: true,
    });
    let forced = [("else".to_owned(), EVICT), ("later".to_owned(), EVICT)];
    assert_eq!(case.asks(at(0)), forced);

    let mut held = Case::new(None, &[pod("now")]);
    held.incident.faults[0].closed_at = Some(at(0));
    held.incident.held_by = Some("ada".to_owned());
    assert_eq!(held.moves(at(0)), None);
}

#[test]
fn it_begins_only_when_nothing_keeps_it_waiting() {
    let waiting = |change: fn(&mut Case)| {
        let mut case = Case::new(None, &[pod("now")]);
        change(&mut case);
        let decision = case.decide(at(0));
        assert!(decision.asks.is_empty());
        let status = decision.transition.map(|t| t.to);
        case.incident.drain = status.clone().map(|status| Drain {
            status,
            since: at(0),
        });
        assert_eq!(case.moves(at(1)), None, "it waits on: {status:?}");
        status
    };
    let until = at(5);
    for (status, wait) in [
        (waiting(|case| case.paused = true), DrainWait::Paused),
        (
            waiting(|case| case.policy.first_action_until = Some(at(5))),
            DrainWait::FirstAction { until },
        ),
        (
            waiting(|case| case.policy.mode = Mode::Refused),
            DrainWait::OtherDrainer,
        ),
        (
            waiting(|case| case.policy.mode = Mode::DryRun),
            DrainWait::DryRun,
        ),
        (
            waiting(|case| case.waits_as_own_node = true),
            DrainWait::OwnNode,
        ),
    ] {
        assert_eq!(status, Some(DrainStatus::Waiting(wait.clone())));
        let case = Case::new(status, &[pod("now")]);
        assert_eq!(case.moves(at(6)), Some(("Draining", "wanted")), "{wait:?}");
    }
    let mut off = Case::new(None, &[pod("now")]);
    off.policy.mode = Mode::Off;
    assert_eq!(off.decide(at(0)), Decision::default());
}

#[test]
fn what_waited_for_the_first_action_delay_waits_on_until_it_has_its_turn() {
    let until = at(5);
    let mut case = Case::new(None, &[pod("now")]);
    case.policy.first_action_until = Some(until);
    let waits = DrainStatus::Waiting(DrainWait::FirstAction { until });
    let decision = case.decide(at(1));
    assert_eq!(decision.transition.map(|to| to.to), Some(waits.clone()));
    case.incident = decision.incident.unwrap();
    assert!(!may_begin(&case.view(), at(4)));
    assert!(may_begin(&case.view(), at(5)));
    case.waits_for_turn = true;
    assert_eq!(
        case.decide(at(9)),
        Decision::default(),
        "nothing is stored, nor tried again by itself"
    );
    case.waits_for_turn = false;
    assert_eq!(case.moves(at(9)), Some(("Draining", "wanted")));
    case.paused = true;
    assert!(!may_begin(&case.view(), at(9)));
}

#[test]
fn our_own_node_waits_for_what_is_asked_still_and_for_a_repair_that_is_about_to_be_ordered() {
    let until = |case: &Case, repairs| at_work_until(&case.incident, &case.policy, repairs);
    let ever = Some(Timestamp::MAX);
    let mut case = Case::draining(&[pod("now")]);
    assert_eq!(until(&case, true), ever);
    // What is over its time fails alone: pods of another mode are asked to go until their own.
    case.set_deadlines(10, 30, Some(20));
    let failed = case.fails(at(10)).map(|why| {
        let Some(DrainStatus::Draining(deadlines)) = case.status() else {
            panic!("{:?}", case.status());
        };
        DrainStatus::Failed(DrainFailed { why, deadlines })
    });
    let mut failed = Case::new(failed, &[pod("now"), pod("later")]);
    assert_eq!(until(&failed, true), Some(at(35)));
    let deletes = |now| {
        failed
            .decide(now)
            .asks
            .iter()
            .any(|ask| ask.how == How::Delete)
    };
    assert!(deletes(at(30)) && deletes(at(34)) && !deletes(at(35)));
    if let Some(Drain {
        status: DrainStatus::Failed(failed),
        ..
    }) = &mut failed.incident.drain
    {
        failed.deadlines.completion = Some(at(90));
    }
    assert_eq!(until(&failed, true), Some(at(95)));

    let repairs = |status| Repair {
        status,
        since: at(0),
        attempt: None,
    };
    let mut drained = Case::new(Some(DrainStatus::Drained), &[]);
    assert_eq!(until(&drained, true), None, "nobody plans anything");
    let planned = RepairStatus::Planned { rung: Rung::Reboot };
    drained.incident.repair = Some(repairs(planned));
    assert_eq!(until(&drained, true), ever);
    assert_eq!(until(&drained, false), None, "it is only shown");
    drained.incident.repair = Some(repairs(RepairStatus::Requested));
    assert_eq!(until(&drained, false), ever, "what was ordered is followed");
    drained.incident.repair = Some(repairs(RepairStatus::Succeeded));
    assert_eq!(until(&drained, true), None);
    for rests in [
        None,
        Some(DrainStatus::Waiting(DrainWait::Paused)),
        Some(DrainStatus::Cancelled),
    ] {
        assert_eq!(until(&Case::new(rests, &[]), true), None);
    }
}

#[test]
fn dry_run_shows_what_it_would_wait_for() {
    let mut case = Case::new(None, &[pod("now"), pod("kube-system")]);
    case.policy.mode = Mode::DryRun;
    let decision = case.decide(at(0));
    assert_eq!(decision.blockers.len(), 1);
    assert!(decision.asks.is_empty());
}

#[test]
fn a_pod_is_asked_once_and_again_when_that_failed() {
    let mut case = Case::draining(&[pod("now")]);
    let uid = "uid-now".to_owned();
    for (asked, why, again) in [
        (Asked::InFlight, BlockedBy::Asked, false),
        (Asked::Accepted, BlockedBy::Asked, false),
        (
            Asked::Budget {
                why: "needs 2 healthy pods".to_owned(),
                again_at: at(2),
            },
            BlockedBy::Budget("needs 2 healthy pods".to_owned()),
            true,
        ),
        (
            Asked::Failed {
                why: "timeout".to_owned(),
                again_at: at(2),
            },
            BlockedBy::Failed("timeout".to_owned()),
            true,
        ),
    ] {
        case.asked = [(uid.clone(), asked.clone())].into();
        let decision = case.decide(at(1));
        assert_eq!(decision.blockers[0].why, why);
        assert_eq!(decision.asks, [], "{asked:?}");
        assert_eq!(decision.wake_at, Some(if again { at(2) } else { at(60) }));
        assert_eq!(!case.asks(at(2)).is_empty(), again, "{asked:?}");
    }
    case.asked.clear();
    case.pods.as_mut().unwrap()[0].deleted_by = Some(at(3));
    let decision = case.decide(at(1));
    assert_eq!(decision.blockers[0].why, BlockedBy::Terminating);
    assert_eq!(decision.asks, []);
}

#[test]
fn a_deletion_is_not_kept_by_a_budget_and_cuts_a_grace_short() {
    let mut case = Case::draining(&[pod("later")]);
    let budget = Asked::Budget {
        why: "no".to_owned(),
        again_at: at(90),
    };
    let later = [("later".to_owned(), How::Delete)];
    case.asked = [("uid-later".to_owned(), budget)].into();
    assert_eq!(case.asks(at(29)), []);
    assert_eq!(case.asks(at(30)), later);
    // Somebody deleted it with an hour of grace.
    case.pods.as_mut().unwrap()[0].deleted_by = Some(at(80));
    case.asked.clear();
    assert_eq!(case.asks(at(30)), later);
    case.pods.as_mut().unwrap()[0].deleted_by = Some(at(30));
    assert_eq!(case.asks(at(30)), []);
}

#[test]
fn a_pod_that_stays_is_passed_over_only_where_the_repair_ends_it() {
    let mut stuck = pod("now");
    stuck.deleted_by = Some(at(1));
    let mut not_ready = pod("else");
    not_ready.not_ready_since = Some(at(-4));
    for (pod, from) in [(stuck, at(6)), (not_ready, at(6))] {
        let mut case = Case::draining(std::slice::from_ref(&pod));
        let before = later(from, -SignedDuration::from_secs(1));
        assert_eq!(case.moves(before), None);
        assert_eq!(case.decide(before).wake_at, Some(from));
        assert_eq!(case.moves(from), Some(("Drained", "empty")));
        assert_eq!(
            case.decide(from).passed_over,
            std::slice::from_ref(&pod.pod)
        );
        case.ends_processes = false;
        assert_eq!(case.moves(from), None, "{pod:?}");
    }
    let mut dead = Case::draining(&[pod("now"), pod("else")]);
    dead.kubelet_silent_since = Some(at(0));
    assert_eq!(dead.moves(at(9)), None);
    assert_eq!(dead.moves(at(10)), Some(("Drained", "empty")));
    dead.ends_processes = false;
    assert_eq!(dead.moves(at(10)), None);
}

#[test]
fn deadlines_count_from_the_beginning_of_the_drain_and_not_from_the_fault() {
    let case = Case::new(None, &[pod("later")]);
    for begun in [0, 5_000] {
        let to = case.decide(at(begun)).transition.map(|t| t.to);
        let deadlines = DrainDeadlines {
            immediate: at(begun + 60),
            delete: at(begun + 30),
            completion: None,
        };
        assert_eq!(to, Some(DrainStatus::Draining(deadlines)));
    }
}

#[test]
fn deadlines_end_every_wait_that_has_one() {
    let mut case = Case::draining(&[pod("now")]);
    assert_eq!(case.moves(at(59)), None);
    assert_eq!(case.moves(at(60)), Some(("Failed", "deadline")));
    assert_eq!(case.asks(at(60)), []);
    case.policy.at_deadline = AtDeadline::Delete;
    assert_eq!(case.asks(at(60)), [("now".to_owned(), How::Delete)]);
    assert_eq!(case.moves(at(65)), Some(("Failed", "deadline")));
    assert_eq!(case.fails(at(65)), Some(DrainFailure::Deleted));

    let case = Case::draining(&[pod("later")]);
    assert_eq!(case.moves(at(34)), None);
    assert_eq!(case.moves(at(35)), Some(("Failed", "deadline")));

    let mut case = Case::draining(&[pod("else")]);
    assert_eq!(case.moves(at(100_000)), None, "it may run for ever");
    case.set_deadlines(60, 30, Some(120));
    assert_eq!(case.decide(at(0)).wake_at, Some(at(120)));
    assert_eq!(case.fails(at(120)), Some(DrainFailure::Completion));
    case.policy.at_deadline = AtDeadline::Delete;
    assert_eq!(case.asks(at(120)), [("else".to_owned(), How::Delete)]);
}

#[test]
fn a_drain_fails_in_what_is_over_its_time_and_goes_on_with_all_else() {
    let mut case = Case::draining(&[pod("now"), pod("later"), pod("else")]);
    case.set_deadlines(60, 90, Some(120));
    // Evictions are over their time; who is deleted later, or may finish, has time.
    let failed = case.decide(at(60));
    assert_eq!(
        (failed.asks.len(), failed.overdue),
        (0, vec![pod("now").pod])
    );
    assert_eq!(case.fails(at(60)), Some(DrainFailure::Immediate));
    case.take(&case.decide(at(60)));
    assert_eq!((case.moves(at(60)), case.asks(at(60))), (None, Vec::new()));
    assert_eq!(case.decide(at(60)).wake_at, Some(at(90)));
    assert_eq!(case.asks(at(90)), [("later".to_owned(), How::Delete)]);
    // A deletion that helps nothing, and one that never ends, are not told again beside it.
    assert_eq!(case.moves(at(100)), None);
    assert_eq!(case.decide(at(120)).overdue.len(), 3);

    // What was over its time went: the others have theirs still.
    case.pods = Some(vec![pod("else")]);
    assert_eq!(case.moves(at(110)), Some(("Draining", "goes_on")));
    let mut goes_on = case.clone();
    goes_on.take(&case.decide(at(110)));
    assert_eq!(goes_on.moves(at(110)), None);
    assert_eq!(goes_on.fails(at(120)), Some(DrainFailure::Completion));
    // Or it is over its time itself meanwhile.
    assert_eq!(case.fails(at(120)), Some(DrainFailure::Completion));
    case.pods = Some(Vec::new());
    assert_eq!(case.moves(at(120)), Some(("Drained", "empty")));

    // Evictions go on beside pods that did not finish in time, by their own pace.
    let mut case = Case::draining(&[pod("now"), pod("else")]);
    case.set_deadlines(60, 30, Some(20));
    case.take(&case.decide(at(20)));
    assert_eq!(case.asks(at(20)), [("now".to_owned(), EVICT)]);
    case.policy.mode = Mode::Refused;
    assert_eq!((case.moves(at(90)), case.asks(at(20))), (None, Vec::new()));
}

#[test]
fn a_fault_that_joins_a_failed_drain_and_forces_it_begins_it_anew() {
    let mut case = Case::failed(DrainFailure::Immediate, &[pod("now")]);
    let mut joins = case.incident.faults[0].clone();
    joins.id = fault_id("48");
    joins.joined_at = case.incident.drain.as_ref().unwrap().since + MINUTE;
    case.incident.faults.push(joins.clone());
    assert_eq!(case.moves(at(70)), None, "it forces nothing");
    let force = Overrides {
        force: true,
        skip: false,
    };
    let first = case.incident.faults[0].id.clone();
    case.overrides.insert(first.clone(), force);
    assert_eq!(case.moves(at(70)), None, "that did not help before");
    case.overrides.remove(&first);
    case.overrides.insert(joins.id, force);
    let mut paused = case.clone();
    paused.paused = true;
    assert_eq!(paused.moves(at(70)), None);
    assert_eq!(case.moves(at(70)), Some(("Draining", "wanted")));
}

#[test]
fn pods_that_come_back_for_each_that_goes_are_asked_ever_less_often() {
    let mut case = Case::draining(&[pod("now")]);
    let since = case.incident.drain.as_ref().unwrap().since;
    // Each is gone as soon as it is asked, and the next one there a second later.
    let (mut now, mut asked) = (since + SignedDuration::from_secs(1), 0);
    while now < since + MINUTE * 50 {
        let pods = case.pods.as_mut().unwrap();
        pods[0].created_at = Some(now);
        pods[0].pod.uid = format!("uid-{asked}");
        let decision = case.decide(now);
        if decision.asks.is_empty() {
            assert_eq!(decision.blockers[0].why, BlockedBy::Came);
            now = decision.wake_at.unwrap();
            assert_eq!(decision.blockers[0].until, Some(now));
            assert_eq!(case.asks(now).len(), 1);
        }
        asked += 1;
        now += SignedDuration::from_secs(1);
    }
    assert!((10..30).contains(&asked), "{asked}");
    // What was there before the drain, or came before it began to drain, is asked at once.
    let mut case = Case::draining(&[pod("now")]);
    case.pods.as_mut().unwrap()[0].created_at = Some(since);
    assert_eq!(case.asks(since).len(), 1);
}

#[test]
fn a_failed_drain_asks_nobody_and_goes_on_when_the_pods_went() {
    let mut case = Case::draining(&[pod("now")]);
    case.take(&case.decide(at(60)));
    assert_eq!(case.decide(at(61)).asks, []);
    assert_eq!(case.decide(at(61)).blockers.len(), 1, "explain names it");
    case.pods = Some(Vec::new());
    assert_eq!(case.moves(at(62)), Some(("Drained", "empty")));
}

#[test]
fn a_pod_that_came_late_is_drained_until_a_repair_is_ordered() {
    let mut case = Case::new(Some(DrainStatus::Drained), &[pod("now")]);
    assert_eq!(case.moves(at(0)), Some(("Draining", "came_late")));
    case.repair_under_way = true;
    assert_eq!(case.moves(at(0)), None);
    case.repair_under_way = false;
    // Where nothing begins the node is not empty any more: a repair that is planned waits.
    let kept = Some(("Waiting", "kept_waiting"));
    case.paused = true;
    assert_eq!(case.moves(at(0)), kept);
    let mut paused = case.clone();
    paused.take(&case.decide(at(0)));
    assert!(keeps_repair(&paused.incident), "one that is queued too");
    paused.paused = false;
    assert_eq!(paused.moves(at(1)), Some(("Draining", "wanted")));
    case.paused = false;
    case.policy.mode = Mode::DryRun;
    assert_eq!(case.moves(at(0)), kept);
    case.policy.mode = Mode::Off;
    assert_eq!(case.moves(at(0)), None);
}

#[test]
fn drain_row_78_nothing_is_asked_unless_the_quarantine_is_at_rest() {
    for status in [
        QuarantineStatus::Withheld(Withheld::Pace),
        QuarantineStatus::Observed,
        QuarantineStatus::Applying,
        QuarantineStatus::Releasing(CloseReason::Recovered),
        QuarantineStatus::Closed(CloseReason::ManualUncordon),
    ] {
        let mut case = Case::draining(&[pod("now")]);
        case.incident.quarantine = status;
        assert_eq!(case.decide(at(0)), Decision::default());
    }
}

#[test]
fn the_end_of_an_incident_ends_its_drain() {
    let of = |status| {
        ended(
            Some(&Drain {
                status,
                since: at(0),
            }),
            at(9),
        )
        .unwrap()
    };
    let draining = Case::draining(&[]).incident.drain.unwrap();
    assert_eq!(
        ended(Some(&draining), at(9)),
        Some(of(DrainStatus::Waiting(DrainWait::Paused)))
    );
    assert_eq!(of(draining.status).status, DrainStatus::Cancelled);
    assert_eq!(of(DrainStatus::Drained).since, at(0));
    assert_eq!(ended(None, at(9)), None);
}

#[test]
fn switched_off_in_the_middle_it_stops() {
    let mut case = Case::draining(&[pod("now")]);
    case.policy.mode = Mode::Off;
    assert_eq!(case.moves(at(0)), Some(("Cancelled", "off")));
    for mode in [Mode::DryRun, Mode::Refused] {
        case.policy.mode = mode;
        let decision = case.decide(at(0));
        assert_eq!((decision.asks, decision.transition), (Vec::new(), None));
    }
}

fn any_pod() -> impl Strategy<Value = PodFacts> {
    let namespace = prop::sample::select(vec!["now", "later", "else", "kube-system"]);
    let phase = prop::sample::select(vec![Phase::Pending, Phase::Running, Phase::Finished]);
    let time = || prop::option::of((0_i64..100).prop_map(at));
    (
        namespace,
        phase,
        any::<[bool; 3]>(),
        time(),
        time(),
        0_u32..1000,
    )
        .prop_map(
            |(namespace, phase, [of_daemon_set, is_mirror, has_devices], deleted, not_ready, n)| {
                let mut pod = pod(namespace);
                pod.pod.uid = format!("uid-{n}");
                PodFacts {
                    phase,
                    of_daemon_set,
                    is_mirror,
                    has_devices,
                    deleted_by: deleted,
                    not_ready_since: not_ready,
                    ..pod
                }
            },
        )
}

proptest! {
    /// Whatever is on the node: only pods that count are asked, each once, never one that may stay;
    /// drained means empty of what counts; who waits is woken.
    #[test]
    fn any_node_full_of_pods(
        pods in prop::collection::vec(any_pod(), 0..8),
        ends_processes: bool,
        gpu_pods_only: bool,
        delete: bool,
        minutes in 0_i64..200,
    ) {
        let mut case = Case::draining(&pods);
        case.ends_processes = ends_processes;
        case.policy.gpu_pods_only = gpu_pods_only;
        case.policy.at_deadline = if delete { AtDeadline::Delete } else { AtDeadline::Fail };
        let now = at(minutes);
        let decision = case.decide(now);
        let counts = |pod: &&PodFacts| {
            !pod.of_daemon_set
                && !pod.is_mirror
                && pod.phase != Phase::Finished
                && pod.pod.namespace != "kube-system"
                && (pod.has_devices || !gpu_pods_only)
        };
        let counted = pods.iter().filter(counts).count();
        let waited = decision.blockers.len() + decision.passed_over.len();
        prop_assert_eq!(waited, counted);
        prop_assert!(ends_processes || decision.passed_over.is_empty());
        for ask in &decision.asks {
            let pod = pods.iter().filter(counts).find(|p| p.pod == ask.pod);
            prop_assert!(pod.is_some(), "{ask:?}");
            let completes = ask.pod.namespace == "else";
            prop_assert!(!completes, "it may finish: {ask:?}");
            prop_assert!(ask.how != How::Delete || minutes >= 30);
        }
        let done = decision.transition.as_ref().map(|t| t.to.as_str());
        prop_assert_eq!(done == Some("Drained"), decision.blockers.is_empty());
        let for_ever = |b: &Blocker| b.pod.namespace == "else";
        let all_for_ever = decision.blockers.iter().all(for_ever);
        prop_assert!(
            decision.transition.is_some() || decision.wake_at.is_some() || all_for_ever,
            "nobody looks again: {decision:?}"
        );
        prop_assert!(decision.wake_at.is_none_or(|at| at > now));
    }
}
