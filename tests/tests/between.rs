//! What others do exactly between our read and our write, or between our write and its answer:
//! a proxy before the API server holds the request until it is done.

use std::time::Duration;

use e2e::machine::SOON;
use e2e::monitor::{fatal, healthy};
use e2e::proxy::{Place, Proxy};
use e2e::{Controller, ControllerOptions, Machine, nodes};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use testbed::wait_for;
use wire::datamodels::HealthEvent;

use crate::kit::{AT_ONCE, Turn, explained, taints};

/// A controller behind a proxy, and a node.
struct Scene {
    turn: Turn,
    proxy: Proxy,
    controller: Controller,
    machine: Machine,
}

impl Scene {
    async fn set(name: &str) -> Self {
        Self::set_with(name, AT_ONCE).await
    }

    async fn set_with(name: &str, extra: &str) -> Self {
        let turn = Turn::take().await;
        let proxy = Proxy::start(turn.testbed).await.unwrap();
        let options = ControllerOptions {
            extra: extra.to_owned(),
            kubeconfig: Some(proxy.kubeconfig(turn.testbed).unwrap()),
            ..ControllerOptions::default()
        };
        let controller = turn.controller(&options).await;
        let machine = turn.machine(&controller, name).await;
        Self {
            turn,
            proxy,
            controller,
            machine,
        }
    }

    async fn say(&self, event: &HealthEvent) {
        self.machine.monitor.say(event.clone()).await.unwrap();
    }

    /// The node is out by us.
    async fn out(&self) -> Node {
        self.state("Quarantined").await;
        self.node("marked", |node| !nodes::marks(node).is_empty())
            .await
    }

    async fn node(&self, what: &str, wanted: impl Fn(&Node) -> bool) -> Node {
        self.turn.node(&self.machine.name, what, wanted).await
    }

    async fn state(&self, state: &str) -> Value {
        let reached = self.machine.until_state(&self.controller, state).await;
        reached.unwrap()
    }

    /// No mark of ours is left, and the incident has ended; answers how.
    async fn ended(&self) -> (Node, Value) {
        let closed = self.state("Closed").await;
        let node = self
            .node("without our marks", |node| nodes::marks(node).is_empty())
            .await;
        (node, closed["detail"].clone())
    }

    async fn cordon(&self, cordoned: bool) {
        let client = self.turn.testbed.admin();
        nodes::set_cordon(&client, &self.machine.name, cordoned)
            .await
            .unwrap();
    }

    async fn set_taints(&self, taints: Value) {
        let patch = json!({ "spec": { "taints": taints } });
        Api::<Node>::all(self.turn.testbed.admin())
            .patch(
                &self.machine.name,
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await
            .unwrap();
    }

    fn end(mut self) {
        self.controller.stop().unwrap();
    }
}

fn foreign() -> Value {
    json!({ "key": "foreign", "value": "x", "effect": "PreferNoSchedule" })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_cordon_between_our_read_and_our_write_is_found_and_stays() {
    let scene = Scene::set("between-cordon").await;
    let mut held = scene.proxy.hold_patch("between-cordon", Place::Request);
    let fault = fatal("GpuMemWatch", "48", "0");
    scene.say(&fault).await;
    held.arrived().await.unwrap();
    scene.cordon(true).await;
    held.go();
    let node = scene.out().await;
    let before = nodes::annotation(&node, "quarantineHealthEventCordonPreExisting");
    assert_eq!(before, Some("True"));
    scene.say(&healthy(&fault)).await;
    let (node, detail) = scene.ended().await;
    assert_eq!(detail, "Recovered");
    assert!(nodes::is_cordoned(&node), "the cordon is somebody else's");
    scene.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_taints_between_our_reads_and_our_writes_stay_as_they_are() {
    let scene = Scene::set("between-taint").await;
    let mut held = scene.proxy.hold_patch("between-taint", Place::Request);
    let fault = fatal("GpuTaintWatch", "48", "0");
    scene.say(&fault).await;
    held.arrived().await.unwrap();
    scene.set_taints(json!([foreign()])).await;
    held.go();
    let node = scene.out().await;
    let mut keys = taints(&node);
    keys.sort_unstable();
    assert_eq!(keys, ["foreign", "warden.test/bad"]);

    // And another, between the read and the write of the release.
    let mut held = scene.proxy.hold_patch("between-taint", Place::Request);
    scene.say(&healthy(&fault)).await;
    held.arrived().await.unwrap();
    let mut all = serde_json::to_value(node.spec.unwrap().taints).unwrap();
    let late = json!({ "key": "foreign-late", "effect": "NoSchedule" });
    all.as_array_mut().unwrap().push(late.clone());
    scene.set_taints(all).await;
    held.go();
    let (node, detail) = scene.ended().await;
    assert_eq!(detail, "Recovered");
    assert!(!nodes::is_cordoned(&node));
    let kept: Vec<Value> = node
        .spec
        .unwrap()
        .taints
        .unwrap()
        .iter()
        .filter(|taint| taint.key.starts_with("foreign"))
        .map(|taint| serde_json::to_value(taint).unwrap())
        .collect();
    assert_eq!(kept, [foreign(), late]);
    scene.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_uncordons_while_our_write_has_no_answer_yet_is_heard() {
    let scene = Scene::set("between-answer").await;
    let mut held = scene.proxy.hold_patch("between-answer", Place::Answer);
    scene.say(&fatal("GpuMemWatch", "48", "0")).await;
    held.arrived().await.unwrap();
    // For us it is still Applying: whether the write happened is not known here.
    scene.state("Applying").await;
    scene.cordon(false).await;
    held.go();
    let (node, detail) = scene.ended().await;
    assert_eq!(detail, "ManualUncordon");
    assert!(!nodes::is_cordoned(&node));
    let record = nodes::annotation(&node, "quarantinedNodeUncordonedManually");
    assert_eq!(record, Some("True"));
    scene.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_untaints_while_our_write_has_no_answer_yet_is_heard() {
    let scene = Scene::set("between-untaint").await;
    let mut held = scene.proxy.hold_patch("between-untaint", Place::Answer);
    scene.say(&fatal("GpuTaintWatch", "48", "0")).await;
    held.arrived().await.unwrap();
    scene.set_taints(json!(null)).await;
    held.go();
    let (node, detail) = scene.ended().await;
    assert_eq!(detail, "ManualUntaint");
    assert!(!nodes::is_cordoned(&node) && taints(&node).is_empty());
    scene.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_uncordons_or_untaints_while_we_release_loses_nothing_and_is_not_undone() {
    let scene = Scene::set("between-release").await;
    for by_cordon in [true, false] {
        let fault = fatal("GpuTaintWatch", "48", "0");
        scene.say(&fault).await;
        scene.out().await;
        let mut held = scene.proxy.hold_patch("between-release", Place::Request);
        scene.say(&healthy(&fault)).await;
        held.arrived().await.unwrap();
        scene.state("Releasing").await;
        if by_cordon {
            scene.cordon(false).await;
        } else {
            scene.set_taints(json!(null)).await;
        }
        held.go();
        let (node, _) = scene.ended().await;
        assert!(!nodes::is_cordoned(&node) && taints(&node).is_empty());
    }
    scene.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_killed_while_applying_hears_the_person_who_uncordoned_meanwhile() {
    let mut scene = Scene::set("killed-applying").await;
    let mut held = scene.proxy.hold_patch("killed-applying", Place::Answer);
    scene.say(&fatal("GpuMemWatch", "48", "0")).await;
    held.arrived().await.unwrap();
    scene.state("Applying").await;
    scene.controller.kill();
    held.go();
    let node = scene.node("cordoned", nodes::is_cordoned).await;
    assert!(!nodes::marks(&node).is_empty(), "the write happened");
    scene.cordon(false).await;
    scene.controller.restart().await.unwrap();
    let (node, detail) = scene.ended().await;
    assert_eq!(detail, "ManualUncordon");
    assert!(!nodes::is_cordoned(&node));
    scene.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_killed_before_its_write_leaves_a_cordon_that_came_meanwhile() {
    let mut scene = Scene::set("killed-before").await;
    let mut held = scene.proxy.hold_patch("killed-before", Place::Request);
    let fault = fatal("GpuMemWatch", "48", "0");
    scene.say(&fault).await;
    held.arrived().await.unwrap();
    scene.controller.kill();
    held.go();
    scene.cordon(true).await;
    scene.controller.restart().await.unwrap();
    let node = scene.out().await;
    let before = nodes::annotation(&node, "quarantineHealthEventCordonPreExisting");
    assert_eq!(before, Some("True"));
    scene.say(&healthy(&fault)).await;
    let (node, _) = scene.ended().await;
    assert!(nodes::is_cordoned(&node));
    scene.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_got_lost_is_not_repeated_over_somebody_elses_cordon() {
    let mut scene = Scene::set("killed-releasing").await;
    let fault = fatal("GpuMemWatch", "48", "0");
    scene.say(&fault).await;
    scene.out().await;
    let mut held = scene.proxy.hold_patch("killed-releasing", Place::Answer);
    scene.say(&healthy(&fault)).await;
    held.arrived().await.unwrap();
    scene.controller.kill();
    held.go();
    scene
        .node("released", |node| !nodes::is_cordoned(node))
        .await;
    // Somebody else cordons it before we are back.
    scene.cordon(true).await;
    scene.controller.restart().await.unwrap();
    let (node, detail) = scene.ended().await;
    assert_eq!(detail, "Recovered");
    assert!(nodes::is_cordoned(&node), "theirs is not ours to lift");
    scene.end();
}

/// An API server that has too much to do says when a write may come again.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_turned_away_comes_again_when_it_may_and_happens_once() {
    const NODE: &str = "turned-away";
    const RETRY_AFTER: u64 = 2;
    // Longer than the wait, wherever between two renewals it begins.
    let extra = AT_ONCE.replace("duration = \"10s\"", "duration = \"15s\"");
    let scene = Scene::set_with(NODE, &extra).await;
    let first = scene.proxy.turn_away_patch(NODE, RETRY_AFTER);
    let mut second = scene.proxy.hold_patch(NODE, Place::Request);
    scene.say(&fatal("GpuMemWatch", "48", "0")).await;
    let turned_away = first.arrived().await.unwrap();
    scene.state("Applying").await;
    let client = scene.turn.testbed.admin();
    let node = nodes::read(&client, NODE).await.unwrap();
    assert!(!nodes::is_cordoned(&node) && nodes::marks(&node).is_empty());
    let under_way = "The write that takes the node out is under way.";
    explained(&scene.controller, NODE, &[under_way]);
    let waited = second.arrived().await.unwrap() - turned_away;
    assert!(waited >= Duration::from_secs(RETRY_AFTER), "{waited:?}");
    let log = scene.controller.log().unwrap();
    let said: Vec<&str> = log.lines().filter(|line| line.contains(NODE)).collect();
    assert!(
        !said.iter().any(|line| line.contains("out of service")),
        "nothing is done yet: {said:#?}"
    );
    second.go();
    scene.out().await;
    // Ours are JSON patches; of the one that was turned away the API server knows nothing.
    let answers = wait_for("the write in the audit log", SOON, || async {
        let audit = scene.turn.testbed.audit_events()?;
        let writes = audit.iter().filter(|event| {
            event.name == NODE
                && event.subresource.is_empty()
                && event.object.as_ref().is_some_and(Value::is_array)
        });
        let answers: Vec<u16> = writes.map(|event| event.code).collect();
        Ok((!answers.is_empty()).then_some(answers))
    });
    assert_eq!(answers.await.unwrap(), [200]);
    let log = scene.controller.log().unwrap();
    let said: Vec<&str> = log.lines().filter(|line| line.contains(NODE)).collect();
    let untrue = |line: &&str| line.contains("\"WARN\"") || line.contains("\"ERROR\"");
    assert!(!said.iter().any(untrue), "{said:#?}");
    let out = said.iter().filter(|line| line.contains("out of service"));
    assert_eq!(out.count(), 1, "{said:#?}");
    scene.end();
}
