use std::time::{Duration, Instant};

use health_event::keys;
use hyper_util::rt::TokioIo;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status};
use wire::datamodels::platform_connector_client::PlatformConnectorClient;
use wire::datamodels::{Entity, HealthEvent, HealthEvents, RecommendedAction};

use crate::kit::{Controller, Setup, until};

/// An event of another monitor.
pub(crate) fn event(message: &str) -> HealthEvent {
    HealthEvent {
        agent: "custom-monitor".into(),
        component_class: "Disk".into(),
        check_name: "Custom".into(),
        message: message.into(),
        is_fatal: true,
        entities_impacted: vec![Entity {
            entity_type: "Disk".into(),
            entity_value: "sda".into(),
        }],
        generated_timestamp: Some(wire::timestamp_to_wire(jiff::Timestamp::now())),
        ..HealthEvent::default()
    }
}

async fn client(setup: &Setup) -> PlatformConnectorClient<Channel> {
    client_as(setup, 0).await
}

/// A client of a user.
async fn client_as(setup: &Setup, uid: u32) -> PlatformConnectorClient<Channel> {
    let path = setup.socket();
    until("the socket", || path.exists().then_some(())).await;
    let connect = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move {
            let stream = as_user(uid, move || std::os::unix::net::UnixStream::connect(path))?;
            stream.set_nonblocking(true)?;
            tokio::net::UnixStream::from_std(stream).map(TokioIo::new)
        }
    });
    let endpoint = Endpoint::from_static("http://agent");
    let channel = endpoint.connect_with_connector(connect).await.unwrap();
    PlatformConnectorClient::new(channel)
}

/// Does something in a thread that is of another user, as the kernel sees it.
pub(crate) fn as_user<T: Send + 'static>(uid: u32, act: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        let uid = Uid::from_raw(uid);
        set_thread_res_uid(uid, uid, uid).unwrap();
        act()
    });
    thread.join().unwrap()
}

/// One call.
pub(crate) async fn send(setup: &Setup, events: Vec<HealthEvent>) -> Result<(), Status> {
    send_as(setup, 0, events).await
}

/// One call of a user.
pub(crate) async fn send_as(
    setup: &Setup,
    uid: u32,
    events: Vec<HealthEvent>,
) -> Result<(), Status> {
    let batch = HealthEvents { version: 1, events };
    let mut client = client_as(setup, uid).await;
    client.health_event_occurred_v1(batch).await.map(drop)
}

#[tokio::test]
async fn an_event_of_the_socket_gets_id_order_and_node_and_loses_what_is_ours_to_say() {
    let controller = Controller::start();
    let setup = Setup::new();
    let agent = setup.start(&controller.url());
    let mut sent = event("bad sector");
    sent.id = "mine".into();
    for key in [keys::ORDER, keys::DETECTOR, keys::HISTORICAL, "team"] {
        sent.metadata.insert(key.into(), "forged".into());
    }
    send(&setup, vec![sent]).await.unwrap();
    controller.events(1).await;
    let got = controller.see(|r| r.events[0].clone());
    assert_eq!(got.node_name, "gpu-1", "empty means this node");
    assert_eq!(got.metadata[keys::SENDER_ID], "mine");
    assert_eq!(got.id.len(), 26, "a ULID of the agent's own");
    assert!(got.metadata[keys::ORDER].starts_with("boot-1/"));
    assert_eq!(got.metadata["team"], "forged");
    assert!(!got.metadata.contains_key(keys::DETECTOR));
    assert!(!got.metadata.contains_key(keys::HISTORICAL));
    let mode = std::fs::metadata(setup.socket()).unwrap().permissions();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777,
        0o666
    );
    assert!(agent.stop().success());
    assert!(!setup.socket().exists(), "removed at shutdown");
}

#[tokio::test]
async fn every_bad_input_has_its_answer_and_stores_nothing() {
    let controller = Controller::start();
    let setup = Setup::new();
    let _agent = setup.start(&controller.url());
    let with = |change: &dyn Fn(&mut HealthEvent)| {
        let mut event = event("x");
        change(&mut event);
        event
    };
    let entity = |n: usize| Entity {
        entity_type: "GPU".into(),
        entity_value: n.to_string(),
    };
    let custom: i32 = RecommendedAction::Custom.into();
    let table: [(&str, HealthEvent, Code, &str); 10] = [
        (
            "no check",
            with(&|e| e.check_name.clear()),
            Code::InvalidArgument,
            "checkName",
        ),
        (
            "a check that steers terminals",
            with(&|e| e.check_name = "Cu\u{1b}[31m\nstom".into()),
            Code::InvalidArgument,
            "event 1: checkName has the character U+001B; allowed: characters that can be seen",
        ),
        (
            "bad node",
            with(&|e| e.node_name = "A_b".into()),
            Code::InvalidArgument,
            "nodeName",
        ),
        (
            "no custom",
            with(&|e| e.recommended_action = custom),
            Code::InvalidArgument,
            "customRecommendedAction",
        ),
        (
            "devices",
            with(&|e| e.entities_impacted = (0..65).map(entity).collect()),
            Code::InvalidArgument,
            "64 devices",
        ),
        (
            "codes",
            with(&|e| e.error_code = vec!["1".into(); 65]),
            Code::InvalidArgument,
            "64 codes",
        ),
        (
            "other node",
            with(&|e| e.node_name = "gpu-2".into()),
            Code::PermissionDenied,
            "its own bearer token",
        ),
        (
            "our detector",
            with(&|e| {
                e.agent = "syslog-health-monitor".into();
                e.component_class = "GPU".into();
                e.check_name = "SysLogsXIDError".into();
            }),
            Code::PermissionDenied,
            "kernel_log.source",
        ),
        (
            "our name",
            with(&|e| e.agent = "warden-agent".into()),
            Code::PermissionDenied,
            "own name",
        ),
        (
            "too large",
            with(&|e| e.message = "m".repeat(4 << 20)),
            Code::InvalidArgument,
            "4 MiB",
        ),
    ];
    for (name, bad, code, text) in table {
        let error = send(&setup, vec![event("good"), bad])
            .await
            .expect_err(name);
        assert_eq!(error.code(), code, "{name}: {error}");
        assert!(error.message().contains(text), "{name}: {error}");
    }
    let many = send(&setup, vec![event("x"); 1_001]).await.unwrap_err();
    assert_eq!(many.code(), Code::InvalidArgument);
    send(&setup, Vec::new()).await.unwrap();
    send(&setup, vec![event("last")]).await.unwrap();
    controller.events(1).await;
    assert_eq!(controller.see(|r| r.events[0].message.clone()), "last");
}

/// The type of a node's condition is the check's name alone.
#[tokio::test]
async fn what_only_warden_says_nobody_else_does() {
    let controller = Controller::start();
    let setup = Setup::new();
    let _agent = setup.start(&controller.url());
    for name in ["WardenMoreFaults", "AgentSilent", "EventsLost"] {
        let mut bad = event("x");
        bad.check_name = name.into();
        // As `warden inject` sends it.
        bad.metadata.insert(keys::INJECTED.into(), "true".into());
        let error = send(&setup, vec![event("good"), bad]).await.unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied, "{name}");
        let want = format!("event 1: checkName {name:?} is what Warden says of itself");
        assert!(error.message().starts_with(&want), "{error}");
    }
    send(&setup, vec![event("last")]).await.unwrap();
    controller.events(1).await;
    assert_eq!(controller.see(|r| r.events[0].message.clone()), "last");
}

#[tokio::test]
async fn odd_values_are_taken_with_what_they_mean() {
    let controller = Controller::start();
    let setup = Setup::new();
    let _agent = setup.start(&controller.url());
    let mut odd = event(&"m".repeat(20_000));
    odd.recommended_action = 77;
    odd.processing_strategy = 44;
    let ahead = jiff::Timestamp::now() + jiff::SignedDuration::from_mins(30);
    odd.generated_timestamp = Some(wire::timestamp_to_wire(ahead));
    send(&setup, vec![odd]).await.unwrap();
    controller.events(2).await;
    let got = controller.see(|r| r.of_check("Custom")[0].clone());
    assert_eq!(got.recommended_action.number(), 77);
    assert_eq!(got.strategy, health_event::ProcessingStrategy::StoreOnly);
    assert!(got.message.len() <= 16 * 1024 && got.message.ends_with("[cut]"));
    assert!(got.metadata.contains_key(keys::CLAIMED_TIME));
    assert!(got.generated_at.unwrap() < ahead);
    let skew = controller.see(|r| r.of_check("ClockSkew")[0].clone());
    assert!(!skew.is_fatal && skew.error_codes == ["custom-monitor"]);
}

#[tokio::test]
async fn an_event_that_is_healthy_and_fatal_is_taken_unchanged() {
    let controller = Controller::start();
    let setup = Setup::new();
    let _agent = setup.start(&controller.url());
    let mut both = event("well again");
    both.is_healthy = true;
    send(&setup, vec![both]).await.unwrap();
    controller.events(1).await;
    let got = controller.see(|r| r.events[0].clone());
    assert!(got.is_healthy && got.is_fatal);
    assert_eq!(got.message, "well again");
}

#[tokio::test]
async fn without_a_controller_an_acknowledged_event_survives_kill_nine() {
    let mut controller = Controller::absent();
    let setup = Setup::new();
    let agent = setup.start(&controller.url());
    for n in 0..20 {
        send(&setup, vec![event(&format!("event {n}"))])
            .await
            .unwrap();
    }
    agent.kill();
    assert!(setup.socket().exists(), "a killed agent leaves its file");
    let _agent = setup.start(&controller.url());
    controller.up();
    controller.events(20).await;
    let messages = controller.see(|r| {
        r.events
            .iter()
            .map(|e| e.message.clone())
            .collect::<Vec<_>>()
    });
    let want: Vec<String> = (0..20).map(|n| format!("event {n}")).collect();
    assert_eq!(messages, want);
}

#[tokio::test]
async fn a_retried_call_is_one_event() {
    let controller = Controller::start();
    let setup = Setup::new();
    let _agent = setup.start(&controller.url());
    let (once, untimed) = (event("once"), {
        let mut event = event("untimed");
        event.generated_timestamp = None;
        event
    });
    for _ in 0..3 {
        send(&setup, vec![once.clone(), untimed.clone()])
            .await
            .unwrap();
    }
    send(&setup, vec![event("last")]).await.unwrap();
    until("the last", || {
        controller.see(|r| r.events.iter().any(|e| e.message == "last").then_some(()))
    })
    .await;
    let count =
        |text: &str| controller.see(|r| r.events.iter().filter(|e| e.message == text).count());
    assert_eq!(count("once"), 1);
    assert_eq!(
        count("untimed"),
        3,
        "without a time equal events may mean different things"
    );
}

/// The reference's publisher: the socket must be there, five tries, 2 s × 1.5 apart (here 20
/// times faster), only on UNAVAILABLE, DEADLINE_EXCEEDED or a broken connection.
async fn publish(setup: &Setup, events: Vec<HealthEvent>) -> Result<(), String> {
    let mut wait = Duration::from_millis(100);
    let mut last = String::new();
    for tried in 0..5 {
        if !setup.socket().exists() {
            return Err("platform connector unavailable".into());
        }
        match send(setup, events.clone()).await {
            Ok(()) => return Ok(()),
            Err(error) if matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded) => {
                last = error.to_string();
            }
            Err(error) => return Err(format!("after {tried} other tries: {error}")),
        }
        tokio::time::sleep(wait).await;
        wait = wait.mul_f64(1.5);
    }
    Err(last)
}

#[tokio::test]
async fn the_references_publisher_gets_through() {
    let controller = Controller::start();
    let setup = Setup::new();
    assert_eq!(
        publish(&setup, vec![event("early")]).await.unwrap_err(),
        "platform connector unavailable",
        "no socket, no try"
    );
    let agent = setup.start(&controller.url());
    until("the socket", || setup.socket().exists().then_some(())).await;
    publish(&setup, vec![event("in time")]).await.unwrap();
    let mut bad = event("bad");
    bad.check_name.clear();
    let refused = publish(&setup, vec![bad]).await.unwrap_err();
    assert!(
        refused.starts_with("after 0 other tries: ") && refused.contains("checkName"),
        "{refused}"
    );
    assert!(agent.stop().success());
}

#[tokio::test]
async fn a_flood_of_repeats_is_held_up_and_a_new_fault_is_not() {
    let controller = Controller::start();
    let setup = Setup::new();
    let _agent = setup.start(&controller.url());
    let repeats = || {
        let mut event = event("again");
        event.generated_timestamp = None;
        vec![event; 1_000]
    };
    for _ in 0..2 {
        send(&setup, repeats()).await.unwrap();
    }
    let error = send(&setup, repeats()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.metadata().contains_key(wire::answers::RETRY_HINT));
    let mut other = event("another disk");
    other.entities_impacted[0].entity_value = "sdb".into();
    send(&setup, vec![other]).await.unwrap();
}

#[tokio::test]
async fn a_call_that_finds_no_tokens_is_held_and_then_taken() {
    /// 20 tokens a second: some 4 s of the 5 s that a call is held at most.
    const MORE: usize = 80;
    let controller = Controller::start();
    let setup = Setup::new();
    let _agent = setup.start(&controller.url());
    let repeats = |count: usize| {
        let mut event = event("again");
        event.generated_timestamp = None;
        vec![event; count]
    };
    until("the socket", || setup.socket().exists().then_some(())).await;
    // The first opens its identity and needs no token.
    for count in [1, 1_000, 1_000] {
        send(&setup, repeats(count)).await.unwrap();
    }
    let start = Instant::now();
    let answer = tokio::time::timeout(crate::kit::DEADLINE, send(&setup, repeats(MORE))).await;
    answer.unwrap().unwrap();
    let held = start.elapsed();
    let want = Duration::from_secs(1)..Duration::from_secs(6);
    assert!(want.contains(&held), "{held:?}");
    controller.events(1 + 2_000 + MORE).await;
}

#[tokio::test]
async fn a_caller_with_its_own_token_is_passed_on_and_never_kept() {
    let mut controller = Controller::start();
    let setup = Setup::new();
    let _agent = setup.start(&controller.url());
    until("the first report", || {
        controller.see(|r| r.reports.first().map(|_| ()))
    })
    .await;
    let call = async || {
        let mut other = event("of another node");
        other.node_name = "gpu-2".into();
        let mut request = Request::new(HealthEvents {
            version: 1,
            events: vec![other],
        });
        let token = "Bearer cluster-monitor".parse().unwrap();
        request.metadata_mut().insert(wire::AUTHORIZATION, token);
        client(&setup).await.health_event_occurred_v1(request).await
    };
    call().await.unwrap();
    assert_eq!(controller.see(|r| r.events[0].node_name.clone()), "gpu-2");
    assert_eq!(
        controller.see(|r| r.tokens[0].clone()).as_deref(),
        Some("Bearer cluster-monitor")
    );
    controller.see(|r| r.answers = vec![Err(Status::permission_denied("not yours"))]);
    assert_eq!(call().await.unwrap_err().code(), Code::PermissionDenied);
    controller.down();
    assert_eq!(call().await.unwrap_err().code(), Code::Unavailable);
    controller.up();
    send(&setup, vec![event("own")]).await.unwrap();
    controller.events(2).await;
    assert_eq!(
        controller.see(|r| r.events[1].message.clone()),
        "own",
        "nothing was kept"
    );
}

#[tokio::test]
async fn whoever_sees_the_socket_can_connect_also_while_the_agent_starts_anew() {
    let controller = Controller::absent();
    let setup = Setup::new();
    let mut agent = setup.start(&controller.url());
    let connect = || std::os::unix::net::UnixStream::connect(setup.socket());
    until("the socket", || setup.socket().exists().then_some(())).await;
    connect().unwrap();
    agent.kill();
    assert!(connect().is_err(), "a killed agent leaves its file");
    agent = setup.start(&controller.url());
    until("the new socket", || {
        assert!(setup.socket().exists(), "it is replaced, never missing");
        connect().ok()
    })
    .await;
    assert!(agent.stop().success());
    let left = |name: &str| setup.path(name).exists();
    assert!(!left("run/agent.sock") && !left("run/agent.soc~"));
}

#[tokio::test]
async fn a_second_agent_is_refused_the_socket_and_the_first_keeps_it() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let first = setup.start(&controller.url());
    send(&setup, vec![event("before")]).await.unwrap();
    setup.state = setup.path("state of the second");
    let mut second = setup.start(&controller.url());
    until("its end", || (!second.is_running()).then_some(())).await;
    let socket = setup.socket().display().to_string();
    let line = format!("socket {socket} can't be served: another agent serves it and holds");
    let logged = setup.logged();
    assert!(logged.contains(&line), "{logged}");
    send(&setup, vec![event("after")]).await.unwrap();
    // A dead agent keeps nobody out, and its file is replaced.
    first.kill();
    assert!(setup.socket().exists());
    let second = setup.start(&controller.url());
    until("the socket's new owner", || {
        std::os::unix::net::UnixStream::connect(setup.socket()).ok()
    })
    .await;
    send(&setup, vec![event("of the second")]).await.unwrap();
    assert!(second.stop().success());
    assert!(!setup.socket().exists(), "removed by its owner");
}

#[tokio::test]
async fn peers_can_be_limited_to_some_users() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let config = setup.path("agent.toml");
    std::fs::write(&config, "[socket]\nuids = [4711]\n").unwrap();
    setup.flag("--config", &config.display().to_string());
    let _agent = setup.start(&controller.url());
    let error = send(&setup, vec![event("x")]).await.unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied);
    assert!(error.message().contains("socket.uids"));
}
