//! The node that the controller itself runs on.

use e2e::{KernelLog, Machine};

use super::kit::Loop;
use super::settings::Settings;
use crate::kit::explained;

const OWN: &str = "w-own";
const OTHER: &str = "w-other";

fn runs_on(node: &str) -> Vec<String> {
    vec!["--node-name".to_owned(), node.to_owned()]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controllers_own_node_goes_last_and_is_rebooted_once_the_controller_runs_elsewhere() {
    let settings = Settings {
        flags: runs_on(OWN),
        ..Settings::default()
    };
    let mut at = Loop::start_with(OTHER, settings).await;
    let log = KernelLog::Pipe;
    let own = Machine::join(at.turn.testbed, &at.controller, OWN, log);
    let mut own = own.await.unwrap();
    at.work("may-finish", 1).await;
    at.falls_ill();
    at.drain("Draining").await;

    // As long as another node is being drained or repaired, its pods are left alone.
    std::mem::swap(&mut at.machine, &mut own);
    at.work("at-once", 1).await;
    at.falls_ill();
    let waits = at.drain("Waiting").await;
    assert_eq!(waits["drain"]["detail"], "own_node", "{waits:#}");
    let says = "the controller itself runs on this node";
    explained(&at.controller, OWN, &["The drain waits", says]);
    assert_eq!(at.pods("at-once").await.len(), 1);

    std::mem::swap(&mut at.machine, &mut own);
    at.finish("may-finish").await;
    at.rebooted().await;
    at.released().await;
    at.once().await;

    // Alone it is drained, and not rebooted under the controller.
    std::mem::swap(&mut at.machine, &mut own);
    let planned = at.until("empty, and its reboot planned", |i| {
        i["drain"]["state"] == "Drained" && i["repair"]["blocked_by"] == "own_node"
    });
    planned.await;
    let says = ["Planned is a reboot, and not ordered", says];
    explained(&at.controller, OWN, &says);
    assert!(at.pods("at-once").await.is_empty());
    assert_eq!((at.signals(), at.orders().await.len()), (0, 0));

    // Moved, as by its Deployment.
    at.controller.stop().unwrap();
    at.controller.set_flags(runs_on(OTHER));
    at.controller.spawn_again().unwrap();
    at.controller.wait_ready().await.unwrap();
    at.rebooted().await;
    at.released().await;
    at.once().await;
    at.controller.stop().unwrap();
}
