//! Whatever the API is asked: what is wrong is said as JSON, with the right status.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};

use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{Patch, PatchParams};
use testbed::wait_for;
use wire::warden::v1::DetectorState;

use crate::harness::{Cluster, SOON};
use crate::process::{Program, Sender, numbered};
use crate::voice::Voice;

/// An answer that is a problem: JSON of exactly two texts, one of them a code.
fn problem(asked: &str, answer: &(u16, String)) -> (u16, String, String) {
    let (status, body) = answer;
    let value: Value = serde_json::from_str(body)
        .unwrap_or_else(|_| panic!("{asked}: no JSON with {status}: {body:?}"));
    let text = |key: &str| {
        let text = value[key].as_str();
        text.unwrap_or_else(|| panic!("{asked}: {body}")).to_owned()
    };
    assert_eq!(value.as_object().unwrap().len(), 2, "{asked}: {body}");
    let (error, code) = (text("error"), text("code"));
    assert!(error.len() >= 20 && error.len() < 1_000, "{asked}: {error}");
    (*status, code, error)
}

/// Method, path and query, body, status, code, part of the text.
type Case = (
    &'static str,
    &'static str,
    &'static str,
    u16,
    &'static str,
    &'static str,
);

/// Stands for a reason beyond its limit.
const LONG: &str = "a long story";
/// Stands for a body beyond the limit.
const LARGE: &str = "too much";

#[rustfmt::skip]
const BAD: &[Case] = &[
    ("GET", "/", "", 404, "no_such_path", "/api/v1"),
    ("GET", "/api/v2/nodes", "", 404, "no_such_path", "/api/v2/nodes"),
    ("GET", "/api/v1/nodes/api-1/none", "", 404, "no_such_path", ""),
    ("DELETE", "/api/v1/nodes", "", 405, "method_not_allowed", "DELETE"),
    ("GET", "/api/v1/breaker/reset", "", 405, "method_not_allowed", "GET"),
    ("POST", "/api/v1/events", "{}", 405, "method_not_allowed", "POST"),
    ("GET", "/api/v1/events?limit=-1", "", 400, "bad_query", "`limit` is \"-1\"; allowed: a number from 1 to 500"),
    ("GET", "/api/v1/events?limit=0", "", 400, "bad_query", "1 to 500"),
    ("GET", "/api/v1/events?limit=501", "", 400, "bad_query", "1 to 500"),
    ("GET", "/api/v1/events?limit=1e2", "", 400, "bad_query", "1 to 500"),
    ("GET", "/api/v1/events?limit=", "", 400, "bad_query", "1 to 500"),
    ("GET", "/api/v1/events?limit=1&limit=2", "", 400, "bad_query", "given twice"),
    ("GET", "/api/v1/events?limit=99999999999999999999", "", 400, "bad_query", "1 to 500"),
    ("GET", "/api/v1/events?after=-1", "", 400, "bad_query", "`after` is \"-1\""),
    ("GET", "/api/v1/events?after=garbage", "", 400, "bad_query", "`after`"),
    ("GET", "/api/v1/events?after=9223372036854775808", "", 400, "bad_query", "`after`"),
    ("GET", "/api/v1/events?node=Not_A_Name", "", 400, "bad_node_name", ""),
    ("GET", "/api/v1/events?surprise=1", "", 400, "bad_query", "`surprise` is no key"),
    ("GET", "/api/v1/nodes/api-1/timeline?limit=0", "", 400, "bad_query", "1 to 500"),
    ("GET", "/api/v1/nodes/api-1/timeline?after=x", "", 400, "bad_query", "`after`"),
    ("GET", "/api/v1/nodes/api-1/timeline?node=x", "", 400, "bad_query", "`node`"),
    ("GET", "/api/v1/incidents?open=maybe", "", 400, "bad_query", "true or false"),
    ("GET", "/api/v1/incidents?before=garbage", "", 400, "bad_incident_id", "ULID"),
    ("GET", "/api/v1/incidents?limit=1000", "", 400, "bad_query", "1 to 500"),
    ("GET", "/api/v1/incidents?node=-", "", 400, "bad_node_name", ""),
    ("GET", "/api/v1/status?x", "", 400, "bad_query", "no query"),
    ("GET", "/api/v1/watch?after=x", "", 400, "bad_query", "`after`"),
    ("GET", "/api/v1/watch?limit=1", "", 400, "bad_query", "after, node"),
    ("GET", "/api/v1/nodes?limit=1", "", 400, "bad_query", "no query"),
    ("GET", "/api/v1/breaker?pool=gpu", "", 400, "bad_query", "no query"),
    ("GET", "/api/v1/nodes/Not_A_Name", "", 400, "bad_node_name", ""),
    ("GET", "/api/v1/nodes/%ff", "", 400, "bad_path", "UTF-8"),
    ("GET", "/api/v1/nodes/nobody", "", 404, "no_node", "nobody"),
    ("GET", "/api/v1/nodes/nobody/timeline", "", 404, "no_node", "nobody"),
    ("GET", "/api/v1/incidents/garbage", "", 400, "bad_incident_id", "ULID"),
    ("GET", "/api/v1/incidents/01arz3ndektsv4rrffq69g5fav", "", 400, "bad_incident_id", ""),
    ("GET", "/api/v1/incidents/01ARZ3NDEKTSV4RRFFQ69G5FAV", "", 404, "no_incident", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    ("POST", "/api/v1/nodes/nobody/hold", "{}", 404, "no_node", "nobody"),
    ("POST", "/api/v1/nodes/nobody/release", "", 404, "no_node", "nobody"),
    ("POST", "/api/v1/nodes/api-1/hold", "{", 400, "bad_body", ""),
    ("POST", "/api/v1/nodes/api-1/hold", "[]", 400, "bad_body", ""),
    ("POST", "/api/v1/nodes/api-1/hold", "{\"reason\":1}", 400, "bad_body", "string"),
    ("POST", "/api/v1/nodes/api-1/hold", "{\"surprise\":1}", 400, "bad_body", "surprise"),
    ("POST", "/api/v1/nodes/api-1/hold", LARGE, 413, "body_too_large", "65536"),
    ("POST", "/api/v1/nodes/api-1/hold?now=1", "{}", 400, "bad_query", "`now`"),
    ("POST", "/api/v1/nodes/api-1/release", "{\"why\":\"x\"}", 400, "bad_body", "why"),
    ("POST", "/api/v1/nodes/nobody/cancel", "", 404, "no_node", "nobody"),
    ("POST", "/api/v1/nodes/api-1/cancel", "{\"why\":\"x\"}", 400, "bad_body", "why"),
    ("POST", "/api/v1/nodes/api-1/hold", "{}", 400, "no_reason", "say why"),
    ("POST", "/api/v1/nodes/api-1/hold", LONG, 400, "long_reason", "1024"),
    ("POST", "/api/v1/nodes/api-1/cancel", LONG, 400, "long_reason", "1024"),
    ("POST", "/api/v1/nodes/api-1/hold", "{\"reason\":\"x\"}", 503, "quarantine_off", "profile"),
    ("POST", "/api/v1/nodes/api-1/close", "", 400, "bad_body", "fault"),
    ("POST", "/api/v1/nodes/api-1/close", "{\"fault\":\"none\"}", 404, "no_fault", "warden explain api-1"),
    ("POST", "/api/v1/nodes/api-well/close", "{\"fault\":\"none\"}", 404, "no_fault", "nor any other"),
    ("POST", "/api/v1/nodes/nobody/close", "{\"fault\":\"none\"}", 404, "no_node", "kubectl get nodes"),
    ("POST", "/api/v1/breaker/reset", "{\"drop_withheld\":\"yes\"}", 400, "bad_body", "boolean"),
    ("POST", "/api/v1/breaker/reset", "{\"pool\":\"none\"}", 503, "quarantine_off", ""),
    ];

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_call_is_answered_as_json_with_status_code_and_what_is_allowed() {
    let cluster = Cluster::with_nodes(&["api-1", "api-well"]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let program = Program::start(&cluster.testbed.kubeconfig(), "", &["--insecure-local"]);
    program.up().await;
    let sender = Sender::new(program.plain().await, None);
    sender.send(vec![numbered("api-1", 1)]).await.unwrap();
    let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
    let token = Some(token.trim());
    let large = format!("{{\"reason\":\"{}\"}}", "x".repeat(70_000));
    let long = format!("{{\"reason\":\"{}\"}}", "x".repeat(1_025));
    for (method, path, body, status, code, part) in BAD {
        let body = match *body {
            LARGE => &large,
            LONG => &long,
            body => body,
        };
        let asked = format!("{method} {path}");
        let answer = program.send(method, path, token, body).await;
        let (got, got_code, text) = problem(&asked, &answer);
        assert_eq!(
            (got, got_code.as_str()),
            (*status, *code),
            "{asked}: {text}"
        );
        assert!(text.contains(part), "{asked}: {text}");
        if path.starts_with("/api/v1/") && *code != "no_such_path" {
            let refused = program.send(method, path, None, body).await;
            let (got, code, _) = problem(&asked, &refused);
            assert_eq!((got, code.as_str()), (401, "no_token"), "{asked}");
        }
    }
    for path in [
        "/api/v1/events?limit=1&node=api-1",
        "/api/v1/incidents?open=true&limit=500",
    ] {
        let (status, body) = program.get(path, token).await;
        assert_eq!(status, 200, "{path}: {body}");
        assert!(body.starts_with('['), "{body}");
    }
}

/// The token as it would have been, had it ended a minute ago: signed by the cluster's own key.
fn expired(token: &str, keys: &Path) -> String {
    let (head, claims) = token.rsplit_once('.').unwrap().0.split_once('.').unwrap();
    let mut claims: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
    let now = jiff::Timestamp::now().as_second();
    for (claim, age) in [("iat", 3_660), ("nbf", 3_660), ("exp", 60)] {
        claims[claim] = json!(now - age);
    }
    let signed = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let key = std::fs::read_to_string(keys.join("service-account.key")).unwrap();
    let key = KeyPair::from_pem(&key).unwrap();
    let signature = fixed(&key.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// From an ECDSA signature in DER (two integers) to the form of a JWT: twice 32 bytes.
fn fixed(der: &[u8]) -> Vec<u8> {
    let mut rest = &der[2..];
    let mut out = Vec::new();
    for _ in 0..2 {
        let (number, after) = rest[2..].split_at(usize::from(rest[1]));
        let digits = &number[number.len().saturating_sub(32)..];
        out.extend(std::iter::repeat_n(0, 32 - digits.len()));
        out.extend(digits);
        rest = after;
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_good_here_is_refused_as_json_on_every_path() {
    let cluster = Cluster::with_nodes(&["api-t"]).await;
    let testbed = cluster.testbed;
    let account = format!("api-{}", ulid::Ulid::new().to_string().to_lowercase());
    testbed.service_account("warden", &account).await.unwrap();
    let program = Program::start(&testbed.kubeconfig(), "", &[]);
    program.up().await;
    let hour = Duration::from_hours(1);
    let good = testbed.token("warden", &account, &[], hour).await.unwrap();
    let elsewhere = testbed.token("warden", &account, &["elsewhere"], hour);
    let elsewhere = elsewhere.await.unwrap();
    let old = expired(&good, &testbed.folder().join("pki"));
    let table = [
        (None, 401, "no_token"),
        (Some(""), 401, "no_token"),
        (Some("not.a.token"), 401, "token_refused"),
        (Some(old.as_str()), 401, "token_refused"),
        (Some(elsewhere.as_str()), 401, "token_refused"),
        (Some(good.as_str()), 403, "not_allowed"),
    ];
    for (token, status, code) in table {
        for (method, path) in [
            ("GET", "/api/v1/status"),
            ("GET", "/api/v1/nodes/api-t"),
            ("POST", "/api/v1/breaker/reset"),
        ] {
            let asked = format!("{method} {path} with {code}");
            let answer = program.send(method, path, token, "").await;
            let (got, got_code, text) = problem(&asked, &answer);
            assert_eq!((got, got_code.as_str()), (status, code), "{asked}: {text}");
            assert!(!text.contains(&good), "no answer repeats a token");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_store_and_another_program_left_is_shown() {
    let cluster = Cluster::with_nodes(&["api-1", "api-2"]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let marks = json!({"metadata": {"annotations": {
        "quarantineHealthEvent": "[]", "quarantineHealthEventIsCordoned": "True",
    }}});
    cluster.merge("api-2", marks).await;
    let program = Program::start(&cluster.testbed.kubeconfig(), "", &["--insecure-local"]);
    program.up().await;
    let sender = Sender::new(program.plain().await, None);
    let mut restored = numbered("api-1", 1);
    let key = "warden.dev/restored".to_owned();
    restored.metadata.insert(key, "true".to_owned());
    sender.send(vec![restored.clone()]).await.unwrap();
    let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
    let get = async |path: &str| -> Value {
        let (status, body) = program.get(path, Some(token.trim())).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    };
    let status = get("/api/v1/status").await;
    assert_eq!(
        (&status["restored_faults"], &status["foreign_marked"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(
        get("/api/v1/nodes/api-1").await["faults"][0]["restored"],
        true
    );
    let marked = get("/api/v1/nodes/api-2").await;
    let want = json!(["quarantineHealthEvent", "quarantineHealthEventIsCordoned"]);
    assert_eq!(marked["object"]["foreign_marks"], want);
    // Its sender speaks.
    let mut again = numbered("api-1", 2);
    again.entities_impacted = restored.entities_impacted;
    sender.send(vec![again]).await.unwrap();
    assert_eq!(get("/api/v1/status").await["restored_faults"], 0);
    assert_eq!(
        get("/api/v1/nodes/api-1").await["faults"][0]["restored"],
        false
    );
    // And the mark is ours.
    let node = cluster.get("api-2").await;
    let mark =
        json!({"id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "version": 1, "nodeUID": node.metadata.uid});
    let ours = json!({"metadata": {"annotations": {"warden.dev/incident": mark.to_string()}}});
    cluster.merge("api-2", ours).await;
    let begun = std::time::Instant::now();
    while get("/api/v1/status").await["foreign_marked"] != 0 {
        assert!(begun.elapsed() < crate::harness::SOON);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An agent that reads another boot id than the kubelet: its node is neither repaired nor given back.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_in_another_boot_than_its_node_object_is_told_with_what_that_keeps_away() {
    let cluster = Cluster::with_nodes(&["boots-1"]).await;
    let extra = "[quarantine]\nsettle_timeout = \"10s\"\n";
    let voice = Voice::observing(&cluster, "boots-1", extra).await;
    let shown = cluster.get("boots-1").await.status.unwrap();
    let of_node = shown.node_info.unwrap().boot_id;
    let mut same = voice.report(DetectorState::DetectorSettled, 0, &[]);
    same.boot_id.clone_from(&of_node);
    voice.say(same, &[]).await;
    let node = voice.shown().await;
    assert_eq!(node["boots_differ"], Value::Null, "{node}");

    let other = voice.report(DetectorState::DetectorSettled, 0, &[]);
    let agents = other.boot_id.clone();
    voice.say(other.clone(), &[]).await;
    let differ = voice.shown().await["boots_differ"].clone();
    assert_eq!(
        (&differ["agent"], &differ["node"]),
        (&json!(agents), &json!(of_node)),
        "{differ}"
    );
    assert!(differ["agent_since"].is_string(), "{differ}");
    assert!(differ["node_since"].is_string(), "{differ}");
    // The agent's is the newer one to Warden, which has seen both.
    assert_eq!(differ["repair_kept"], false, "{differ}");

    // A boot of the node that no agent ever told of is taken for the newest.
    let status = json!({"status": {"nodeInfo": {"bootID": "newest"}}});
    cluster
        .nodes
        .patch_status("boots-1", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    voice
        .until("the repair to be kept away", |node| {
            node["boots_differ"]["node"] == "newest" && node["boots_differ"]["repair_kept"] == true
        })
        .await;
    // After `quarantine.settle_timeout` it is out of order, for programs too.
    voice
        .until("it to be late", |node| node["boots_differ"]["late"] == true)
        .await;
    let status = voice.get("/api/v1/status").await;
    assert_eq!(status["agents_other_boot"], 1, "{status}");
    let lines = voice.get("/api/v1/nodes").await;
    assert_eq!(lines[0]["agent"], "other boot", "{lines}");
}

/// A fatal fault that something keeps Warden from acting on is counted, with what does.
#[tokio::test(flavor = "multi_thread")]
async fn a_fatal_fault_of_a_node_in_service_is_counted_with_what_keeps_it_there() {
    let cluster = Cluster::with_nodes(&["kept-1", "kept-2"]).await;
    let pause = json!({"metadata": {"annotations": {"warden.dev/pause": "true"}}});
    cluster.merge("kept-1", pause).await;
    let voice = Voice::cordoning(&cluster, "kept-1", "").await;
    voice
        .until("the pause to be seen", |node| {
            node["object"]["blocked_by"] == json!(["paused"])
        })
        .await;
    for node in ["kept-1", "kept-2"] {
        let mut event = numbered(node, 1);
        event.check_name = "Test".into();
        let (order, value) = ("warden.dev/order", format!("boot-{node}-0/01SPOOL/1"));
        event.metadata.insert(order.into(), value);
        voice.sender.send(vec![event]).await.unwrap();
    }
    let lines = wait_for("the other node to be out", SOON, || async {
        let lines = voice.get("/api/v1/nodes").await;
        Ok((lines[1]["state"] == "Quarantined").then_some(lines))
    })
    .await
    .unwrap();
    let of = |line: &Value| (line["fatal_faults"].clone(), line["kept_by"].clone());
    assert_eq!(of(&lines[0]), (json!(1), json!(["paused"])), "{lines}");
    // What is out is kept by nothing.
    assert_eq!(of(&lines[1]), (json!(1), json!([])), "{lines}");
    let status = voice.get("/api/v1/status").await;
    assert_eq!(status["fatal_in_service"], 1, "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_part_said_is_told_as_such_of_fault_event_and_step() {
    let cluster = Cluster::with_nodes(&["api-3"]).await;
    let voice = Voice::cordoning(&cluster, "api-3", "").await;
    let mut event = numbered("api-3", 1);
    event.check_name = "Test".into();
    let boot = "boot-api-3-0";
    for (key, value) in [
        ("warden.dev/order", format!("{boot}/01SPOOL/1")),
        ("warden.dev/injected", "true".into()),
        ("warden.dev/origin", "user, kernel-log-start=end".into()),
    ] {
        event.metadata.insert(key.into(), value);
    }
    voice.sender.send(vec![event]).await.unwrap();
    voice
        .until("it is out", |node| {
            node["incidents"][0]["state"] == "Quarantined"
        })
        .await;
    let fault = voice.shown().await["faults"][0].clone();
    let events = voice.get("/api/v1/events?node=api-3").await;
    for told in [&fault, &events[0]] {
        assert_eq!(told["injected"], true, "{told}");
        assert_eq!(told["origin"], "user, kernel-log-start=end", "{told}");
    }
    let steps = voice.get("/api/v1/nodes/api-3/timeline").await;
    let cause = &steps[0]["cause"];
    assert_eq!(
        (
            &cause["injected"],
            &cause["stand_ins"],
            &cause["open_faults"]
        ),
        (&json!(1), &json!(1), &json!(1)),
        "{steps}"
    );
}

/// What a watch brought: the kind of each message, its id and its data.
struct Watched {
    body: hyper::body::Incoming,
    text: String,
}

impl Watched {
    async fn open(
        program: &Program,
        path: &str,
        last: Option<&str>,
    ) -> Result<Self, (u16, String)> {
        let address = program.address("api").await;
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut send, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let mut request = http::Request::get(path)
            .header("host", "warden")
            .header("authorization", format!("Bearer {}", token(program)));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let request = request.body(String::new()).unwrap();
        let answer = send.send_request(request).await.unwrap();
        let status = answer.status().as_u16();
        let mut watched = Self {
            body: answer.into_body(),
            text: String::new(),
        };
        if status == 200 {
            return Ok(watched);
        }
        while watched.more().await {}
        Err((status, watched.text))
    }

    /// False at the end of the answer.
    async fn more(&mut self) -> bool {
        use http_body_util::BodyExt as _;
        let frame = tokio::time::timeout(SOON, self.body.frame()).await;
        let Some(Ok(frame)) = frame.expect("nothing came") else {
            return false;
        };
        let data = frame.into_data().unwrap_or_default();
        self.text.push_str(std::str::from_utf8(&data).unwrap());
        true
    }

    /// Waits for messages up to one that tells of this state; answers each message's `id` and `to`.
    async fn until(&mut self, state: &str) -> Vec<(u64, String)> {
        loop {
            let steps = steps(&self.text);
            if steps.iter().any(|(_, to)| to == state) {
                return steps;
            }
            assert!(self.more().await, "it ended: {}", self.text);
        }
    }
}

fn steps(text: &str) -> Vec<(u64, String)> {
    let whole = text.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
    let field = |message: &str, name: &str| {
        let line = message.lines().find_map(|line| line.strip_prefix(name));
        line.map(|line| line.trim().to_owned())
    };
    let messages = whole.split("\n\n");
    messages
        .filter(|message| field(message, "event:").as_deref() == Some("step"))
        .map(|message| {
            let data: Value = serde_json::from_str(&field(message, "data:").unwrap()).unwrap();
            let id = field(message, "id:").unwrap().parse().unwrap();
            assert_eq!(data["seq"], id);
            (id, data["to"].as_str().unwrap().to_owned())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_tells_each_step_once_and_goes_on_where_it_stood() {
    let cluster = Cluster::with_nodes(&["watched", "other"]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let kubeconfig = cluster.testbed.kubeconfig();
    let mut program = Program::start_cordoning(&kubeconfig, "", &["--insecure-local"]);
    program.up().await;
    let sender = Sender::new(program.plain().await, None);
    let fatal = |node: &str, number: u64| {
        let mut event = numbered(node, number);
        event.check_name = "Test".into();
        event
    };
    let mut first = Watched::open(&program, "/api/v1/watch", None)
        .await
        .unwrap();
    sender.send(vec![fatal("watched", 1)]).await.unwrap();
    let seen = first.until("Quarantined").await;
    let (ids, states): (Vec<u64>, Vec<_>) = seen.into_iter().unzip();
    assert_eq!(states, ["Applying", "Quarantined"]);
    assert_eq!(ids, [1, 2]);
    drop(first);

    // What happened meanwhile comes first, and of other nodes nothing.
    sender.send(vec![fatal("other", 2)]).await.unwrap();
    cluster
        .until("other", "out", crate::harness::is_cordoned)
        .await;
    let hold = program
        .send(
            "POST",
            "/api/v1/nodes/watched/hold",
            Some(&token(&program)),
            r#"{"reason":"x"}"#,
        )
        .await;
    assert_eq!(hold.0, 200, "{hold:?}");
    let mut all = Watched::open(&program, "/api/v1/watch", Some("1"))
        .await
        .unwrap();
    let mut one = Watched::open(&program, "/api/v1/watch?node=other&after=0", None)
        .await
        .unwrap();
    let of_other = one.until("Quarantined").await;
    assert_eq!(of_other.len(), 2, "{of_other:?}");
    while steps(&all.text).last().is_none_or(|(id, _)| *id < 5) {
        assert!(all.more().await, "it ended: {}", all.text);
    }
    let ids: Vec<u64> = steps(&all.text).into_iter().map(|(id, _)| id).collect();
    assert!(ids.iter().copied().eq(2..2 + ids.len() as u64), "{ids:?}");

    // Numbers of a store that was lost.
    let mut lost = Watched::open(&program, "/api/v1/watch?after=5000", None)
        .await
        .unwrap();
    lost.until("Quarantined").await;
    assert!(lost.text.starts_with("event: new_store\n"), "{}", lost.text);
    assert_eq!(steps(&lost.text)[0].0, 1);

    let refused = Watched::open(&program, "/api/v1/watch", Some("x")).await;
    let (code, body) = refused.err().unwrap();
    assert!(code == 400 && body.contains("bad_last_event_id"), "{body}");
    let mut open = vec![all, one, lost];
    let refused = loop {
        match Watched::open(&program, "/api/v1/watch", None).await {
            Ok(watched) => open.push(watched),
            Err(refused) => break refused,
        }
    };
    assert_eq!(open.len(), 64);
    assert!(
        refused.0 == 503 && refused.1.contains("too_many_watches"),
        "{refused:?}"
    );
    // Whoever goes makes room, and nobody who stays keeps the process from stopping.
    drop(open.pop());
    testbed::wait_for("room", SOON, || async {
        let again = Watched::open(&program, "/api/v1/watch", None).await;
        anyhow::ensure!(again.is_ok(), "still full");
        Ok(Some(()))
    })
    .await
    .unwrap();
    program.terminate();
    program.ended().await;
    for watched in &mut open {
        while watched.more().await {}
    }
}

fn token(program: &Program) -> String {
    let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
    token.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_nodes_were_read_none_is_said_not_to_be_there() {
    let cluster = Cluster::with_nodes(&["api-1"]).await;
    let testbed = cluster.testbed;
    testbed.service_account("warden", "blind").await.unwrap();
    let rule = |group: &str, resource: &str| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: vec!["*".to_owned()],
        ..PolicyRule::default()
    };
    let bind = async |rule| {
        let bound = testbed.bind_cluster_role("warden", "blind", vec![rule]);
        bound.await.unwrap();
    };
    bind(rule("coordination.k8s.io", "leases")).await;
    let hour = Duration::from_hours(1);
    let token = testbed.token("warden", "blind", &[], hour).await.unwrap();
    let kubeconfig = testbed.kubeconfig_for_token("blind", &token).unwrap();
    let program = Program::start(&kubeconfig, "", &["--insecure-local"]);
    program.up().await;
    program.plain().await;
    let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
    let ask = async |method, path, body| program.send(method, path, Some(token.trim()), body).await;
    for (method, path, body) in [
        ("GET", "/api/v1/nodes", ""),
        ("GET", "/api/v1/nodes/api-1", ""),
        ("GET", "/api/v1/nodes/api-1/timeline", ""),
        ("POST", "/api/v1/nodes/api-1/hold", r#"{"reason":"x"}"#),
        ("POST", "/api/v1/nodes/api-1/release", ""),
        ("POST", "/api/v1/nodes/api-1/cancel", ""),
        ("POST", "/api/v1/nodes/api-1/close", r#"{"fault":"x"}"#),
    ] {
        let (status, code, error) = problem(path, &ask(method, path, body).await);
        assert_eq!((status, code.as_str()), (503, "nodes_unread"), "{path}");
        assert!(error.contains("/readyz"), "{error}");
    }
    // What is not of nodes is shown, and says what is the matter.
    let (status, shown) = ask("GET", "/api/v1/status", "").await;
    assert_eq!(status, 200, "{shown}");
    assert_eq!(
        serde_json::from_str::<Value>(&shown).unwrap()["ready"],
        false
    );
    // With the right that is missing, and what is missed for it.
    let of_nodes = |shown: &str| {
        let shown: Value = serde_json::from_str(shown).unwrap();
        let missing = shown["missing_rights"].as_array().unwrap().clone();
        let nodes: Vec<Value> = missing
            .into_iter()
            .filter(|r| r["resource"] == "nodes")
            .collect();
        (nodes, shown["parts"].to_string())
    };
    wait_for("the missing right", SOON, || async {
        let (missing, parts) = of_nodes(&ask("GET", "/api/v1/status", "").await.1);
        anyhow::ensure!(!missing.is_empty(), "{parts}");
        anyhow::ensure!(missing[0]["missed"] == "nodes can't be read", "{missing:?}");
        anyhow::ensure!(
            parts.contains("rights: the API server does not let us "),
            "{parts}"
        );
        Ok(Some(()))
    })
    .await
    .unwrap();
    let (status, page) = program.get("/readyz", None).await;
    assert_eq!(status, 503, "{page}");
    assert!(page.contains(" nodes: nodes can't be read"), "{page}");

    bind(rule("", "nodes")).await;
    wait_for("the nodes to be read", SOON, || async {
        let (status, body) = ask("GET", "/api/v1/nodes/api-1", "").await;
        anyhow::ensure!(status == 200, "{body}");
        Ok(Some(()))
    })
    .await
    .unwrap();
    wait_for("the right to be there", SOON, || async {
        let (missing, parts) = of_nodes(&ask("GET", "/api/v1/status", "").await.1);
        anyhow::ensure!(missing.is_empty(), "{missing:?} {parts}");
        Ok(Some(()))
    })
    .await
    .unwrap();
}
