//! Disruption budgets that keep pods on a node that is out.

use e2e::machine::SOON;
use e2e::nodes;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testbed::{Behaviour, wait_for};

use super::kit::Loop;
use super::settings::Settings;
use crate::kit::explained;

/// A budget that lets the one pod of the namespace not go.
pub(super) async fn budget(at: &Loop, namespace: &str) -> Api<PodDisruptionBudget> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(at.turn.testbed.admin(), namespace);
    let budget = serde_json::from_value(json!({
        "metadata": { "name": "keeps" },
        "spec": { "minAvailable": 1, "selector": {} },
    }))
    .unwrap();
    budgets
        .create(&PostParams::default(), &budget)
        .await
        .unwrap();
    wait_for("the budget to be counted", SOON, || async {
        let status = budgets.get("keeps").await?.status;
        Ok(status.is_some_and(|s| s.expected_pods == 1).then_some(()))
    })
    .await
    .unwrap();
    budgets
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_opens_lets_the_loop_go_on() {
    let mut at = Loop::start("w-opens", Behaviour::default()).await;
    at.work("kept-a-while", 1).await;
    let budgets = budget(&at, "kept-a-while").await;
    at.falls_ill();
    at.until("kept by the budget", |i| {
        i["drain"]["blockers"][0]["why"] == "budget"
    })
    .await;
    let says = [
        "a disruption budget keeps it",
        "The disruption budget keeps",
        "Evicted pods have to be gone by",
    ];
    explained(&at.controller, at.name(), &says);
    assert_eq!(at.signals(), 0, "nothing is rebooted over running work");
    budgets
        .delete("keeps", &DeleteParams::default())
        .await
        .unwrap();
    at.rebooted().await;
    at.released().await;
    at.once().await;
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_never_opens_ends_at_the_deadline_with_a_person_and_says_so() {
    let settings = Settings {
        set: vec![("drain", "immediate_deadline", "'3s'")],
        ..Settings::default()
    };
    let mut at = Loop::start_with("w-never", settings).await;
    at.work("kept-for-ever", 1).await;
    let budgets = budget(&at, "kept-for-ever").await;
    at.falls_ill();
    let failed = at.drain("Failed").await;
    assert_eq!(failed["drain"]["detail"], "immediate", "{failed:#}");
    assert_eq!(failed["repair"]["state"], "Planned", "{failed:#}");
    let pod = at.pods("kept-for-ever").await.remove(0);
    let pod = format!("kept-for-ever/{}", pod.metadata.name.unwrap());
    at.warned("EvictionBlocked", &[&pod]).await;
    at.warned("DrainFailed", &[&pod, "The disruption budget keeps"])
        .await;
    at.labelled("drain-failed").await;
    let says = [
        "is out of service, and a person is needed",
        "A person is needed: the drain failed",
        "pods that were to go at once are still there at their deadline",
        &pod,
        "The disruption budget keeps",
        "kubectl -n kept-for-ever get poddisruptionbudgets",
    ];
    explained(&at.controller, at.name(), &says);
    assert_eq!(at.signals(), 0, "nothing is rebooted over running work");
    assert!(at.orders().await.is_empty());
    assert_eq!(at.pods("kept-for-ever").await.len(), 1);
    let node = nodes::read(&at.turn.testbed.admin(), at.name()).await;
    assert!(nodes::is_cordoned(&node.unwrap()));
    // The person deletes it past the budget, which stands to the end.
    let pods: Api<Pod> = Api::namespaced(at.turn.testbed.admin(), "kept-for-ever");
    let (_, name) = pod.split_once('/').unwrap();
    pods.delete(name, &DeleteParams::default()).await.unwrap();
    at.rebooted().await;
    at.released().await;
    at.once().await;
    assert!(budgets.get_opt("keeps").await.unwrap().is_some());
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_never_opens_is_passed_at_the_deadline_where_that_is_configured() {
    let settings = Settings {
        set: vec![
            ("drain", "immediate_deadline", "'10s'"),
            ("drain", "at_deadline", "'delete'"),
        ],
        ..Settings::default()
    };
    let mut at = Loop::start_with("w-passed", settings).await;
    at.work("kept-in-vain", 1).await;
    let budgets = budget(&at, "kept-in-vain").await;
    at.falls_ill();
    at.until("kept by the budget", |i| {
        i["drain"]["blockers"][0]["why"] == "budget"
    })
    .await;
    assert_eq!((at.pods("kept-in-vain").await.len(), at.signals()), (1, 0));
    at.rebooted().await;
    at.released().await;
    at.once().await;
    assert!(at.pods("kept-in-vain").await.is_empty());
    assert!(budgets.get_opt("keeps").await.unwrap().is_some());
    at.controller.stop().unwrap();
}
