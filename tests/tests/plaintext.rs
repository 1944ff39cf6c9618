//! `ingest.plaintext_listen`: the reference's gRPC sink dials without TLS, and needs a token all the
//! same.

use e2e::machine::events;
use e2e::monitor::fatal;
use e2e::{ControllerOptions, Monitor, nodes, programs};
use tonic::Code;

use crate::kit::{AT_ONCE, Turn};
use crate::trust::{Fleet, api_token, forget_authority};

/// What a controller with this port says of it.
const WARNING: &str = "ingest.plaintext_listen: tokens and events cross the network unencrypted";

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_without_tls_is_heard_with_a_token_of_its_own_node_and_else_not() {
    let turn = Turn::take().await;
    turn.testbed.ensure_namespace("warden").await.unwrap();
    forget_authority(&turn).await;
    turn.nodes(&["plain", "other"]).await;
    let address = programs::free_address().unwrap();
    let options = ControllerOptions {
        extra: AT_ONCE.to_owned(),
        ingest: format!("plaintext_listen = \"{address}\"\n"),
        insecure: false,
        ..ControllerOptions::default()
    };
    let mut controller = turn.controller(&options).await;
    controller.set_api_token(api_token(&turn).await);
    assert!(controller.log().unwrap().contains(WARNING));
    let fleet = Fleet::new(&turn).await;
    let (own, others) = (fleet.token("plain").await, fleet.token("other").await);
    let mut event = fatal("GpuMemWatch", "48", "0");
    event.node_name = "plain".to_owned();
    let plain = || Monitor::on_port(address).unwrap();
    let table = [
        ("no token", plain(), Code::Unauthenticated),
        (
            "no token of this cluster",
            plain().with_token("e30.e30.e30").unwrap(),
            Code::Unauthenticated,
        ),
        (
            "another node's token",
            plain().with_token(&others).unwrap(),
            Code::PermissionDenied,
        ),
    ];
    for (what, sender, code) in table {
        let refused = sender.call(vec![event.clone()]).await.unwrap_err();
        assert_eq!(refused.code(), code, "{what}: {refused}");
    }
    assert!(events(&controller, "plain").await.unwrap().is_empty());
    let sender = plain().with_token(&own).unwrap();
    sender.call(vec![event]).await.unwrap();
    assert_eq!(events(&controller, "plain").await.unwrap().len(), 1);
    turn.node("plain", "out", nodes::is_cordoned).await;
    controller.stop().unwrap();
    let log = controller.log().unwrap();
    assert!(
        !log.contains(&own) && !log.contains(&others),
        "a token is in the log"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_nobody_is_heard_without_tls() {
    let turn = Turn::take().await;
    turn.testbed.ensure_namespace("warden").await.unwrap();
    forget_authority(&turn).await;
    turn.nodes(&["encrypted"]).await;
    let options = ControllerOptions {
        insecure: false,
        ..ControllerOptions::default()
    };
    let mut controller = turn.controller(&options).await;
    controller.set_api_token(api_token(&turn).await);
    let token = Fleet::new(&turn).await.token("encrypted").await;
    let mut event = fatal("GpuMemWatch", "48", "0");
    event.node_name = "encrypted".to_owned();
    let plain = Monitor::on_port(controller.ingest).unwrap();
    let plain = plain.with_token(&token).unwrap();
    // The port answers no HTTP without TLS: the connection breaks off.
    plain.call(vec![event]).await.unwrap_err();
    assert!(events(&controller, "encrypted").await.unwrap().is_empty());
    controller.stop().unwrap();
    let log = controller.log().unwrap();
    assert!(
        !log.contains(WARNING) && !log.contains("ingest_plaintext"),
        "{log}"
    );
}
