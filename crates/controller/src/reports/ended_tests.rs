use event_store::{Fingerprint, NewEvent, Options};
use health_event::{Entity, HealthEvent, Subject};

use super::*;

const NODE: &str = "gpu-1";

/// An event of a monitor on the agent's socket.
fn said(code: &str, order: &str) -> NewEvent {
    let event = HealthEvent {
        id: format!("{code} {order}"),
        agent: "syslog-health-monitor".into(),
        component_class: "GPU".into(),
        check_name: "SysLogsXIDError".into(),
        is_fatal: true,
        error_codes: vec![code.into()],
        entities: vec![Entity::new("GPU", "0")],
        node_name: NODE.into(),
        ..HealthEvent::default()
    };
    let body = wire::encode_body(&event);
    NewEvent {
        sender: Sender::agent(NODE),
        subject: Subject::Node(NodeName::new(NODE).unwrap()),
        machine: "machine".into(),
        order: (!order.is_empty()).then(|| order.parse().unwrap()),
        received_at: Timestamp::now(),
        fingerprint: Fingerprint::of(&body),
        body,
        asserted_by_agent: false,
        newest_counts: false,
        inclusive: false,
        out_of_turn: false,
        standing: event_store::Standing::Counts,
        event,
    }
}

struct World {
    _folder: tempfile::TempDir,
    store: EventStore,
}

impl World {
    async fn of(events: Vec<NewEvent>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = EventStore::open(folder.path(), Options::default()).unwrap();
        for boot in ["old", "new"] {
            let boot = BootId::new(boot);
            let observed = store.observe_boot("machine", &boot, "s2", Timestamp::now());
            observed.await.unwrap();
        }
        store.append(events).await.unwrap();
        Self {
            _folder: folder,
            store,
        }
    }

    /// Codes left open after a settled report of this boot.
    async fn left_after(&self, boot: &str, listed: &[(&str, &str)]) -> Vec<String> {
        let node = NodeName::new(NODE).unwrap();
        let report = Settled {
            node: &node,
            machine: "machine",
            boot: &BootId::new(boot),
            spool: "s2",
            last_number: 10,
        };
        let listed = listed.iter().map(|(agent, check)| CheckRef {
            agent: (*agent).to_owned(),
            check: (*check).to_owned(),
        });
        close_rebooted(&self.store, &report, &listed.collect(), Timestamp::now())
            .await
            .unwrap();
        let open = self.store.open_faults(&node).unwrap();
        open.iter().map(|fault| fault.id.key.code.clone()).collect()
    }
}

const XID: [(&str, &str); 1] = [("syslog-health-monitor", "SysLogsXIDError")];

#[tokio::test]
async fn a_reboot_ends_what_socket_senders_said_in_an_earlier_boot() {
    let by_a_detector = NewEvent {
        asserted_by_agent: true,
        ..said("detector", "old/s2/2")
    };
    let of_another_machine = NewEvent {
        machine: "another".into(),
        ..said("machine", "old/s2/3")
    };
    let by_another_sender = NewEvent {
        sender: Sender::service_account("ns", "monitor"),
        ..said("sender", "")
    };
    let world = World::of(vec![
        said("79", "old/s2/1"),
        said("other-spool", "old/s1/99"),
        said("said-again", "old/s2/4"),
        said("said-again", "new/s2/5"),
        said("later", "old/s2/11"),
        said("later-spool", "old/s3/1"),
        by_a_detector,
        by_another_sender,
    ])
    .await;
    let all = world.left_after("old", &XID).await;
    assert_eq!(
        all.len(),
        7,
        "a report of the old boot proves nothing: {all:?}"
    );
    assert_eq!(
        world.left_after("new", &[]).await,
        all,
        "no check is listed"
    );
    let left = world.left_after("new", &XID).await;
    let want = ["said-again", "later", "later-spool", "detector", "sender"];
    assert_eq!(left, want);
    let world = World::of(vec![of_another_machine]).await;
    assert_eq!(world.left_after("new", &XID).await, ["machine"]);
}

#[tokio::test]
async fn a_retired_checks_faults_close_and_others_stay() {
    let mut other = said("other", "new/s2/2");
    other.event.check_name = "SysLogsSXIDError".into();
    let world = World::of(vec![said("79", "new/s2/1"), other]).await;
    let node = NodeName::new(NODE).unwrap();
    let retired = [CheckRef {
        agent: "syslog-health-monitor".into(),
        check: "SysLogsXIDError".into(),
    }];
    let id = world.store.open_faults(&node).unwrap()[0].id.clone();
    close_retired(&world.store, &retired, Timestamp::now())
        .await
        .unwrap();
    let closed = world.store.fault(&id).unwrap().unwrap();
    assert_eq!(
        (closed.open, closed.cause),
        (false, Some(CloseCause::RetiredCheck))
    );
    let open = world.store.open_faults(&node).unwrap();
    assert_eq!(open[0].id.key.code, "other");
    assert_eq!(open.len(), 1);
}
