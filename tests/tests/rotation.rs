//! The controller's own certificate authority changes while an agent and a sender are connected that
//! reads the published bundle once and never again, as the reference's senders do.

use std::time::Duration;

use e2e::machine::{SOON, events};
use e2e::monitor::fatal;
use e2e::{Controller, ControllerOptions};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::wait_for;
use tonic::Request;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use wire::datamodels::platform_connector_client::PlatformConnectorClient;
use wire::datamodels::{HealthEvent, HealthEvents};

use crate::kit::{AT_ONCE, Turn};
use crate::trust::{CA, Fleet, api_token, bundle, forget_authority};

const NODE: &str = "turner";

/// A sender with the bundle that it read at its start.
struct Sender {
    channel: Channel,
    token: String,
}

impl Sender {
    async fn connect(
        at: std::net::SocketAddr,
        ca: &str,
        token: &str,
    ) -> Result<Self, tonic::transport::Error> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(ca))
            .domain_name("warden-controller.warden.svc");
        let endpoint = Endpoint::from_shared(format!("https://{at}")).unwrap();
        Ok(Self {
            channel: endpoint.tls_config(tls)?.connect().await?,
            token: token.to_owned(),
        })
    }

    async fn say(&self, gpu: &str) -> Result<(), tonic::Status> {
        let event = HealthEvent {
            node_name: NODE.to_owned(),
            ..fatal("Watched", "1", gpu)
        };
        let events = vec![event];
        let mut request = Request::new(HealthEvents { version: 1, events });
        request.set_timeout(Duration::from_secs(10));
        let bearer = format!("Bearer {}", self.token).parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        let mut client = PlatformConnectorClient::new(self.channel.clone());
        client.health_event_occurred_v1(request).await.map(drop)
    }
}

/// Turns a time in the authority's Secret back or on, as if it had passed.
async fn set_time(turn: &Turn, key: &str, to: Timestamp) {
    let secrets: Api<Secret> = Api::namespaced(turn.testbed.admin(), "warden");
    let patch = Patch::Merge(json!({ "stringData": { key: to.to_string() } }));
    let params = PatchParams::default();
    secrets.patch(CA, &params, &patch).await.unwrap();
}

/// Waits until the bundle has so many certificates; answers it.
async fn published(turn: &Turn, count: usize) -> String {
    wait_for(
        format!("{count} certificates in the bundle"),
        SOON,
        || async {
            let text = bundle(turn).await;
            Ok((text.matches("BEGIN CERTIFICATE").count() == count).then_some(text))
        },
    )
    .await
    .unwrap()
}

/// Waits until so many events of the two are stored, each once.
async fn said(controller: &Controller, count: usize) {
    wait_for(format!("{count} events"), SOON, || async {
        let all = events(controller, NODE).await?;
        let ours = all
            .iter()
            .filter(|event| event["check"] == "Watched" || event["check"] == "Socket");
        let found = ours.count();
        anyhow::ensure!(found <= count, "{found}, and not {count}: {all:#?}");
        Ok((found == count).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_authority_changes_under_an_agent_and_a_sender_that_stay_connected_and_come_back() {
    let turn = Turn::take().await;
    turn.testbed.ensure_namespace("warden").await.unwrap();
    forget_authority(&turn).await;
    let options = ControllerOptions {
        extra: format!("[ingest.tls]\nlook_every = \"1s\"\n{AT_ONCE}"),
        insecure: false,
        profile: "observe".to_owned(),
        ..ControllerOptions::default()
    };
    let mut controller = turn.controller(&options).await;
    controller.set_api_token(api_token(&turn).await);
    let fleet = Fleet::new(&turn).await;
    let machine = fleet.machine(&controller, NODE).await;
    let token = fleet.token_again(NODE).await;
    let (at, hours) = (controller.ingest, SignedDuration::from_hours);
    let first = published(&turn, 1).await;
    let early = Sender::connect(at, &first, &token).await.unwrap();
    early.say("0").await.unwrap();

    // 59 days before its end the successor is published, and does not sign yet.
    set_time(&turn, "ca.not-after", Timestamp::now() + hours(24 * 59)).await;
    let both = published(&turn, 2).await;
    fleet.publish_ca().await;
    Sender::connect(at, &first, &token).await.unwrap();
    let sender = Sender::connect(at, &both, &token).await.unwrap();
    sender.say("1").await.unwrap();

    // A day later it signs. Who is connected stays so; who comes and knows both is let in.
    set_time(&turn, "next.published-at", Timestamp::now() - hours(25)).await;
    wait_for("the successor to sign", SOON, || async {
        let old = Sender::connect(at, &first, &token).await;
        Ok(old.is_err().then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(
        published(&turn, 2).await.len(),
        both.len(),
        "the old one is kept"
    );
    early.say("2").await.unwrap();
    sender.say("3").await.unwrap();
    machine
        .monitor
        .say(fatal("Socket", "1", "0"))
        .await
        .unwrap();
    Sender::connect(at, &both, &token).await.unwrap();
    said(&controller, 5).await;

    // Both connections end. The agent reads its file again, the sender knows what it read once.
    controller.kill();
    machine
        .monitor
        .say(fatal("Socket", "2", "0"))
        .await
        .unwrap();
    controller.restart().await.unwrap();
    machine.settled(&controller).await.unwrap();
    wait_for("the sender's reconnection", SOON, || async {
        Ok(sender.say("4").await.is_ok().then_some(()))
    })
    .await
    .unwrap();
    assert!(
        early.say("5").await.is_err(),
        "it never learned of the successor"
    );
    said(&controller, 7).await;

    // Once the old one's time is over it is no longer trusted.
    set_time(&turn, "last.not-after", Timestamp::now() - hours(1)).await;
    let left = published(&turn, 1).await;
    assert_ne!(left, first);
    Sender::connect(at, &left, &token).await.unwrap();
    controller.stop().unwrap();
}
