//! Whatever the API is asked: what is wrong is said as JSON, with the right status.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};

use crate::harness::Cluster;
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
    ("POST", "/api/v1/nodes/api-1/release", "{\"reason\":\"x\"}", 400, "bad_body", "reason"),
    ("POST", "/api/v1/nodes/api-1/hold", "{}", 400, "no_reason", "say why"),
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
    for (method, path, body, status, code, part) in BAD {
        let body = if *body == LARGE { &large } else { *body };
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
