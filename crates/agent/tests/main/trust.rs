use crate::kit::{Controller, Setup, Tls, until, xid};

#[tokio::test]
async fn the_token_is_read_anew_when_its_file_changes() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let token = setup.path("token");
    setup.flag("--token-file", &token.display().to_string());
    let _agent = setup.start(&controller.url());
    setup.log(&xid(1, 79, 1));
    until("a complaint about the missing token", || {
        setup
            .logged()
            .contains("sending waits for it")
            .then_some(())
    })
    .await;
    assert_eq!(
        controller.see(|r| r.calls),
        0,
        "nothing goes without the token"
    );
    std::fs::write(&token, "one\n").unwrap();
    controller.events(1).await;
    controller.see(|r| r.token = Some("Bearer two".into()));
    setup.log(&xid(2, 79, 1));
    until("the old token's refusal", || {
        controller.see(|r| (r.tokens.len() >= 2).then_some(()))
    })
    .await;
    // As kubelet does: another file under the same name.
    let next = setup.path("token.next");
    std::fs::write(&next, "two\n").unwrap();
    std::fs::rename(&next, &token).unwrap();
    controller.events(2).await;
    assert!(
        !setup.logged().contains("Bearer"),
        "tokens are never logged"
    );
}

#[tokio::test]
async fn with_tls_the_agent_starts_without_its_ca_and_connects_when_it_appears() {
    let tls = Tls::new("warden.warden.svc");
    let controller = Controller::start_tls(&tls);
    let mut setup = Setup::new();
    let ca = setup.path("ca.crt");
    setup.flag("--ca-file", &ca.display().to_string());
    setup.flag("--server-name", "warden.warden.svc");
    let url = controller.url();
    let _agent = setup.start(&url);
    setup.log(&xid(1, 79, 1));
    until("a complaint about the missing CA", || {
        setup
            .logged()
            .contains("connecting waits for it")
            .then_some(())
    })
    .await;
    std::fs::write(&ca, Tls::new("warden.warden.svc").ca_pem).unwrap();
    until("another CA is not believed", || {
        setup.logged().contains("can't be reached").then_some(())
    })
    .await;
    assert_eq!(controller.see(|r| r.events.len()), 0);
    std::fs::write(&ca, &tls.ca_pem).unwrap();
    controller.events(1).await;
    controller.settled().await;
}
