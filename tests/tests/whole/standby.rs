//! A second controller that waits, and goes on where the leader was killed.

use e2e::Controller;
use e2e::machine::SOON;
use testbed::wait_for;

use super::kit::Loop;
use super::settings::{Settings, slow};

/// Waits until the process says that it waits for another's Lease: it lives, and is not ready.
async fn waits(standby: &Controller) {
    let waits = wait_for("the second controller to wait", SOON, || async {
        let (ready, why) = e2e::http::get(standby.api, "/readyz", None).await?;
        let told = ready == 503 && why.contains("waiting for lease") && why.contains("held by");
        anyhow::ensure!(told, "{ready}: {why}");
        Ok(Some(()))
    });
    if let Err(error) = waits.await {
        panic!("{error:#}\n{}", standby.log_tail());
    }
    let (alive, _) = e2e::http::get(standby.api, "/healthz", None).await.unwrap();
    assert_eq!(alive, 200);
}

/// The leader is killed, and the one that waits leads.
async fn takes_over(at: &mut Loop, standby: &mut Controller) {
    waits(standby).await;
    at.controller.kill();
    std::mem::swap(&mut at.controller, standby);
    at.controller.wait_ready().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_goes_on_where_the_leader_was_killed_and_repeats_nothing() {
    let settings = Settings {
        behaviour: slow(),
        // Waited for at each take-over.
        set: vec![("lease", "duration", "'6s'")],
        ..Settings::default()
    };
    let mut at = Loop::start_with("w-standby", settings).await;
    let mut standby = at.controller.standby(&at.turn.folder()).unwrap();
    at.work("may-finish", 1).await;
    at.falls_ill();
    let before = at.drain("Draining").await["drain"]["immediate_deadline"].clone();
    takes_over(&mut at, &mut standby).await;
    let after = at.drain("Draining").await["drain"]["immediate_deadline"].clone();
    assert_eq!(before, after, "the deadline is the one that was given");
    // What was killed is started again, and waits in its turn.
    standby.spawn_again().unwrap();
    at.finish("may-finish").await;
    at.turn
        .node(at.name(), "down", |node| !testbed::is_ready(node))
        .await;
    takes_over(&mut at, &mut standby).await;
    at.rebooted().await;
    at.released().await;
    at.once().await;
    at.stepped_once(&[
        ["drain", "Draining", "Drained"],
        ["remediation", "Planned", "Requested"],
        ["remediation", "Running", "Succeeded"],
    ])
    .await;
    at.controller.stop().unwrap();
}
