//! A client of another language, with stubs that its own tools made from the published .proto.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use e2e::Machine;
use e2e::machine::events;
use e2e::relay::Relay;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::kit::Stage;

/// Imports, stubs, and two of the client's pauses of 2 s and 3 s on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The interpreter with the client's requirements; made on the first call ever.
async fn python() -> PathBuf {
    let made = Command::new(repository().join("scripts/python-client.sh"))
        .stderr(Stdio::inherit())
        .output()
        .await
        .unwrap();
    assert!(
        made.status.success(),
        "scripts/python-client.sh failed, see above"
    );
    PathBuf::from(String::from_utf8(made.stdout).unwrap().trim())
}

/// The client on this socket, not started yet.
async fn client(socket: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(python().await);
    command
        .arg(repository().join("tests/clients/python/report.py"))
        .arg("--proto")
        .arg(repository().join("crates/wire/proto/health_event.proto"))
        .arg("--socket")
        .arg(socket)
        .args(flags)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// The outcome and the tries of each event.
fn answers(output: &std::process::Output) -> Vec<(String, u64)> {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let answer = |line: Value| {
        let outcome = line["outcome"].as_str().unwrap().to_owned();
        (outcome, line["tries"].as_u64().unwrap())
    };
    lines.map(answer).collect()
}

/// Runs the client to its end.
async fn report(machine: &Machine, flags: &[&str]) -> Vec<(String, u64)> {
    let mut client = client(&machine.agent.socket(), flags).await;
    let output = tokio::time::timeout(PATIENCE, client.output()).await;
    answers(&output.unwrap().unwrap())
}

/// Waits until the node has so many faults of the client, and answers how many events are stored
/// and the counts of the faults.
async fn stored(stage: &Stage, machine: &Machine, faults: usize) -> (usize, Vec<u64>) {
    let of_python = |value: &Value| value["agent"] == "python-monitor";
    let shown = machine
        .until(&stage.controller, "with the client's faults", |node| {
            let all = node["faults"].as_array();
            all.is_some_and(|all| all.iter().filter(|fault| of_python(fault)).count() == faults)
        })
        .await
        .unwrap();
    let all = shown["faults"].as_array().unwrap();
    let counts = all
        .iter()
        .filter(|f| of_python(f))
        .map(|f| f["count"].as_u64().unwrap());
    let events = events(&stage.controller, &machine.name).await.unwrap();
    (
        events.iter().filter(|e| of_python(e)).count(),
        counts.collect(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_client_reports_and_finds_the_socket_missing() {
    let stage = Stage::shared().await;
    let mut machine = stage.machine("python").await;
    let answers = report(&machine, &["--count", "3"]).await;
    assert_eq!(answers, vec![("OK".to_owned(), 1); 3]);
    assert_eq!(stored(stage, &machine, 3).await, (3, vec![1; 3]));
    let answers = report(&machine, &["--count", "3", "--healthy"]).await;
    assert_eq!(answers, vec![("OK".to_owned(), 1); 3]);
    stored(stage, &machine, 0).await;
    // Stopped in order, the agent takes its socket with it.
    machine.agent.stop().unwrap();
    let answers = report(&machine, &[]).await;
    assert_eq!(answers, [("SOCKET_MISSING".to_owned(), 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_client_tries_again_while_the_agent_is_away() {
    let stage = Stage::shared().await;
    let mut machine = stage.machine("python-again").await;
    // Killed, it leaves its socket's file behind: nobody answers there.
    machine.agent.kill();
    assert!(machine.agent.socket().exists());
    let mut client = client(&machine.agent.socket(), &[]).await.spawn().unwrap();
    let mut said = BufReader::new(client.stderr.take().unwrap()).lines();
    let first = tokio::time::timeout(PATIENCE, said.next_line()).await;
    let first = first.unwrap().unwrap().unwrap_or_default();
    assert!(first.contains("UNAVAILABLE"), "{first}");
    machine.agent.spawn().unwrap();
    let output = tokio::time::timeout(PATIENCE, client.wait_with_output()).await;
    let answers = answers(&output.unwrap().unwrap());
    assert_eq!(answers.len(), 1);
    let (outcome, tries) = &answers[0];
    assert!(outcome == "OK" && *tries > 1, "{answers:?}");
    assert_eq!(stored(stage, &machine, 1).await, (1, vec![1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_python_client_sends_again_after_a_lost_answer_is_stored_once() {
    let stage = Stage::shared().await;
    let machine = stage.machine("python-lost").await;
    let agent = machine.agent.socket();
    let mut relay = Relay::start(&agent.with_file_name("relay.sock"), &agent).unwrap();
    let client = client(relay.socket(), &["--count", "2"]).await.spawn();
    let client = client.unwrap();
    // The agent answered, which is after it stored the event; the client does not know.
    relay.answered().await.unwrap();
    assert_eq!(stored(stage, &machine, 1).await, (1, vec![1]));
    relay.cut();
    let output = tokio::time::timeout(PATIENCE, client.wait_with_output()).await;
    let answers = answers(&output.unwrap().unwrap());
    let expected = [("OK".to_owned(), 2), ("OK".to_owned(), 1)];
    assert_eq!(answers, expected, "the first event was sent twice");
    // The second event came behind the repetition of the first.
    assert_eq!(stored(stage, &machine, 2).await, (2, vec![1; 2]));
}
