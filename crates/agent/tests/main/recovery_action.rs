//! XID 154 and its cause through the real program: one problem, and nothing lost.

use health_event::{HealthEvent, ProcessingStrategy, RecommendedAction, keys};

use crate::kit::{Controller, Setup, record, xid};

fn recovery(sequence: u64, text: &str) -> String {
    let text = format!(
        "NVRM: Xid (PCI:f00d:01:00): 154, GPU recovery action changed from 0x0 (None) to {text}"
    );
    record(sequence, &text)
}

fn short(
    event: &HealthEvent,
) -> (
    String,
    ProcessingStrategy,
    RecommendedAction,
    Option<String>,
) {
    (
        event.error_codes.concat(),
        event.strategy,
        event.recommended_action,
        event.metadata.get(keys::CONSEQUENCE_OF).cloned(),
    )
}

#[tokio::test]
async fn a_154_follows_from_its_cause_until_the_driver_asks_for_more() {
    use ProcessingStrategy::{ExecuteRemediation, StoreOnly};
    use RecommendedAction::{ComponentReset, None as NoAction, RestartBm};
    let controller = Controller::start();
    let mut setup = Setup::new();
    let agent = setup.start(&controller.url());
    setup.log(&xid(1, 119, 1));
    setup.log(&recovery(2, "0x1 (GPU Reset Required)"));
    controller.events(2).await;
    controller.settled().await;
    // What is open is known after a restart too.
    assert!(agent.stop().success());
    controller.see(|r| r.reports.clear());
    let _agent = setup.start(&controller.url());
    controller.settled().await;
    setup.log(&recovery(3, "0x2 (Node Reboot Required)"));
    controller.events(4).await;
    let events = controller.see(|r| r.events.clone());
    let cause = || Some("119".to_owned());
    let code = |code: &str| code.to_owned();
    let said: Vec<_> = events.iter().map(short).collect();
    assert_eq!(
        said,
        [
            (code("119"), ExecuteRemediation, ComponentReset, None),
            (code("154"), StoreOnly, ComponentReset, cause()),
            (code("154"), StoreOnly, NoAction, cause()),
            (code("154"), ExecuteRemediation, RestartBm, cause()),
        ]
    );
    assert!(events[2].is_healthy && events[3].is_fatal);
}
