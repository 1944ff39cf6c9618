//! The real program as a child process, and a sender that talks to it.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use testbed::wait_for;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};
use wire::datamodels::platform_connector_client::PlatformConnectorClient;
use wire::datamodels::{HealthEvent, HealthEvents};
use wire::warden::v1::agent_client::AgentClient;

use crate::harness::{RULES, SOON};

/// `warden-controller` as it ships, killed when dropped.
pub(crate) struct Program {
    child: Child,
    lines: Arc<Mutex<Vec<Value>>>,
    folder: tempfile::TempDir,
}

/// A Lease that outlasts an API server that stands still for seconds, as on a slow machine.
const LEASE: &str = "duration = \"15s\"";
/// For a program that reboots: with a Lease it would wait that long before each first signal. The
/// store's lock guards it.
const NO_LEASE: &str = "enabled = false";

/// The base configuration with a store folder, loopback ports and what the test adds.
pub(crate) fn config(folder: &Path, profile: &str, ingest: &str) -> String {
    let store = toml::Value::from(folder.join("store").display().to_string());
    let lease = if profile == "remediate" {
        NO_LEASE
    } else {
        LEASE
    };
    format!(
        "profile = {profile:?}\n[log]\nformat = \"json\"\n[lease]\n{lease}\n[store]\npath = {store}\n[api]\nlisten = \"127.0.0.1:0\"\n[ingest]\nlisten = \
         \"127.0.0.1:0\"\n{ingest}\n"
    )
}

impl Program {
    /// Starts it with a store of its own.
    pub(crate) fn start(kubeconfig: &Path, ingest: &str, flags: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), kubeconfig, ingest, flags)
    }

    /// Starts it so that it cordons by [`RULES`].
    pub(crate) fn start_cordoning(kubeconfig: &Path, ingest: &str, flags: &[&str]) -> Self {
        let rules = RULES.replace("profile = \"cordon\"", ingest);
        let folder = tempfile::tempdir().unwrap();
        Self::start_as("cordon", folder, kubeconfig, &rules, flags)
    }

    /// Starts it on a folder that an earlier one left.
    pub(crate) fn start_in(
        folder: tempfile::TempDir,
        kubeconfig: &Path,
        ingest: &str,
        flags: &[&str],
    ) -> Self {
        Self::start_as("silent", folder, kubeconfig, ingest, flags)
    }

    /// Starts it on a folder, in a profile.
    pub(crate) fn start_as(
        profile: &str,
        folder: tempfile::TempDir,
        kubeconfig: &Path,
        ingest: &str,
        flags: &[&str],
    ) -> Self {
        let path = folder.path().join("controller.toml");
        std::fs::write(path, config(folder.path(), profile, ingest)).unwrap();
        Self::start_again(folder, kubeconfig, flags)
    }

    /// Another configuration in its file, put there in one step.
    pub(crate) fn rewrite(&self, profile: &str, ingest: &str) {
        let folder = self.folder.path();
        let text = config(folder, profile, ingest);
        std::fs::write(folder.join("controller.toml.new"), text).unwrap();
        std::fs::rename(
            folder.join("controller.toml.new"),
            folder.join("controller.toml"),
        )
        .unwrap();
    }

    /// Puts a pipe that nobody writes to in the place of its configuration.
    pub(crate) fn replace_by_a_pipe(&self) {
        let path = self.folder.path().join("controller.toml");
        std::fs::remove_file(&path).unwrap();
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
    }

    /// Starts it as the folder's own configuration says, on what an earlier one left.
    pub(crate) fn start_again(
        folder: tempfile::TempDir,
        kubeconfig: &Path,
        flags: &[&str],
    ) -> Self {
        let path = folder.path().join("controller.toml");
        let mut child = Command::new(env!("CARGO_BIN_EXE_warden-controller"))
            .arg("--config")
            .arg(&path)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines: Arc<Mutex<Vec<Value>>> = Arc::default();
        let kept = Arc::clone(&lines);
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                kept.lock().unwrap().push(line);
            }
        });
        Self {
            child,
            lines,
            folder,
        }
    }

    /// Waits until it said where it listens under this name.
    pub(crate) async fn address(&self, what: &str) -> SocketAddr {
        wait_for(format!("the port of {what}"), SOON, || async {
            let lines = self.lines.lock().unwrap();
            let found = lines
                .iter()
                .find(|l| l["message"] == "listening" && l["what"] == what);
            anyhow::ensure!(found.is_some(), "{lines:#?}");
            Ok(found.and_then(|line| line["address"].as_str()?.parse().ok()))
        })
        .await
        .unwrap()
    }

    /// Waits until it is up.
    pub(crate) async fn up(&self) {
        self.said("warden-controller is up").await;
    }

    /// Waits for a log line.
    pub(crate) async fn said(&self, message: &str) -> Value {
        self.said_in("message", message).await
    }

    /// Waits for a log line with this code.
    pub(crate) async fn said_code(&self, code: &str) -> Value {
        self.said_in("code", code).await
    }

    async fn said_in(&self, field: &str, text: &str) -> Value {
        wait_for(
            format!("a log line with {field} {text:?}"),
            SOON,
            || async {
                let lines = self.lines.lock().unwrap();
                let found = lines.iter().find(|line| line[field] == text).cloned();
                anyhow::ensure!(found.is_some(), "{lines:#?}");
                Ok(found)
            },
        )
        .await
        .unwrap()
    }

    /// Another process with this one's configuration and store.
    pub(crate) fn second(&self, kubeconfig: &Path, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let name = "controller.toml";
        std::fs::copy(self.folder.path().join(name), folder.path().join(name)).unwrap();
        Self::start_again(folder, kubeconfig, flags)
    }

    pub(crate) fn log(&self) -> String {
        let lines = self.lines.lock().unwrap();
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        lines.join("\n")
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// A page of the health port.
    pub(crate) async fn get(&self, path: &str, token: Option<&str>) -> (u16, String) {
        self.send("GET", path, token, "").await
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> (u16, String) {
        use http_body_util::BodyExt as _;
        let address = self.address("api").await;
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("http://{address}{path}"));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let client =
            hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
                .build_http::<http_body_util::Full<std::io::Cursor<Vec<u8>>>>();
        let body = http_body_util::Full::new(std::io::Cursor::new(body.as_bytes().to_vec()));
        let answer = client.request(request.body(body).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// A channel without TLS.
    pub(crate) async fn plain(&self) -> Channel {
        let address = self.address("ingest").await;
        Endpoint::from_shared(format!("http://{address}"))
            .unwrap()
            .connect()
            .await
            .unwrap()
    }

    /// A channel with TLS that trusts this bundle.
    pub(crate) async fn tls(&self, ca_pem: &str) -> Result<Channel, tonic::transport::Error> {
        let address = self.address("ingest").await;
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(ca_pem))
            .domain_name("warden-controller.warden.svc");
        let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
        endpoint.tls_config(tls)?.connect().await
    }

    /// `kill -9`; answers the folder with what it left.
    pub(crate) fn kill(mut self) -> tempfile::TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
    }

    /// SIGTERM.
    pub(crate) fn terminate(&self) {
        let id = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(id).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let deadline = tokio::time::Instant::now() + SOON;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "it does not end:\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A sender with one channel and maybe a token.
#[derive(Clone)]
pub(crate) struct Sender {
    channel: Channel,
    token: Option<String>,
}

impl Sender {
    pub(crate) fn new(channel: Channel, token: Option<&str>) -> Self {
        Self {
            channel,
            token: token.map(str::to_owned),
        }
    }

    pub(crate) async fn send(&self, events: Vec<HealthEvent>) -> Result<(), Status> {
        let batch = HealthEvents { version: 1, events };
        let mut client = PlatformConnectorClient::new(self.channel.clone());
        client
            .health_event_occurred_v1(self.request(batch))
            .await
            .map(|_| ())
    }

    pub(crate) async fn report(
        &self,
        report: wire::warden::v1::ReportRequest,
    ) -> Result<wire::warden::v1::ReportReply, Status> {
        let mut client = AgentClient::new(self.channel.clone());
        client
            .report(self.request(report))
            .await
            .map(tonic::Response::into_inner)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(Duration::from_secs(15));
        if let Some(token) = &self.token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        request
    }
}

/// An event that passed the agent of its node.
pub(crate) fn numbered(node: &str, number: u64) -> HealthEvent {
    let metadata = [
        ("warden.dev/order", format!("boot/01SPOOL/{number}")),
        ("warden.dev/detector", "kernel-log".to_owned()),
        ("warden.dev/machine-id", crate::voice::machine(node)),
    ];
    HealthEvent {
        version: 1,
        id: format!("{node}-{number}"),
        agent: "syslog-health-monitor".into(),
        component_class: "GPU".into(),
        check_name: "SysLogsXIDError".into(),
        is_fatal: true,
        message: format!("XID 79, number {number}"),
        recommended_action: 24,
        error_code: vec!["79".into()],
        entities_impacted: vec![wire::datamodels::Entity {
            entity_type: "PCI".into(),
            entity_value: format!("0000:{:02x}:00", number % 200),
        }],
        metadata: metadata
            .into_iter()
            .map(|(k, v)| (k.to_owned(), v))
            .collect(),
        generated_timestamp: Some(wire::timestamp_to_wire(jiff::Timestamp::now())),
        node_name: node.into(),
        processing_strategy: 1,
        ..HealthEvent::default()
    }
}
