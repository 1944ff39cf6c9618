//! Events over TCP: what is taken in, what is refused, and that an answer means durable.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use event_store::{EventStore, Options};
use tokio::sync::Mutex;
use tonic::Code;
use wire::datamodels::{BehaviourOverrides, HealthEvent};

use crate::harness::{Cluster, SOON};
use crate::process::{Program, Sender, numbered};

async fn local(flags: &[&str]) -> (Cluster, Program) {
    let cluster = Cluster::with_nodes(&[]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let flags: Vec<&str> = ["--insecure-local"].iter().chain(flags).copied().collect();
    let program = Program::start(&cluster.testbed.kubeconfig(), "", &flags);
    program.up().await;
    (cluster, program)
}

/// Ids of the events in a store that nobody has open.
fn stored(folder: &std::path::Path) -> BTreeSet<String> {
    let store = EventStore::open(&folder.join("store"), Options::default()).unwrap();
    let (mut ids, mut after) = (BTreeSet::new(), 0);
    loop {
        let page = store.events(None, after, 500).unwrap();
        let Some(last) = page.last() else { return ids };
        after = last.seq;
        ids.extend(page.into_iter().map(|event| event.id));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_before_a_kill_is_in_the_store() {
    let (_cluster, program) = local(&[]).await;
    let channel = program.plain().await;
    let acknowledged: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let number = Arc::new(AtomicU64::new(0));
    let senders = (0..8).map(|n| {
        let sender = Sender::new(channel.clone(), None);
        let (acknowledged, number) = (Arc::clone(&acknowledged), Arc::clone(&number));
        tokio::spawn(async move {
            loop {
                // Ids differ by node and number; faults differ by device, so that all are stored.
                let mut event = numbered(&format!("n{n}"), number.fetch_add(1, Ordering::Relaxed));
                event.entities_impacted[0].entity_value = event.id.clone();
                event.entities_impacted[0].entity_type = "GPU_UUID".into();
                let id = event.id.clone();
                if sender.send(vec![event]).await.is_err() {
                    return;
                }
                acknowledged.lock().await.insert(id);
            }
        })
    });
    let senders: Vec<_> = senders.collect();
    let begun = std::time::Instant::now();
    while acknowledged.lock().await.len() < 300 {
        assert!(begun.elapsed() < SOON, "300 are not acknowledged in time");
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let folder = program.kill();
    for sender in senders {
        sender.await.unwrap();
    }
    let acknowledged = acknowledged.lock().await.clone();
    let stored = stored(folder.path());
    let lost: Vec<&String> = acknowledged.difference(&stored).collect();
    assert!(lost.is_empty(), "{lost:?} of {}", acknowledged.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_the_commit_and_before_the_answer_leaves_one_copy_after_the_retry() {
    let (cluster, mut program) = local(&["--crash-at", "ingest.after-append"]).await;
    let sender = Sender::new(program.plain().await, None);
    let event = numbered("n1", 1);
    sender.send(vec![event.clone()]).await.unwrap_err();
    assert!(!program.ended().await.success());
    let folder = program.kill();
    let kubeconfig = cluster.testbed.kubeconfig();
    let program = Program::start_in(folder, &kubeconfig, "", &["--insecure-local"]);
    program.up().await;
    Sender::new(program.plain().await, None)
        .send(vec![event])
        .await
        .unwrap();
    let folder = program.kill();
    assert_eq!(stored(folder.path()), BTreeSet::from(["n1-1".to_owned()]));
    let store = EventStore::open(&folder.path().join("store"), Options::default()).unwrap();
    assert_eq!(store.events(None, 0, 10).unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_whole_with_event_field_and_allowed_form() {
    let (_cluster, program) = local(&[]).await;
    let sender = Sender::new(program.plain().await, None);
    let bad = |change: fn(&mut HealthEvent)| {
        let mut event = numbered("n1", 2);
        change(&mut event);
        event
    };
    let table = [
        (bad(|e| e.check_name.clear()), "event 1: checkName is empty"),
        (
            bad(|e| e.check_name.push('\u{1b}')),
            "event 1: checkName has the character U+001B",
        ),
        (
            bad(|e| e.node_name = "Not_A_Name".into()),
            "event 1: nodeName",
        ),
        (bad(|e| e.node_name.clear()), "event 1: nodeName"),
        (
            bad(|e| e.recommended_action = 27),
            "event 1: customRecommendedAction",
        ),
        (
            bad(|e| e.error_code = vec!["1".into(); 65]),
            "event 1: errorCode has 65",
        ),
        (
            bad(|e| {
                let gpu = |n| wire::datamodels::Entity {
                    entity_type: "GPU".into(),
                    entity_value: format!("{n}"),
                };
                e.entities_impacted = (0..65).map(gpu).collect();
            }),
            "event 1: entitiesImpacted",
        ),
        (
            bad(|e| e.agent = "x".repeat(300)),
            "event 1: agent has 300 bytes",
        ),
        (
            bad(|e| {
                e.metadata.insert("warden.dev/order".into(), "7".into());
            }),
            "event 1:",
        ),
    ];
    for (event, want) in table {
        let error = sender
            .send(vec![numbered("n1", 1), event])
            .await
            .unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{want}");
        assert!(
            error.message().starts_with(want),
            "{want}: {}",
            error.message()
        );
        assert!(error.message().len() < 1_000);
    }
    let many = (0..1_001).map(|n| numbered("n1", n)).collect();
    let error = sender.send(many).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(
        error.message().contains("at most 1000"),
        "{}",
        error.message()
    );
    let large = (0..300)
        .map(|n| HealthEvent {
            message: "x".repeat(15_000),
            ..numbered("n1", n)
        })
        .collect();
    let error = sender.send(large).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("4 MiB"), "{}", error.message());

    sender.send(Vec::new()).await.unwrap();
    let folder = program.kill();
    assert_eq!(
        stored(folder.path()),
        BTreeSet::new(),
        "nothing of it was stored"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_warden_says_nobody_else_does() {
    let (_cluster, program) = local(&[]).await;
    let sender = Sender::new(program.plain().await, None);
    // What only Warden says; an event out of an agent's spool is to be put aside there.
    let (denied, aside) = (Code::PermissionDenied, Code::InvalidArgument);
    for (name, agent, spooled, want) in [
        ("WardenMoreFaults", "custom", false, denied),
        ("OtherQuarantineActive", "custom", true, aside),
        ("AgentSilent", "warden-agent", true, aside),
        ("EventsLost", "warden-agent", false, denied),
        ("EventsLost", "custom", true, aside),
    ] {
        let mut event = numbered("n1", 2);
        event.check_name = name.into();
        event.agent = agent.into();
        assert!(event.metadata.contains_key("warden.dev/order"));
        event.metadata.retain(|_, _| spooled);
        let said = sender.send(vec![event]).await.map_err(|error| {
            assert!(error.message().contains("what Warden says of itself"));
            error.code()
        });
        assert_eq!(said.err(), Some(want), "{name} {agent} {spooled}");
    }
    let folder = program.kill();
    assert_eq!(stored(folder.path()), BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_input_is_taken_in_as_the_table_says() {
    let (_cluster, program) = local(&[]).await;
    let sender = Sender::new(program.plain().await, None);
    let mut unknown = numbered("n1", 1);
    unknown.recommended_action = 77;
    unknown.quarantine_overrides = Some(BehaviourOverrides {
        force: true,
        skip: false,
    });
    let mut long = numbered("n1", 2);
    long.message = "y".repeat(20_000);
    let mut ahead = numbered("n1", 3);
    let claimed = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    ahead.generated_timestamp = Some(wire::timestamp_to_wire(claimed));
    sender.send(vec![unknown, long, ahead]).await.unwrap();
    sender.send(vec![numbered("n1", 4)]).await.unwrap();
    let mut only_stored = numbered("n1", 5);
    only_stored.processing_strategy = 77;
    let mut acted_on = numbered("n1", 6);
    acted_on.processing_strategy = 0;
    acted_on.generated_timestamp = None;
    let before = jiff::Timestamp::now();
    sender.send(vec![only_stored, acted_on]).await.unwrap();
    let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
    let (_, events) = program
        .get("/api/v1/events?node=n1", Some(token.trim()))
        .await;
    let events: Vec<serde_json::Value> = serde_json::from_str(&events).unwrap();
    let of = |id: &str| events.iter().find(|e| e["id"] == id).unwrap();
    assert!(of("n1-2")["message"].as_str().unwrap().ends_with("[cut]"));
    let at: jiff::Timestamp = of("n1-3")["generated_at"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(at < claimed, "the time of receipt counts");
    let (_, node) = program.get("/api/v1/nodes/n1", Some(token.trim())).await;
    let node: serde_json::Value = serde_json::from_str(&node).unwrap();
    let open = |list: &str, number: u64| {
        let message = format!("XID 79, number {number}");
        let faults = node[list].as_array().unwrap().iter();
        faults.filter(|f| f["message"] == message).count()
    };
    let first = node["faults"].as_array().unwrap().iter();
    let actions: Vec<_> = first
        .filter(|f| f["message"] == "XID 79, number 1")
        .collect();
    assert_eq!(
        actions[0]["action"], "CONTACT_SUPPORT",
        "an unknown number: {node}"
    );
    assert_eq!((open("faults", 5), open("observed", 5)), (0, 1), "{node}");
    assert_eq!((open("faults", 6), open("observed", 6)), (1, 0), "{node}");
    let at: jiff::Timestamp = of("n1-6")["generated_at"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(at >= before, "no time: that of receipt");
    let skew: Vec<bool> = events
        .iter()
        .filter(|e| e["check"] == "ClockSkew")
        .map(|e| e["healthy"].as_bool().unwrap())
        .collect();
    assert_eq!(
        skew,
        [false, true],
        "raised by the one ahead, closed by the next that is not"
    );
}

/// One call with these bytes as its message and maybe a deadline of the caller's own: no library
/// of a client stands between, which would answer in the server's place.
async fn raw(program: &Program, message: &[u8], deadline: Option<&str>) -> tonic::Status {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let framed = [&[0], length.as_slice(), message].concat();
    let address = program.address("ingest").await;
    let path = "datamodels.PlatformConnector/HealthEventOccurredV1";
    let mut request = http::Request::post(format!("http://{address}/{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(deadline) = deadline {
        request = request.header("grpc-timeout", deadline);
    }
    let body = http_body_util::Full::new(hyper::body::Bytes::from(framed));
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let answer = client.request(request.body(body).unwrap()).await.unwrap();
    let status = tonic::Status::from_header_map(answer.headers());
    status.unwrap_or_else(|| tonic::Status::ok("a message"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callers_deadline_and_unreadable_bytes_get_answers_that_clients_understand() {
    let cluster = Cluster::with_nodes(&[]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    // Two events a second once the burst is used up: the next ones wait longer than their callers, but
    // for the few that came free while the burst was stored. Three, also when the ones before them went
    // on credit for their 200 ms, are not so many that they are told to come back after two seconds.
    let slow = "sender_rate = 2\nsender_burst = 1000\n";
    let program = Program::start(&cluster.testbed.kubeconfig(), slow, &["--insecure-local"]);
    program.up().await;
    let batch = |node: &str, numbers: std::ops::Range<u64>| {
        let events = numbers.map(|number| numbered(node, number)).collect();
        prost::Message::encode_to_vec(&wire::datamodels::HealthEvents { version: 1, events })
    };
    for (node, deadline) in [("n1", "100m"), ("n2", "150000u"), ("n3", "200m")] {
        let burst = raw(&program, &batch(node, 0..1_000), None).await;
        assert_eq!(burst.code(), Code::Ok, "{burst:?}");
        let mut number = 1_000;
        let status = loop {
            let three = batch(node, number..number + 3);
            let status = raw(&program, &three, Some(deadline)).await;
            if status.code() != Code::Ok {
                break status;
            }
            number += 3;
            assert!(number < 1_100, "{deadline}: nobody waits");
        };
        assert_eq!(status.code(), Code::Unavailable, "{deadline}: {status:?}");
        assert!(status.message().contains("not done within"), "{status:?}");
        let hint = status.metadata().get(wire::answers::RETRY_HINT);
        assert!(hint.is_some(), "{deadline}: {status:?}");
    }
    for bytes in [&b"\x12\x7f"[..], b"\xff\xff", &[0xff; 64]] {
        let status = raw(&program, bytes, None).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{bytes:?}");
        assert!(
            status.message().contains("health_event.proto"),
            "{status:?}"
        );
    }
    let status = raw(&program, &vec![0; wire::validate::RECEIVE_LIMIT + 1], None).await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(status.message().contains("4 MiB"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_fault_nor_a_recovery_waits_for_long_behind_more_than_a_senders_share() {
    let cluster = Cluster::with_nodes(&[]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let kubeconfig = cluster.testbed.kubeconfig();
    let folder = tempfile::tempdir().unwrap();
    // A twentieth is less than a MiB.
    let text = crate::process::config(folder.path(), "silent", "");
    let text = text.replace("[store]", "[store]\nmax_bytes = \"16MiB\"");
    std::fs::write(folder.path().join("controller.toml"), text).unwrap();
    let local = &["--insecure-local"];
    let program = Program::start_again(folder, &kubeconfig, local);
    program.up().await;
    let batch = |from: u64| -> Vec<HealthEvent> {
        // Each with a code of its own: repeats would only be counted.
        let event = |number: u64| HealthEvent {
            is_fatal: false,
            message: "x".repeat(15_000),
            error_code: vec![number.to_string()],
            ..numbered("n1", number)
        };
        (from..from + 50).map(event).collect()
    };
    let within = |send| tokio::time::timeout(std::time::Duration::from_secs(8), send);
    let sender = Sender::new(program.plain().await, None);
    for from in (0..400).step_by(50) {
        within(sender.send(batch(from))).await.unwrap().unwrap();
    }
    let mut fatal = numbered("n1", 1_000);
    fatal.check_name = "Late".to_owned();
    let mut healthy = fatal.clone();
    within(sender.send(vec![fatal])).await.unwrap().unwrap();
    assert_eq!(open_of(&program, "Late").await, 1);
    within(sender.send(batch(400))).await.unwrap().unwrap();

    // A restart changes nothing.
    let program = Program::start_again(program.kill(), &kubeconfig, local);
    program.up().await;
    let sender = Sender::new(program.plain().await, None);
    within(sender.send(batch(450))).await.unwrap().unwrap();
    healthy.id = "recovered".to_owned();
    healthy.metadata = numbered("n1", 1_001).metadata;
    (healthy.is_healthy, healthy.is_fatal) = (true, false);
    healthy.generated_timestamp = None;
    within(sender.send(vec![healthy])).await.unwrap().unwrap();
    assert_eq!(open_of(&program, "Late").await, 0);
}

/// Open faults of node `n1` of a check.
async fn open_of(program: &Program, check: &str) -> usize {
    let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
    let (_, node) = program.get("/api/v1/nodes/n1", Some(token.trim())).await;
    let node: serde_json::Value = serde_json::from_str(&node).unwrap();
    let faults = node["faults"].as_array().unwrap().iter();
    faults.filter(|fault| fault["check"] == check).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_again_after_its_recovery_is_new_unless_its_time_or_id_says_that_it_is_not() {
    let (_cluster, program) = local(&[]).await;
    let sender = Sender::new(program.plain().await, None);
    let at = Some(wire::timestamp_to_wire(jiff::Timestamp::now()));
    let table = [
        ("Nothing", "", None, 1),
        ("Time", "", at, 0),
        ("Id", "id-1", None, 0),
        ("Both", "id-2", at, 0),
    ];
    for (check, id, time, again) in table {
        let fault = HealthEvent {
            id: id.to_owned(),
            check_name: check.to_owned(),
            generated_timestamp: time,
            metadata: std::collections::BTreeMap::new(),
            ..numbered("n1", 1)
        };
        let healthy = HealthEvent {
            id: String::new(),
            is_healthy: true,
            is_fatal: false,
            generated_timestamp: None,
            ..fault.clone()
        };
        for (event, open) in [(&fault, 1), (&healthy, 0), (&fault, again), (&healthy, 0)] {
            sender.send(vec![event.clone()]).await.unwrap();
            let found = open_of(&program, check).await;
            assert_eq!(found, open, "{check}, healthy: {}", event.is_healthy);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_bound_an_idle_connection_goes_for_the_next_caller_and_a_busy_one_stays() {
    let cluster = Cluster::with_nodes(&[]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let bounds = "max_connections = 100\nsender_rate = 2\nsender_burst = 1000\n";
    let program = Program::start(&cluster.testbed.kubeconfig(), bounds, &["--insecure-local"]);
    program.up().await;
    let connections = || async {
        let (_, page) = program.get("/metrics", None).await;
        let name = "warden_ingest_connections ";
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|count| count.parse::<usize>().ok()).unwrap()
    };
    let busy = Sender::new(program.plain().await, None);
    busy.send(vec![numbered("busy", 0)]).await.unwrap();
    let mut idle = Vec::new();
    for number in 0..99 {
        let sender = Sender::new(program.plain().await, None);
        sender.send(vec![numbered("idle", number)]).await.unwrap();
        idle.push(sender);
    }
    assert_eq!(connections().await, 100);
    // Ten callers more than there is room for, while the oldest connection has a call that waits.
    let burst = (1..1_000).map(|number| numbered("busy", number)).collect();
    busy.send(burst).await.unwrap();
    let slow = (1_000..1_004)
        .map(|number| numbered("busy", number))
        .collect();
    let held = tokio::spawn(async move { busy.send(slow).await });
    let mut more = Vec::new();
    for number in 100..110 {
        let sender = Sender::new(program.plain().await, None);
        sender.send(vec![numbered("more", number)]).await.unwrap();
        more.push(sender);
        assert!(connections().await <= 101, "one caller waits at most");
    }
    held.await.unwrap().unwrap();
    // Those that were closed come again.
    for (number, sender) in (200..).zip(&idle[..20]) {
        sender.send(vec![numbered("idle", number)]).await.unwrap();
    }
    assert!(connections().await <= 101);
}
