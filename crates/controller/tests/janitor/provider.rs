//! The way to the provider: what fails before the call is tried again, and nothing was sent.

use std::path::Path;

use testbed::{KeyedCertificate, ProviderOptions, SimProvider, wait_for};

use super::{Rig, end, failed, install, leases, order, succeeded};
use crate::harness::{Cluster, SOON};

/// Counts what could not be sent; tried again it is counted again.
const UNREACHABLE: &str = r#"warden_janitor_signals_total{outcome="unreachable"} "#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_is_down_at_first_is_tried_again_and_gets_one_signal() {
    let cluster = Cluster::with_nodes(&["j-later"]).await;
    install(&cluster).await;
    let mut options = ProviderOptions::new(cluster.testbed.admin());
    // Its port is known, and nobody is there.
    let gone = SimProvider::start(options.clone()).await.unwrap();
    options.listen = gone.address();
    let elsewhere = SimProvider::start(ProviderOptions::new(cluster.testbed.admin()));
    let elsewhere = elsewhere.await.unwrap();
    let config = super::config(&options.listen.to_string(), "queue_timeout = \"1m\"");
    drop(gone);
    let rig = Rig::start_on(&cluster, elsewhere, config, tempfile::tempdir().unwrap()).await;
    order(&cluster, "l", "j-later").await;
    rig.controller.until_counted(UNREACHABLE, 1).await;
    assert!(
        rig.intents().is_empty(),
        "nothing was sent, so nothing is stored"
    );
    // Another repair of the node may go on between two tries.
    wait_for("the lock to be given back", SOON, || async {
        let lease = leases(&cluster).get_opt("j-later").await?;
        Ok(lease.is_none().then_some(()))
    })
    .await
    .unwrap();
    let back = SimProvider::start(options).await.unwrap();
    assert_eq!(end(&cluster, "l").await, succeeded());
    assert_eq!(back.signals("j-later"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_stays_down_ends_the_object_with_its_time_in_the_queue() {
    let cluster = Cluster::with_nodes(&["j-never"]).await;
    let rig = Rig::start(
        &cluster,
        "queue_timeout = \"2s\"\ncspProviderTokenPath = \"/none\"",
    )
    .await;
    order(&cluster, "n", "j-never").await;
    assert_eq!(end(&cluster, "n").await, failed("Timeout"));
    assert!(rig.provider.calls().is_empty());
    rig.until_free("j-never").await;
}

fn keys(folder: &Path) -> String {
    let path = |name: &str| folder.join(name).display().to_string();
    format!(
        "cspProviderInsecure = false\nqueue_timeout = \"1m\"\ncspProviderCAPath = \"{}\"\n\
         cspProviderTokenPath = \"{}\"",
        path("ca.crt"),
        path("token")
    )
}

/// With TLS and a token; both files change while it runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn j04_tls_and_token_are_read_anew_for_each_call() {
    let cluster = Cluster::with_nodes(&["j-tls"]).await;
    install(&cluster).await;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let other = other_authority();
    write("ca.crt", &other.certificate_pem);
    write("token", "  secret-1\n");
    let mut options = ProviderOptions::new(cluster.testbed.admin());
    options.tls = Some(cluster.testbed.serving_certificate(&["localhost"]).unwrap());
    options.tokens = vec!["secret-1".to_owned()];
    let provider = SimProvider::start(options).await.unwrap();
    let host = format!("localhost:{}", provider.address().port());
    let config = super::config(&host, &keys(folder.path()));
    let rig = Rig::start_on(&cluster, provider, config, tempfile::tempdir().unwrap()).await;
    order(&cluster, "wrong-ca", "j-tls").await;
    rig.controller.until_counted(UNREACHABLE, 1).await;
    assert!(rig.intents().is_empty() && rig.provider.calls().is_empty());
    write("ca.crt", &cluster.testbed.ca_pem());
    assert_eq!(end(&cluster, "wrong-ca").await, succeeded());

    rig.provider.let_in(&["secret-2"]);
    order(&cluster, "old-token", "j-tls").await;
    assert_eq!(end(&cluster, "old-token").await, failed("Failed"));
    let (_, _, why) =
        super::condition(&super::status(&cluster, "old-token").await, "SignalSent").unwrap();
    assert!(
        why.contains("Unauthenticated") && !why.contains("secret"),
        "{why}"
    );
    write("token", "secret-2");
    order(&cluster, "new-token", "j-tls").await;
    assert_eq!(end(&cluster, "new-token").await, succeeded());
    assert_eq!(rig.provider.signals("j-tls"), 2);
}

/// A certificate that did not sign the provider's.
fn other_authority() -> KeyedCertificate {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["other".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    KeyedCertificate {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
    }
}
