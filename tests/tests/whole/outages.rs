//! Programs that are gone for a while in the middle of the loop: the controller, the API server.

use e2e::machine::SOON;
use e2e::proxy::Place;
use e2e::{KernelLog, Machine};
use http::Method;
use serde_json::Value;
use testbed::{Behaviour, Component, Outcome, wait_for};

use super::kit::{Loop, ORDERS};
use super::settings::{Settings, slow};

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_dies_at_any_stage_loses_and_repeats_nothing() {
    let mut at = Loop::start("w-dies", slow()).await;
    at.work("may-finish", 1).await;
    at.falls_ill();
    let before = at.drain("Draining").await["drain"]["immediate_deadline"].clone();
    at.controller.kill();
    at.controller.restart().await.unwrap();
    let after = at.drain("Draining").await["drain"]["immediate_deadline"].clone();
    assert_eq!(before, after, "the deadline is the one that was given");
    at.finish("may-finish").await;
    // A provider that was asked and whose answer is not known yet: the node tells.
    at.turn
        .node(at.name(), "down", |node| !testbed::is_ready(node))
        .await;
    at.controller.kill();
    at.controller.restart().await.unwrap();
    at.rebooted().await;
    at.released().await;
    at.once().await;
    at.controller.stop().unwrap();
}

async fn api_server_dies(at: &Loop) {
    at.turn.testbed.kill(Component::ApiServer);
    at.turn.testbed.stop(Component::ApiServer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_restarts_in_each_stage_delays_and_repeats_nothing() {
    let settings = Settings {
        behaviour: slow(),
        // Longer than a Lease lasts it would end the process, and what is shown here is that one
        // process goes on.
        set: vec![("lease", "enabled", "false")],
        proxied: true,
        ..Settings::default()
    };
    let mut at = Loop::start_with("w-outage", settings).await;
    let process = at.controller.id();
    at.work("may-finish", 1).await;
    at.falls_ill();
    let before = at.drain("Draining").await["drain"]["immediate_deadline"].clone();
    api_server_dies(&at).await;
    at.turn.start_api_server().await;
    let after = at.drain("Draining").await["drain"]["immediate_deadline"].clone();
    assert_eq!(before, after, "the deadline is the one that was given");

    // The order is stored, and the call that makes its object gets no answer.
    let proxy = at.proxy.as_ref().unwrap();
    let mut held = proxy.hold(Method::POST, ORDERS, Place::Request);
    at.finish("may-finish").await;
    held.arrived().await.unwrap();
    let ordered = at.repair("Requested").await;
    api_server_dies(&at).await;
    held.go();
    assert_eq!(at.signals(), 0);
    at.turn.start_api_server().await;

    // The signal is sent, and the machine is down.
    at.signalled(1).await;
    at.turn
        .node(at.name(), "down", |node| !testbed::is_ready(node))
        .await;
    api_server_dies(&at).await;
    at.turn.start_api_server().await;
    at.rebooted().await;
    at.released().await;
    at.once().await;
    let orders = at.orders().await;
    let name = &orders[0]["metadata"]["name"];
    assert_eq!(name, &ordered["repair"]["attempt"]["object"]);
    assert!(at.controller.is_running());
    assert_eq!(at.controller.id(), process, "the same process");
    at.controller.stop().unwrap();
}

impl Loop {
    /// The one order of the node, once it is there.
    async fn order(&self) -> Value {
        wait_for("the order to be made", SOON, || async {
            let orders = self.orders().await;
            Ok(orders.into_iter().next())
        })
        .await
        .unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_waits_for_its_place_while_the_api_server_restarts_is_begun_once() {
    let settings = Settings {
        // Whether it was done nobody knows: the place is taken until the machine shows another boot.
        behaviour: Behaviour {
            outcome: Outcome::Fails,
            ..Behaviour::default()
        },
        set: vec![
            ("lease", "enabled", "false"),
            ("janitor", "max_parallel", "1"),
            ("janitor", "timeout", "'1h'"),
        ],
        ..Settings::default()
    };
    let mut at = Loop::start_with("w-goes", settings).await;
    let process = at.controller.id();
    at.falls_ill();
    at.signalled(1).await;
    at.provider.behave(slow());
    let log = KernelLog::Pipe;
    let waits = Machine::join(at.turn.testbed, &at.controller, "w-waits", log);
    let mut goes = std::mem::replace(&mut at.machine, waits.await.unwrap());
    at.falls_ill();
    let queued = |i: &Value| i["repair"]["blocked_by"] == "queued";
    at.until("with an order that waits", queued).await;
    let before = at.order().await;

    api_server_dies(&at).await;
    at.turn.start_api_server().await;
    at.until("with an order that waits still", queued).await;
    assert_eq!(at.signals(), 0, "the only place is taken");

    // The first machine reboots after all, and with it the place is free.
    goes.restart(at.turn.testbed).await.unwrap();
    at.rebooted().await;
    at.released().await;
    at.once().await;
    let after = at.order().await;
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    at.stepped_once(&[
        ["remediation", "Planned", "Requested"],
        ["remediation", "Running", "Succeeded"],
    ])
    .await;
    std::mem::swap(&mut at.machine, &mut goes);
    at.released().await;
    assert_eq!((at.signals(), at.orders().await.len()), (1, 1));
    assert!(at.controller.is_running());
    assert_eq!(at.controller.id(), process, "the same process");
    at.controller.stop().unwrap();
}
