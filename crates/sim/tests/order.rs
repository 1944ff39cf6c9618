//! P4 over everything that takes events in: whatever of one node's history comes late, twice or in
//! another order, and whatever the agent's own words are lost, the node ends with the same faults
//! as if all had come in turn. What is asked here are the product's own services and its store.
//!
//! # Bounds
//! An acknowledged word of a monitor is in the agent's spool, so it comes late but is not lost; a
//! word of a detector may be lost with the spool. Boots become known in their order, by reports.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use controller::config::Config;
use controller::ingest::limits::Limits;
use controller::ingest::{ClockSkews, EventService, Transformers};
use controller::nodes::{NodeCache, Wanted};
use controller::reports::{ReportService, Reports};
use controller::trust::Gate;
use controller::workers::WakeAll;
use event_store::{EventStore, Options};
use health_event::{NodeName, SentIdentity, keys};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestRunner};
use telemetry::ControllerMetrics;
use tonic::Request;
use wire::datamodels::platform_connector_server::PlatformConnector as _;
use wire::datamodels::{Entity, HealthEvent, HealthEvents};
use wire::warden::v1::agent_server::Agent as _;
use wire::warden::v1::{Asserted, Detector, DetectorState, ReportRequest, Spool};

const NODE: &str = "gpu-1";
const CODES: [&str; 3] = ["48", "79", "119"];
const BOOTS: [&str; 2] = ["boot-a", "boot-b"];
const SPOOLS: [&str; 2] = ["spool-a", "spool-b"];
/// Histories in one batch: each has two stores of its own.
const CASES: u32 = 40;
/// Batches until each thing happened at least once; the rarest does in one history of ten.
const BATCHES: usize = 5;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    /// The kernel-log detector inside the agent.
    Detector,
    /// A monitor on the agent's socket.
    OnSocket,
    /// A monitor on the controller's port, about the same faults as the one on the socket.
    OnPort,
}

#[derive(Debug, Clone)]
struct Said {
    who: Who,
    code: usize,
    healthy: bool,
    restart: bool,
    new_spool: bool,
    /// Seconds by which the monitor on the port has another time than the agent's machine.
    apart: i64,
}

fn said() -> impl Strategy<Value = Said> {
    let who = prop_oneof![
        3 => Just(Who::Detector),
        2 => Just(Who::OnSocket),
        2 => Just(Who::OnPort),
    ];
    let rare = || prop::bool::weighted(0.15);
    (
        who,
        0..CODES.len(),
        any::<bool>(),
        rare(),
        rare(),
        -2_i64..3,
    )
        .prop_map(|(who, code, healthy, restart, new_spool, apart)| Said {
            who,
            code,
            healthy,
            restart,
            new_spool,
            apart,
        })
}

/// The history as it goes over the wire.
struct Made {
    events: Vec<(Who, HealthEvent)>,
    boot: usize,
    spool: usize,
    last_number: u64,
}

fn make(history: &[Said], start: Timestamp) -> Made {
    let mut made = Made {
        events: Vec::new(),
        boot: 0,
        spool: 0,
        last_number: 0,
    };
    for (said, step) in history.iter().zip(1_i64..) {
        made.boot = made.boot.max(usize::from(said.restart));
        made.spool = made.spool.max(usize::from(said.new_spool));
        let (agent, check) = match said.who {
            Who::Detector => ("syslog-health-monitor", "SysLogsXIDError"),
            Who::OnSocket | Who::OnPort => ("gpu-health-monitor", "GpuMemWatch"),
        };
        let apart = if said.who == Who::OnPort {
            said.apart
        } else {
            0
        };
        let at = start + SignedDuration::from_secs(step + apart);
        let mut event = HealthEvent {
            version: 1,
            id: format!("{:?}-{step}", said.who),
            agent: agent.to_owned(),
            component_class: "GPU".to_owned(),
            check_name: check.to_owned(),
            is_fatal: !said.healthy,
            is_healthy: said.healthy,
            message: format!("{step}"),
            recommended_action: if said.healthy { 0 } else { 24 },
            error_code: vec![CODES[said.code].to_owned()],
            entities_impacted: vec![Entity {
                entity_type: "PCI".to_owned(),
                entity_value: "0000:17:00".to_owned(),
            }],
            generated_timestamp: Some(wire::timestamp_to_wire(at)),
            node_name: NODE.to_owned(),
            ..HealthEvent::default()
        };
        if said.who != Who::OnPort {
            made.last_number += 1;
            let order = (BOOTS[made.boot], SPOOLS[made.spool], made.last_number);
            let order = format!("{}/{}/{}", order.0, order.1, order.2);
            event.metadata.insert(keys::ORDER.to_owned(), order);
            let machine = "machine".to_owned();
            event.metadata.insert(keys::MACHINE_ID.to_owned(), machine);
        }
        if said.who == Who::Detector {
            let detector = "kernel-log".to_owned();
            event.metadata.insert(keys::DETECTOR.to_owned(), detector);
        }
        made.events.push((said.who, event));
    }
    made
}

impl Made {
    /// What the agent's detector asserts at the end: its last word on each code, where that is not
    /// a healthy one.
    fn asserted(&self) -> Vec<HealthEvent> {
        let own = self.events.iter().filter(|(who, _)| *who == Who::Detector);
        let last: BTreeMap<_, _> = own.map(|(_, e)| (e.error_code.clone(), e)).collect();
        let unhealthy = last.into_values().filter(|event| !event.is_healthy);
        unhealthy.cloned().collect()
    }

    fn report(&self, boot: usize, asserted: Option<&[HealthEvent]>) -> ReportRequest {
        let identity = |event: &HealthEvent| {
            let event = health_event::HealthEvent::try_from(event.clone()).unwrap();
            let device = health_event::devices_of(&event.entities).remove(0);
            SentIdentity::of(&event, &device, &event.error_codes[0])
        };
        let list = asserted.unwrap_or_default();
        ReportRequest {
            node_name: NODE.to_owned(),
            boot_id: BOOTS[boot].to_owned(),
            machine_id: "machine".to_owned(),
            spool_id: SPOOLS[self.spool].to_owned(),
            process_id: "process".to_owned(),
            detectors: vec![Detector {
                name: "kernel-log".to_owned(),
                state: DetectorState::DetectorSettled as i32,
                why: String::new(),
            }],
            // Nothing waits in the spool any more: what is missing here is lost.
            spool: Some(Spool::default()),
            last_number: self.last_number,
            asserted: asserted.map(|list| Asserted {
                hash_version: SentIdentity::VERSION,
                count: u32::try_from(list.len()).unwrap(),
                hash: SentIdentity::hash_of_set(list.iter().map(identity)).to_vec(),
            }),
            has_list: asserted.is_some(),
            asserted_events: list.to_vec(),
            ..ReportRequest::default()
        }
    }
}

/// A controller's part that takes in, on a store of its own.
struct Intake {
    store: EventStore,
    events: EventService,
    reports: ReportService,
    _folder: tempfile::TempDir,
}

/// An open fault: code, severity, action, by check.
type Open = Vec<(String, String, bool, i32)>;

impl Intake {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = EventStore::open(folder.path(), Options::default()).unwrap();
        store.set_fencing(1).await.unwrap();
        let metrics = Arc::new(ControllerMetrics::new());
        let gate = Arc::new(Gate::unchecked(Arc::clone(&metrics)));
        let config = Config::default();
        let limits = Arc::new(Limits::new(&config.ingest, &config.store));
        let skews = Arc::new(ClockSkews::load(&store).unwrap());
        let minute = Duration::from_secs(60);
        let reports = Reports::new(store.clone(), 1, WakeAll::default(), minute);
        let nodes = NodeCache::new(Vec::new(), Wanted::ours(""));
        let transformers =
            Transformers::new(&config.ingest, nodes.clone(), Arc::clone(&metrics)).unwrap();
        Self {
            events: EventService::new(
                Arc::clone(&gate),
                store.clone(),
                limits,
                skews,
                nodes.clone(),
                transformers.clone(),
                Arc::clone(&metrics),
            ),
            reports: ReportService::new(gate, reports, nodes, &[], transformers, metrics),
            store,
            _folder: folder,
        }
    }

    async fn say(&self, event: &HealthEvent) {
        let batch = HealthEvents {
            version: 1,
            events: vec![event.clone()],
        };
        let answer = self.events.health_event_occurred_v1(Request::new(batch));
        answer.await.unwrap();
    }

    async fn report(&self, report: ReportRequest) {
        self.reports.report(Request::new(report)).await.unwrap();
    }

    /// Boots in the order in which the machine has them.
    async fn boots(&self, made: &Made) {
        for boot in 0..=made.boot {
            self.report(made.report(boot, None)).await;
        }
    }

    fn open(&self) -> Open {
        let faults = self.store.open_faults(&NodeName::new(NODE).unwrap());
        let mut open: Open = faults
            .unwrap()
            .iter()
            .map(|fault| {
                let (check, code) = (fault.event.check_name.clone(), fault.id.key.code.clone());
                (check, code, fault.fatal, fault.action.number())
            })
            .collect();
        open.sort();
        open
    }
}

/// What happened at least once over the run.
#[derive(Debug, Default)]
struct Sometimes {
    rebooted: AtomicU32,
    other_spool: AtomicU32,
    lost: AtomicU32,
    out_of_turn: AtomicU32,
    wrong_before_the_report: AtomicU32,
    brought_by_the_list: AtomicU32,
    denied_by_the_list: AtomicU32,
    late: AtomicU32,
    ends_open: AtomicU32,
    ends_well: AtomicU32,
    both_monitors: AtomicU32,
}

impl Sometimes {
    fn note(counter: &AtomicU32, happened: bool) {
        counter.fetch_add(u32::from(happened), Ordering::Relaxed);
    }

    fn all_happened(&self) -> bool {
        let text = format!("{self:?}");
        !text.contains(": 0,") && !text.contains(": 0 ")
    }
}

/// Which events arrive when: indexes into the history, some twice.
#[derive(Debug, Clone)]
struct Arrival {
    before: Vec<usize>,
    late: Vec<usize>,
}

/// Every word of a monitor comes at least once, before the report or after it; those of the
/// detector may not.
fn arrival(history: Vec<Said>) -> impl Strategy<Value = (Vec<Said>, Arrival)> {
    let length = history.len();
    let fates = prop::collection::vec((0..4_u8, any::<bool>()), length);
    fates
        .prop_flat_map(move |fates| {
            let (mut before, mut late) = (Vec::new(), Vec::new());
            for (at, (fate, twice)) in fates.into_iter().enumerate() {
                match fate {
                    0 | 1 => before.push(at),
                    2 => late.push(at),
                    _ if history[at].who == Who::Detector => continue,
                    _ => before.push(at),
                }
                if twice {
                    before.push(at);
                    late.push(at);
                }
            }
            let before = Just(before).prop_shuffle();
            let late = Just(late).prop_shuffle();
            (Just(history.clone()), before, late)
        })
        .prop_map(|(history, before, late)| (history, Arrival { before, late }))
}

async fn run(history: &[Said], arrival: &Arrival, sometimes: &Sometimes) -> (Open, Open) {
    let made = make(history, Timestamp::now() - SignedDuration::from_hours(1));
    let asserted = made.asserted();

    let in_turn = Intake::new().await;
    in_turn.boots(&made).await;
    for (_, event) in &made.events {
        in_turn.say(event).await;
    }
    in_turn
        .report(made.report(made.boot, Some(&asserted)))
        .await;

    let other = Intake::new().await;
    other.boots(&made).await;
    for at in &arrival.before {
        other.say(&made.events[*at].1).await;
    }
    let before = other.open();
    other.report(made.report(made.boot, Some(&asserted))).await;
    let after = other.open();
    for at in &arrival.late {
        other.say(&made.events[*at].1).await;
    }
    // What was lost before and comes after a report is older than it; the next one repairs what a
    // lost healthy word leaves open.
    other.report(made.report(made.boot, Some(&asserted))).await;

    let (want, got) = (in_turn.open(), other.open());
    let arrived = |at: usize| arrival.before.contains(&at) || arrival.late.contains(&at);
    let has = |who: Who| history.iter().any(|said| said.who == who);
    let note = Sometimes::note;
    note(&sometimes.rebooted, made.boot > 0);
    note(&sometimes.other_spool, made.spool > 0);
    note(&sometimes.lost, (0..history.len()).any(|at| !arrived(at)));
    note(&sometimes.out_of_turn, !arrival.before.is_sorted());
    note(&sometimes.wrong_before_the_report, before != want);
    let is_new = after.iter().any(|fault| !before.contains(fault));
    note(&sometimes.brought_by_the_list, is_new);
    let is_gone = before.iter().any(|fault| !after.contains(fault));
    note(&sometimes.denied_by_the_list, is_gone);
    note(&sometimes.late, !arrival.late.is_empty());
    note(&sometimes.ends_open, !want.is_empty());
    note(&sometimes.ends_well, want.is_empty());
    note(
        &sometimes.both_monitors,
        has(Who::OnSocket) && has(Who::OnPort),
    );
    (want, got)
}

#[test]
fn whatever_comes_late_twice_or_not_at_all_the_node_ends_as_if_all_had_come_in_turn() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let sometimes = Sometimes::default();
    let cases = prop::collection::vec(said(), 1..14).prop_flat_map(arrival);
    for _ in 0..BATCHES {
        let mut runner = TestRunner::new(Runs {
            failure_persistence: None,
            ..Runs::with_cases(CASES)
        });
        let outcome = runner.run(&cases, |(history, arrival)| {
            let (want, got) = runtime.block_on(run(&history, &arrival, &sometimes));
            prop_assert_eq!(got, want);
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{error}"));
        if sometimes.all_happened() {
            return;
        }
    }
    panic!("some of it never happened: {sometimes:?}");
}
