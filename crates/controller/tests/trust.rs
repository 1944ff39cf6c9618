//! Tokens and certificates, with a real API server.

use std::sync::Arc;
use std::time::Duration;

use controller::trust::{CA_BUNDLE, CA_SECRET};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Api;
use kube::api::DeleteParams;
use telemetry::ControllerMetrics;
use testbed::{Component, wait_for};
use tonic::Code;

use crate::harness::{Cluster, SOON, is_cordoned};
use crate::process::{Program, Sender, numbered};

const ACCOUNT: &str = "warden-agent";

/// A cluster with two nodes, an agent's pod on each, and a controller with TLS and tokens.
struct Fleet {
    cluster: Cluster,
    program: Program,
    ca: String,
}

impl Fleet {
    async fn start(ingest: &str) -> Self {
        let cluster = Cluster::with_nodes(&["node-a", "node-b"]).await;
        let testbed = cluster.testbed;
        testbed.service_account("warden", ACCOUNT).await.unwrap();
        testbed.service_account("warden", "somebody").await.unwrap();
        testbed.service_account("warden", "watcher").await.unwrap();
        let program = Program::start_cordoning(&testbed.kubeconfig(), ingest, &[]);
        program.up().await;
        let ca = bundle(&cluster).await;
        Self {
            cluster,
            program,
            ca,
        }
    }

    /// A token as the projected volume of a pod on this node holds it.
    async fn token(&self, account: &str, node: &str, audience: &str) -> String {
        let testbed = self.cluster.testbed;
        let pod = format!(
            "{account}-{node}-{}",
            ulid::Ulid::new().to_string().to_lowercase()
        );
        testbed
            .pod_on_node("warden", &pod, account, node)
            .await
            .unwrap();
        testbed
            .node_bound_token("warden", account, &pod, audience)
            .await
            .unwrap()
    }

    async fn sender(&self, token: Option<&str>) -> Sender {
        Sender::new(self.program.tls(&self.ca).await.unwrap(), token)
    }
}

async fn bundle(cluster: &Cluster) -> String {
    let bundles: Api<ConfigMap> = Api::namespaced(cluster.testbed.admin(), "warden");
    bundles
        .get(CA_BUNDLE)
        .await
        .unwrap()
        .data
        .unwrap()
        .remove("ca.crt")
        .unwrap()
}

/// Who may report beside the agents.
const IDENTITIES: &str = r#"
    override_identities = ["warden/watcher"]
    [[ingest.cross_node_identities]]
    service_account = "warden/watcher"
    agents = ["cloud-monitor"]
    node_selector = ["zone=b"]
    [[ingest.cross_node_identities]]
    service_account = "warden/somebody"
    own_node = true
    checks = ["GpuMemWatch"]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn monitors_with_tokens_of_their_own_say_what_is_theirs_and_only_some_may_force() {
    let fleet = Fleet::start(IDENTITIES).await;
    let cluster = &fleet.cluster;
    let zone = serde_json::json!({ "metadata": { "labels": { "zone": "b" } } });
    cluster.merge("node-b", zone).await;
    let watcher = fleet.token("watcher", "node-a", "warden").await;
    let somebody = fleet.token("somebody", "node-a", "warden").await;
    let (watcher, somebody) = (
        fleet.sender(Some(&watcher)).await,
        fleet.sender(Some(&somebody)).await,
    );
    let said = |node: &str, agent: &str, check: &str, number: u64| {
        let mut event = numbered(node, number);
        (event.agent, event.check_name) = (agent.into(), check.into());
        event.component_class = "Test".into();
        // Nothing of it stays: it is no agent's word.
        event.quarantine_overrides = Some(wire::datamodels::BehaviourOverrides {
            force: true,
            skip: false,
        });
        event
    };
    let table = [
        (
            &watcher,
            said("node-a", "cloud-monitor", "Notice", 1),
            "label zone=b",
        ),
        (
            &watcher,
            said("nobody", "cloud-monitor", "Notice", 2),
            "label zone=b",
        ),
        (
            &watcher,
            said("node-b", "gpu-health-monitor", "Notice", 3),
            "none of its",
        ),
        (
            &watcher,
            said("node-b", "warden-agent", "Notice", 4),
            "none of its",
        ),
        (
            &somebody,
            said("node-b", "x", "GpuMemWatch", 5),
            "its token is of node node-a",
        ),
        (&somebody, said("node-a", "x", "Notice", 6), "none of its"),
        (
            &somebody,
            said("node-a", "warden-agent", "GpuMemWatch", 7),
            "none of its",
        ),
    ];
    wait_for("the label to be seen", SOON, || async {
        let seen = watcher
            .send(vec![said("node-b", "cloud-monitor", "Seen", 8)])
            .await;
        anyhow::ensure!(seen.is_ok(), "{seen:?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
    cluster.until("node-b", "forced out", is_cordoned).await;
    for (sender, event, why) in table {
        let error = sender.send(vec![event]).await.unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied, "{why}: {error}");
        assert!(error.message().contains(why), "{why}: {error}");
    }
    let error = watcher.report(report("node-b")).await.unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied);
    // Who may not force is heard all the same.
    somebody
        .send(vec![said("node-a", "x", "GpuMemWatch", 9)])
        .await
        .unwrap();
    let is_told = |node: &k8s_openapi::api::core::v1::Node| {
        crate::harness::condition(node, "GpuMemWatch").is_some()
    };
    let node = cluster.until("node-a", "with its condition", is_told).await;
    assert!(!is_cordoned(&node));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_speaks_only_for_itself_and_only_with_a_token_for_us() {
    let fleet = Fleet::start("").await;
    let a = fleet.token(ACCOUNT, "node-a", "warden").await;
    let sender = fleet.sender(Some(&a)).await;
    sender.send(vec![numbered("node-a", 1)]).await.unwrap();

    let error = sender
        .send(vec![numbered("node-a", 2), numbered("node-b", 3)])
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied);
    assert_eq!(
        error.message(),
        "the agent of node node-a may not speak for node node-b"
    );
    let error = sender.report(report("node-b")).await.unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied);
    sender.report(report("node-a")).await.unwrap();

    let other_audience = fleet.token(ACCOUNT, "node-a", "elsewhere").await;
    let testbed = fleet.cluster.testbed;
    let hour = Duration::from_hours(1);
    let unbound = testbed
        .token("warden", ACCOUNT, &["warden"], hour)
        .await
        .unwrap();
    let somebody = fleet.token("somebody", "node-a", "warden").await;
    let table = [
        (None, Code::Unauthenticated, "no bearer token"),
        (Some("not.a.token"), Code::Unauthenticated, "not valid"),
        (
            Some(other_audience.as_str()),
            Code::Unauthenticated,
            "not valid",
        ),
        (
            Some(unbound.as_str()),
            Code::PermissionDenied,
            "names no node",
        ),
        (
            Some(somebody.as_str()),
            Code::PermissionDenied,
            "is not an agent",
        ),
    ];
    for (token, code, why) in table {
        let sender = fleet.sender(token).await;
        let error = sender.send(vec![numbered("node-a", 9)]).await.unwrap_err();
        assert_eq!(error.code(), code, "{why}: {error}");
        assert!(error.message().contains(why), "{why}: {error}");
    }
    let log = fleet.program.log();
    for secret in [&a, &unbound, &somebody] {
        assert!(!log.contains(secret.as_str()), "a token is in the log");
    }
    assert!(!log.contains("PRIVATE KEY"), "a key is in the log");
    let (_, metrics) = fleet.program.get("/metrics", None).await;
    assert!(
        metrics.contains(r#"code="foreign_node",mode="refused"} 2"#),
        "{metrics}"
    );
    assert!(
        metrics.contains("warden_ingest_stored_total 1"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_counts_what_it_would_refuse_and_lets_it_pass() {
    let fleet = Fleet::start("mode = \"audit\"").await;
    let a = fleet.token(ACCOUNT, "node-a", "warden").await;
    fleet
        .sender(Some(&a))
        .await
        .send(vec![numbered("node-b", 1)])
        .await
        .unwrap();
    fleet
        .sender(None)
        .await
        .send(vec![numbered("node-a", 1)])
        .await
        .unwrap();
    let (_, metrics) = fleet.program.get("/metrics", None).await;
    for code in ["foreign_node", "no_token"] {
        let line = format!(r#"warden_ingest_refused_total{{code="{code}",mode="audit"}} 1"#);
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_api_server_is_away_known_agents_go_on_and_new_ones_are_told_to_wait() {
    let fleet = Fleet::start("").await;
    let known = fleet.token(ACCOUNT, "node-a", "warden").await;
    let new = fleet.token(ACCOUNT, "node-b", "warden").await;
    let known = fleet.sender(Some(&known)).await;
    let new = fleet.sender(Some(&new)).await;
    known.send(vec![numbered("node-a", 1)]).await.unwrap();
    let testbed = fleet.cluster.testbed;
    testbed.kill(Component::ApiServer);
    known.send(vec![numbered("node-a", 2)]).await.unwrap();
    let error = new.send(vec![numbered("node-b", 1)]).await.unwrap_err();
    testbed.stop(Component::ApiServer).await;
    testbed.start_component(Component::ApiServer).await.unwrap();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(
        error.metadata().contains_key("grpc-retry-pushback-ms"),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_authorities_one_wins_and_the_bundle_is_what_verifies() {
    let cluster = Cluster::with_nodes(&[]).await;
    let testbed = cluster.testbed;
    testbed.ensure_namespace("warden").await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(testbed.admin(), "warden");
    let bundles: Api<ConfigMap> = Api::namespaced(testbed.admin(), "warden");
    // An earlier test may have left them.
    let _ = secrets.delete(CA_SECRET, &DeleteParams::default()).await;
    let _ = bundles.delete(CA_BUNDLE, &DeleteParams::default()).await;
    let maintain = || {
        let names = vec!["warden-controller.warden.svc".to_owned()];
        let metrics = Arc::new(ControllerMetrics::new());
        let kube = controller::kubernetes::Kube::new(testbed.admin());
        controller::trust::maintain(kube, "warden", names, SOON, metrics)
    };
    let (one, two, three) = tokio::join!(maintain(), maintain(), maintain());
    let bundle = bundle(&cluster).await;
    assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 1);
    assert!(!bundle.contains("PRIVATE"));
    let (one, two, three) = (one.unwrap().0, two.unwrap().0, three.unwrap().0);
    for certificates in [one, two, three] {
        handshake(&certificates, &bundle).await.unwrap();
    }
}

/// One TLS handshake over loopback, verified against the bundle.
async fn handshake(
    certificates: &Arc<controller::trust::Certificates>,
    bundle: &str,
) -> std::io::Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>> {
    use rustls::pki_types::pem::PemObject as _;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let acceptor = tokio_rustls::TlsAcceptor::from(certificates.server_config());
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = acceptor.accept(stream).await;
        if let Ok(mut stream) = stream {
            // Echoes until the other side is gone.
            let (mut read, mut write) = tokio::io::split(&mut stream);
            let _ = tokio::io::copy(&mut read, &mut write).await;
        }
    });
    let mut roots = rustls::RootCertStore::empty();
    for certificate in rustls::pki_types::CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "warden-controller.warden.svc".try_into().unwrap();
    let stream = tokio::net::TcpStream::connect(address).await?;
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

#[tokio::test]
async fn another_certificate_is_shown_to_new_connections_and_old_ones_stay() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let authority = |name: &str| {
        let mut params = rcgen::CertificateParams::default();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap()
    };
    let leaf = |issuer: &rcgen::CertifiedIssuer<'static, rcgen::KeyPair>| {
        let names = vec!["warden-controller.warden.svc".to_owned()];
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(names).unwrap();
        (
            params.signed_by(&key, issuer).unwrap().pem(),
            key.serialize_pem(),
        )
    };
    let (first, second) = (authority("first"), authority("second"));
    let (chain, key) = leaf(&first);
    let certificates = controller::trust::Certificates::new("test", &chain, &key).unwrap();
    let mut open = handshake(&certificates, &first.pem()).await.unwrap();
    let (chain, key) = leaf(&second);
    certificates.replace("test", &chain, &key).unwrap();
    handshake(&certificates, &first.pem())
        .await
        .expect_err("the old one is no longer shown");
    handshake(&certificates, &second.pem()).await.unwrap();
    open.write_all(b"still here").await.unwrap();
    let mut answer = [0; 10];
    open.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"still here");
    certificates.replace("test", "rubbish", &key).unwrap_err();
    handshake(&certificates, &second.pem()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn given_certificate_files_are_read_again_and_a_broken_one_changes_nothing() {
    let issue = || {
        let names = vec!["warden-controller.warden.svc".to_owned()];
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(names).unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    };
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    let write = |(chain_pem, key_pem): &(String, String)| {
        std::fs::write(&key, key_pem).unwrap();
        std::fs::write(&chain, chain_pem).unwrap();
    };
    let absent = controller::trust::Certificates::from_files(&chain, &key)
        .await
        .unwrap_err();
    assert_eq!(absent.code(), "certificate_read");
    let (first, second) = (issue(), issue());
    write(&first);
    let certificates = controller::trust::Certificates::from_files(&chain, &key)
        .await
        .unwrap();
    handshake(&certificates, &first.0).await.unwrap();
    let follow = certificates.follow_files(&chain, &key, Duration::from_millis(5));
    let change = async {
        write(&("no certificate".to_owned(), second.1.clone()));
        handshake(&certificates, &first.0)
            .await
            .expect("the present one stays");
        write(&second);
        wait_for("the new certificate", SOON, || async {
            Ok(handshake(&certificates, &second.0).await.ok().map(drop))
        })
        .await
        .unwrap();
    };
    tokio::select! {
        () = follow => panic!("it follows for ever"),
        () = change => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_asks_who_calls_and_what_they_may() {
    let fleet = Fleet::start("").await;
    let testbed = fleet.cluster.testbed;
    let viewer = format!("viewer-{}", ulid::Ulid::new().to_string().to_lowercase());
    testbed.service_account("warden", &viewer).await.unwrap();
    let hour = Duration::from_hours(1);
    let token = testbed.token("warden", &viewer, &[], hour).await.unwrap();
    let (status, body) = fleet.program.get("/api/v1/nodes", Some(&token)).await;
    assert_eq!(status, 403, "{body}");
    assert!(
        body.contains("nonResourceURLs /warden/api/v1/nodes and verb get"),
        "{body}"
    );
    let rule = PolicyRule {
        non_resource_urls: Some(vec!["/warden/api/v1/nodes".to_owned()]),
        verbs: vec!["get".to_owned()],
        ..PolicyRule::default()
    };
    testbed
        .bind_cluster_role("warden", &viewer, vec![rule])
        .await
        .unwrap();
    wait_for("the new role to count", SOON, || async {
        let (status, body) = fleet.program.get("/api/v1/nodes", Some(&token)).await;
        anyhow::ensure!(status == 200, "{status} {body}");
        Ok(Some(()))
    })
    .await
    .unwrap();
    let reset = fleet
        .program
        .send("POST", "/api/v1/breaker/reset", Some(&token), "")
        .await;
    assert_eq!(reset.0, 403, "{}", reset.1);
    let agent = fleet.token(ACCOUNT, "node-a", "warden").await;
    let (status, body) = fleet.program.get("/api/v1/nodes", Some(&agent)).await;
    assert_eq!(status, 401, "an agent's token is not for the API: {body}");
}

fn report(node: &str) -> wire::warden::v1::ReportRequest {
    wire::warden::v1::ReportRequest {
        node_name: node.into(),
        boot_id: "boot".into(),
        machine_id: format!("machine-of-{node}"),
        spool_id: "01SPOOL".into(),
        process_id: "01PROCESS".into(),
        ..wire::warden::v1::ReportRequest::default()
    }
}
