//! Short ways to say what a test sends.

use std::collections::BTreeSet;
use std::path::Path;

use event_store::{Appended, EventStore, Fingerprint, NewEvent, Options};
use health_event::fault::FaultKey;
use health_event::{
    Device, Entity, FaultId, HealthEvent, NodeName, Order, ProcessingStrategy, RecommendedAction,
    Scope, Sender, Subject,
};
use jiff::Timestamp;

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

pub(crate) fn node() -> NodeName {
    NodeName::new("gpu-17").unwrap()
}

pub(crate) fn open(dir: &Path) -> EventStore {
    EventStore::open(dir, Options::default()).unwrap()
}

/// Nodes with an open fault that may have effects, sorted.
pub(crate) fn nodes_with_open_faults(store: &EventStore) -> Vec<NodeName> {
    let open = store.open_faults_all().unwrap();
    let nodes: BTreeSet<NodeName> = open
        .into_iter()
        .filter_map(|fault| match fault.id.scope.subject {
            Subject::Node(node) => Some(node),
            Subject::Pool(_) | Subject::Cluster => None,
        })
        .collect();
    nodes.into_iter().collect()
}

/// An event of the node's agent: fatal XID of GPU 0, number `number` of its spool, one a second.
pub(crate) fn fault(number: u64, code: &str) -> NewEvent {
    let event = HealthEvent {
        id: format!("id-{number}"),
        agent: "syslog-health-monitor".into(),
        component_class: "GPU".into(),
        check_name: "SysLogsXIDError".into(),
        is_fatal: true,
        message: format!("NVRM: Xid {code}, number {number}"),
        recommended_action: RecommendedAction::RestartBm,
        error_codes: vec![code.to_owned()],
        entities: vec![Entity::new("GPU", "0")],
        generated_at: Some(at(number.cast_signed())),
        node_name: "gpu-17".into(),
        ..HealthEvent::default()
    };
    new_event(event, number)
}

/// The healthy word about GPU 0, all codes.
pub(crate) fn healthy(number: u64) -> NewEvent {
    let mut new = fault(number, "");
    new.event.is_healthy = true;
    new.event.is_fatal = false;
    new.event.recommended_action = RecommendedAction::None;
    new.event.error_codes.clear();
    sealed(new)
}

fn new_event(event: HealthEvent, number: u64) -> NewEvent {
    sealed(NewEvent {
        sender: Sender::agent("gpu-17"),
        subject: Subject::Node(node()),
        machine: "machine-1".into(),
        order: Some(order("boot-1", "spool-1", number)),
        received_at: event.generated_at.unwrap(),
        body: Vec::new(),
        fingerprint: Fingerprint([0; 16]),
        asserted_by_agent: false,
        newest_counts: false,
        inclusive: false,
        out_of_turn: false,
        standing: event_store::Standing::Counts,
        event,
    })
}

pub(crate) fn order(boot: &str, spool: &str, number: u64) -> Order {
    format!("{boot}/{spool}/{number}").parse().unwrap()
}

/// Fills in body, fingerprint and what an agent's detector asserts, after the event was changed.
pub(crate) fn sealed(mut new: NewEvent) -> NewEvent {
    new.body = format!("{:?}", new.event).into_bytes();
    new.fingerprint = Fingerprint::of(&new.body);
    new.asserted_by_agent = !new.event.is_healthy;
    new
}

/// The same event from a direct sender, without an order.
pub(crate) fn direct(mut new: NewEvent, name: &str) -> NewEvent {
    new.sender = Sender::service_account("ops", name);
    new.order = None;
    new.event.id = format!("{name}-{}", new.event.id);
    let mut new = sealed(new);
    new.asserted_by_agent = false;
    new
}

pub(crate) fn strategy(mut new: NewEvent, strategy: ProcessingStrategy) -> NewEvent {
    new.event.strategy = strategy;
    sealed(new)
}

pub(crate) fn send(store: &EventStore, new: NewEvent) -> Appended {
    store.append(vec![new]).wait().unwrap().remove(0)
}

pub(crate) fn fault_id(code: &str) -> FaultId {
    FaultId {
        scope: Scope::of(&fault(1, code).event, node()),
        key: FaultKey {
            space: ProcessingStrategy::ExecuteRemediation,
            device: Device::new([Entity::new("GPU", "0")]).key(),
            code: code.to_owned(),
        },
    }
}

/// Codes of the open faults that may have effects.
pub(crate) fn open_codes(store: &EventStore) -> Vec<String> {
    let faults = store.open_faults(&node()).unwrap();
    faults.iter().map(|f| f.id.key.code.clone()).collect()
}
