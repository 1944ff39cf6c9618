//! Two control planes: one with a controller that many tests share, each with nodes of its own,
//! and one for tests that take turns because they stop, break or configure a controller.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use e2e::machine::SOON;
use e2e::programs::{LEASE, NAMESPACE};
use e2e::{Controller, ControllerOptions, KernelLog, Machine, nodes};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use testbed::{Component, Options, Testbed, wait_for};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// At once and without a bound; one rule set of our own, for taints; one protected node. The Lease
/// outlasts an API server that stands still for seconds, as on a slow machine.
pub(crate) const AT_ONCE: &str = r#"
[lease]
duration = "10s"
[quarantine]
first_action_delay = "0s"
protected_nodes = ["guarded"]
[quarantine.circuitBreaker]
enabled = false
[[quarantine.rule-sets]]
name = "taint-test"
[[quarantine.rule-sets.match.any]]
kind = "HealthEvent"
expression = "event.checkName == 'GpuTaintWatch' && event.isFatal == true"
[quarantine.rule-sets.taint]
key = "warden.test/bad"
value = "yes"
effect = "NoSchedule"
"#;

/// What `warden explain` says of a node on which something is wrong contains all of this.
pub(crate) fn explained(controller: &Controller, node: &str, want: &[&str]) {
    let (code, out, err) = warden(controller, &["explain", node]);
    assert_eq!((code, err.as_str()), (Some(1), ""), "{out}");
    for want in want {
        assert!(out.contains(want), "{want:?} is not in {out}");
    }
}

/// Exit code and both outputs of `warden`, asked by whoever may read the controller's token.
pub(crate) fn warden(controller: &Controller, args: &[&str]) -> (Option<i32>, String, String) {
    let run = Command::new(e2e::programs::program("warden").unwrap())
        .args(args)
        .arg(format!("--server=http://{}", controller.api))
        .arg("--token-file")
        .arg(controller.store().join("api-token"))
        .output()
        .unwrap();
    (
        run.status.code(),
        String::from_utf8(run.stdout).unwrap(),
        String::from_utf8(run.stderr).unwrap(),
    )
}

/// What `warden` does as a person asks it to, and says in one line that begins so.
pub(crate) fn done(controller: &Controller, args: &[&str], want: &str) {
    let (code, out, err) = warden(controller, args);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{args:?}: {out}");
    assert!(out.starts_with(want) && out.lines().count() == 1, "{out}");
}

/// What `warden` refuses, with these words on standard error.
pub(crate) fn refused(controller: &Controller, args: &[&str], want: &[&str]) {
    let (code, out, err) = warden(controller, args);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}: {err}");
    for want in want {
        assert!(err.contains(want), "{want:?} is not in {err}");
    }
}

/// A control plane with one controller.
pub(crate) struct Stage {
    pub(crate) testbed: Testbed,
    pub(crate) controller: Controller,
}

impl Stage {
    /// The one that many tests share: each has nodes of its own, and nobody stops anything.
    pub(crate) async fn shared() -> &'static Self {
        static SHARED: OnceCell<Stage> = OnceCell::const_new();
        let start = || async {
            let testbed = Testbed::start(Options::default()).await?;
            let options = ControllerOptions {
                extra: AT_ONCE.to_owned(),
                ..ControllerOptions::default()
            };
            let folder = testbed.folder().join("controller");
            let controller = Controller::start(&testbed, &folder, &options).await?;
            anyhow::Ok(Stage {
                testbed,
                controller,
            })
        };
        SHARED.get_or_try_init(start).await.unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        self.testbed.admin()
    }

    /// A node with a settled agent without a kernel log.
    pub(crate) async fn machine(&self, name: &str) -> Machine {
        self.machine_with(name, KernelLog::Off).await
    }

    pub(crate) async fn machine_with(&self, name: &str, log: KernelLog) -> Machine {
        Machine::join(&self.testbed, &self.controller, name, log)
            .await
            .unwrap()
    }

    /// Waits until the node is as wanted.
    pub(crate) async fn node(
        &self,
        machine: &Machine,
        what: &str,
        wanted: impl Fn(&Node) -> bool,
    ) -> Node {
        let client = self.client();
        match nodes::wait(&client, &machine.name, what, SOON, wanted).await {
            Ok(node) => node,
            Err(error) => {
                let node = nodes::read(&client, &machine.name).await;
                let node = node.map(|node| json!({"metadata": node.metadata, "spec": node.spec}));
                panic!("{error:#}\n{node:?}\n{}", self.controller.log_tail())
            }
        }
    }

    /// Waits until the newest incident of the machine is in this state.
    pub(crate) async fn state(&self, machine: &Machine, state: &str) -> Value {
        machine.until_state(&self.controller, state).await.unwrap()
    }

    /// Waits until the node is out, marks and all, and the controller has seen that it is.
    pub(crate) async fn out(&self, machine: &Machine) -> Node {
        let node = self
            .node(machine, "cordoned with our marks", |node| {
                nodes::is_cordoned(node) && !nodes::marks(node).is_empty()
            })
            .await;
        self.state(machine, "Quarantined").await;
        node
    }

    /// Waits until the node has neither cordon nor mark, and the incident ended as recovered.
    pub(crate) async fn released(&self, machine: &Machine) -> Node {
        let node = self
            .node(machine, "released", |node| {
                !nodes::is_cordoned(node) && nodes::marks(node).is_empty()
            })
            .await;
        let incident = self.state(machine, "Closed").await;
        assert_eq!(incident["detail"], "Recovered", "{incident:#}");
        node
    }

    /// A person's or another program's write.
    pub(crate) async fn merge(&self, node: &str, patch: Value) {
        Api::<Node>::all(self.client())
            .patch(node, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    pub(crate) async fn delete_node(&self, name: &str) {
        delete_node(&self.client(), name).await;
    }
}

async fn delete_node(client: &Client, name: &str) {
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.delete(name, &DeleteParams::default()).await.unwrap();
    wait_for("the node to go", SOON, || async {
        Ok(nodes.get_opt(name).await?.is_none().then_some(()))
    })
    .await
    .unwrap();
}

/// One test at a time: two would be too much for the cores.
static TURN: Mutex<()> = Mutex::const_new(());

/// The control plane of the tests that take turns; it has an audit log.
pub(crate) struct Turn {
    pub(crate) testbed: &'static Testbed,
    _turn: MutexGuard<'static, ()>,
}

impl Turn {
    /// Starts the API server that a test stopped, and anew what follows it: that would notice in
    /// half a minute, and is not what is tested.
    pub(crate) async fn start_api_server(&self) {
        let testbed = self.testbed;
        testbed.stop(Component::Kwok).await;
        testbed.start_component(Component::ApiServer).await.unwrap();
        testbed.restart(Component::ControllerManager).await.unwrap();
        // With those of its predecessor in its way it would play no node until they have run out.
        let leases: Api<Lease> = Api::namespaced(testbed.admin(), "kube-node-lease");
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        leases.delete_collection(&delete, &all).await.unwrap();
        testbed.start_component(Component::Kwok).await.unwrap();
    }

    /// Waits for its turn, and begins with a cluster without nodes.
    pub(crate) async fn take() -> Self {
        static TESTBED: OnceCell<Testbed> = OnceCell::const_new();
        let turn = TURN.lock().await;
        let options = Options {
            audit_log: true,
            ..Options::default()
        };
        let testbed = TESTBED
            .get_or_try_init(|| Testbed::start(options))
            .await
            .unwrap();
        let client = testbed.admin();
        let nodes: Api<Node> = Api::all(client.clone());
        for node in nodes.list(&ListParams::default()).await.unwrap() {
            delete_node(&client, &node.metadata.name.unwrap()).await;
        }
        // That of a controller that an earlier test dropped would have to run out first.
        let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
        match leases.delete(LEASE, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => panic!("{error}"),
        }
        Self {
            testbed,
            _turn: turn,
        }
    }

    /// Waits for its turn, with a control plane that no other test uses; [`Turn::end`] ends it.
    pub(crate) async fn alone(options: Options) -> Self {
        let turn = TURN.lock().await;
        let testbed = Testbed::start(options).await.unwrap();
        Self {
            testbed: Box::leak(Box::new(testbed)),
            _turn: turn,
        }
    }

    /// Ends a control plane of its own, so that it takes no time from the tests that follow.
    pub(crate) async fn end(&self) {
        for component in Component::ALL.into_iter().rev() {
            self.testbed.stop(component).await;
        }
    }

    /// A folder of its own for each controller and store.
    pub(crate) fn folder(&self) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.testbed.folder().join(format!("turn-{number}"))
    }

    /// A controller with a new store.
    pub(crate) async fn controller(&self, options: &ControllerOptions) -> Controller {
        Controller::start(self.testbed, &self.folder(), options)
            .await
            .unwrap()
    }

    /// Nodes without agents.
    pub(crate) async fn nodes(&self, names: &[&str]) {
        let specs: Vec<_> = names
            .iter()
            .map(|name| testbed::NodeSpec::new(*name))
            .collect();
        self.testbed.add_nodes(&specs).await.unwrap();
        self.testbed.wait_nodes_ready(names, SOON).await.unwrap();
    }

    pub(crate) async fn delete(&self, name: &str) {
        delete_node(&self.testbed.admin(), name).await;
    }

    /// Waits until the node is as wanted.
    pub(crate) async fn node(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&Node) -> bool,
    ) -> Node {
        let client = self.testbed.admin();
        nodes::wait(&client, name, what, SOON, wanted)
            .await
            .unwrap()
    }

    /// A node with a settled agent; its folder goes with the turn's next tests.
    pub(crate) async fn machine(&self, controller: &Controller, name: &str) -> Machine {
        Machine::join(self.testbed, controller, name, KernelLog::Off)
            .await
            .unwrap()
    }
}

/// Keys of the taints, but for those of Kubernetes itself.
pub(crate) fn taints(node: &Node) -> Vec<&str> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let keys = taints.into_iter().flatten().map(|taint| taint.key.as_str());
    keys.filter(|key| !key.starts_with("node.kubernetes.io/"))
        .collect()
}
