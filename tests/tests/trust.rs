//! TLS and tokens between real agents and a real controller.

use std::path::PathBuf;
use std::time::Duration;

use e2e::machine::{SOON, events};
use e2e::monitor::fatal;
use e2e::{Controller, ControllerOptions, KernelLog, Machine, Trust, http};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Api;
use kube::api::DeleteParams;
use testbed::{NodeSpec, wait_for};

use crate::kit::{AT_ONCE, Turn};

const ACCOUNT: &str = "warden-agent";
/// The Secret with the controller's authority.
pub(crate) const CA: &str = "warden-ca";
const BUNDLE: &str = "warden-ca-bundle";

/// Removes the authority that an earlier test's controller made.
pub(crate) async fn forget_authority(turn: &Turn) {
    let client = turn.testbed.admin();
    let delete = DeleteParams::default();
    // What is not there need not go.
    let _ = Api::<Secret>::namespaced(client.clone(), "warden")
        .delete(CA, &delete)
        .await;
    let _ = Api::<ConfigMap>::namespaced(client, "warden")
        .delete(BUNDLE, &delete)
        .await;
}

/// The certificates that the controller published.
pub(crate) async fn bundle(turn: &Turn) -> String {
    let bundles: Api<ConfigMap> = Api::namespaced(turn.testbed.admin(), "warden");
    let data = bundles.get(BUNDLE).await.unwrap().data.unwrap();
    data["ca.crt"].clone()
}

/// A controller that asks everybody for a token, and what its API is read with.
pub(crate) async fn controller(turn: &Turn) -> Controller {
    let options = ControllerOptions {
        extra: AT_ONCE.to_owned(),
        insecure: false,
        ..ControllerOptions::default()
    };
    let mut controller = turn.controller(&options).await;
    controller.set_api_token(api_token(turn).await);
    controller
}

/// A token of somebody who may read the API.
pub(crate) async fn api_token(turn: &Turn) -> String {
    token_of(turn, "viewer", &["get"]).await
}

/// A token of somebody who may also take nodes out and give them back.
pub(crate) async fn operator_token(turn: &Turn) -> String {
    token_of(turn, "operator", &["get", "post"]).await
}

async fn token_of(turn: &Turn, account: &str, verbs: &[&str]) -> String {
    let testbed = turn.testbed;
    testbed.service_account("warden", account).await.unwrap();
    let rule = PolicyRule {
        non_resource_urls: Some(vec!["/warden/api/v1/*".to_owned()]),
        verbs: verbs.iter().map(ToString::to_string).collect(),
        ..PolicyRule::default()
    };
    testbed
        .bind_cluster_role("warden", account, vec![rule])
        .await
        .unwrap();
    let hour = Duration::from_secs(3_600);
    testbed.token("warden", account, &[], hour).await.unwrap()
}

/// Agents with tokens as projected volumes hold them.
pub(crate) struct Fleet<'a> {
    turn: &'a Turn,
    folder: PathBuf,
}

impl<'a> Fleet<'a> {
    pub(crate) async fn new(turn: &'a Turn) -> Self {
        turn.testbed
            .service_account("warden", ACCOUNT)
            .await
            .unwrap();
        let folder = turn.folder();
        std::fs::create_dir_all(&folder).unwrap();
        Self { turn, folder }
    }

    /// The token of the agent's pod on this node.
    pub(crate) async fn token(&self, node: &str) -> String {
        let pod = format!("agent-{node}");
        let testbed = self.turn.testbed;
        testbed
            .pod_on_node("warden", &pod, ACCOUNT, node)
            .await
            .unwrap();
        testbed
            .node_bound_token("warden", ACCOUNT, &pod, "warden")
            .await
            .unwrap()
    }

    /// The token of a node whose agent was prepared.
    pub(crate) async fn token_again(&self, node: &str) -> String {
        let testbed = self.turn.testbed;
        let pod = format!("agent-{node}");
        testbed
            .node_bound_token("warden", ACCOUNT, &pod, "warden")
            .await
            .unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes what the controller published to the agents' mount.
    pub(crate) async fn publish_ca(&self) {
        std::fs::write(self.file("ca.crt"), bundle(self.turn).await).unwrap();
    }

    /// A node with an agent that shows `token`; not started, and the CA may come later.
    pub(crate) fn prepare(&self, controller: &Controller, node: &str, token: &str) -> Machine {
        let token_file = self.file(&format!("{node}.token"));
        std::fs::write(&token_file, token).unwrap();
        let spec = NodeSpec::new(node);
        let mut machine =
            Machine::prepare(&self.folder, controller, &spec, KernelLog::Off).unwrap();
        machine.agent.set_trust(Trust {
            ca_file: self.file("ca.crt"),
            token_file,
        });
        let name = "warden-controller.warden.svc";
        machine
            .agent
            .set_flags(vec!["--server-name".to_owned(), name.to_owned()]);
        machine
    }

    /// A node with a settled agent.
    pub(crate) async fn machine(&self, controller: &Controller, node: &str) -> Machine {
        self.turn.nodes(&[node]).await;
        let token = self.token(node).await;
        self.publish_ca().await;
        let machine = self.prepare(controller, node, &token);
        machine.started(controller).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_cannot_speak_for_another_and_loses_nothing_by_trying() {
    let turn = Turn::take().await;
    turn.testbed.ensure_namespace("warden").await.unwrap();
    forget_authority(&turn).await;
    turn.nodes(&["node-a", "node-b"]).await;
    let mut controller = controller(&turn).await;
    let fleet = Fleet::new(&turn).await;
    let (token_a, token_b) = (fleet.token("node-a").await, fleet.token("node-b").await);

    // Agents start without the CA's bundle, take in what monitors say, and connect when it comes.
    let mut a = fleet.prepare(&controller, "node-a", &token_a);
    a.agent.spawn().unwrap();
    a.monitor
        .say(fatal("GpuMemWatch", "48", "0"))
        .await
        .unwrap();
    assert!(events(&controller, "node-a").await.unwrap().is_empty());
    fleet.publish_ca().await;
    a.settled(&controller).await.unwrap();
    a.until_state(&controller, "Quarantined").await.unwrap();

    // The agent of node-b with the token of node-a: refused, kept, and not believed.
    let mut b = fleet.prepare(&controller, "node-b", &token_a);
    b.agent.spawn().unwrap();
    b.monitor
        .say(fatal("GpuMemWatch", "48", "0"))
        .await
        .unwrap();
    wait_for("the refusal to be counted", SOON, || async {
        let (_, metrics) = http::get(controller.api, "/metrics", None).await?;
        let refused = metrics.lines().any(|line| {
            line.starts_with("warden_ingest_refused_total{")
                && line.contains("foreign_node")
                && !line.ends_with(" 0")
        });
        Ok(refused.then_some(()))
    })
    .await
    .unwrap();
    assert!(events(&controller, "node-b").await.unwrap().is_empty());
    let node = turn.node("node-b", "there", |_| true).await;
    assert!(!e2e::nodes::is_cordoned(&node));
    // The right token arrives in its file, and with it what was kept.
    std::fs::write(fleet.file("node-b.token"), &token_b).unwrap();
    b.until_state(&controller, "Quarantined").await.unwrap();
    turn.node("node-b", "out", e2e::nodes::is_cordoned).await;
    let log = format!("{}{}", a.agent.log_tail(), b.agent.log_tail());
    assert!(
        !log.contains(&token_a) && !log.contains(&token_b),
        "a token is in a log"
    );
    controller.stop().unwrap();
}

/// Asks the API server under a token; answers the status of each answer.
async fn asked(turn: &Turn, token: &str) -> Vec<u16> {
    let client = turn.testbed.client_for_token(token).await.unwrap();
    let mut codes = Vec::new();
    for (method, path, body) in [
        ("GET", "/version", ""),
        ("GET", "/api/v1/nodes", ""),
        ("GET", "/api/v1/nodes/speaks", ""),
        ("GET", "/api/v1/pods?watch=true", ""),
        ("GET", "/api/v1/namespaces/warden/secrets", ""),
        ("GET", "/api/v1/namespaces/warden/configmaps", ""),
        ("PATCH", "/api/v1/nodes/speaks", r#"{"spec":{}}"#),
        ("PATCH", "/api/v1/nodes/speaks/status", r#"{"status":{}}"#),
        ("POST", "/api/v1/namespaces/default/events", "{}"),
        ("DELETE", "/api/v1/namespaces/warden/pods/agent-speaks", ""),
    ] {
        let mut request = ::http::Request::builder().method(method).uri(path);
        if method == "PATCH" {
            request = request.header("Content-Type", "application/merge-patch+json");
        } else if method == "POST" {
            request = request.header("Content-Type", "application/json");
        }
        let request = request.body(body.as_bytes().to_vec()).unwrap();
        let code = match client.request_text(request).await {
            Ok(_) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(error) => panic!("{method} {path}: {error}"),
        };
        codes.push(code);
    }
    codes
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agents_token_opens_nothing_at_the_api_server_and_its_account_may_nothing() {
    let turn = Turn::take().await;
    turn.testbed.ensure_namespace("warden").await.unwrap();
    forget_authority(&turn).await;
    let mut controller = controller(&turn).await;
    let fleet = Fleet::new(&turn).await;
    let machine = fleet.machine(&controller, "speaks").await;
    // The controller believes the token, so it is a good one.
    machine
        .monitor
        .say(fatal("GpuMemWatch", "48", "0"))
        .await
        .unwrap();
    machine
        .until_state(&controller, "Quarantined")
        .await
        .unwrap();
    let token = std::fs::read_to_string(fleet.file("speaks.token")).unwrap();
    // The API server does not: it is for another audience.
    assert_eq!(asked(&turn, &token).await, [401; 10]);
    // Nor does a token for the API server help: the account may do nothing that others may not.
    let hour = Duration::from_secs(3_600);
    let own = turn.testbed.token("warden", ACCOUNT, &[], hour).await;
    let codes = asked(&turn, &own.unwrap()).await;
    assert_eq!(
        codes[0], 200,
        "the token is good, and everyone may read this"
    );
    assert_eq!(codes[1..], [403; 9]);
    // Nothing but this test has ever called under the account.
    let user = format!("system:serviceaccount:warden:{ACCOUNT}");
    let calls = || {
        let all = turn.testbed.audit_events().unwrap().into_iter();
        all.filter(|event| event.user == user).collect::<Vec<_>>()
    };
    wait_for("the refusals in the log", SOON, || async {
        let refused = calls().iter().filter(|event| event.code == 403).count();
        Ok((refused >= 3).then_some(()))
    })
    .await
    .unwrap();
    let all = calls().into_iter();
    // What everyone may read is no resource.
    let allowed: Vec<_> = all
        .filter(|call| call.code != 403 && !call.resource.is_empty())
        .collect();
    assert!(allowed.is_empty(), "{allowed:#?}");
    controller.stop().unwrap();
}
