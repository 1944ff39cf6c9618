//! A provider that fails, lies, is late, or loses its answer.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;
use testbed::{Behaviour, Outcome, Rpc};

use super::kit::Loop;
use super::settings::Settings;

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_reboots_and_loses_its_answer_is_not_asked_again() {
    // The answer says INTERNAL, does not come, or comes when nobody waits for it any more.
    let late = Duration::from_secs(4);
    for (name, outcome, delay) in [
        ("w-loses", Outcome::LosesAnswer, Duration::ZERO),
        ("w-cuts", Outcome::CutsConnection, Duration::ZERO),
        ("w-late", Outcome::Obeys, late),
    ] {
        let settings = Settings {
            behaviour: Behaviour {
                outcome,
                delay,
                ..Behaviour::default()
            },
            set: vec![("janitor", "call_timeout", "'1s'")],
            ..Settings::default()
        };
        let mut at = Loop::start_with(name, settings).await;
        at.falls_ill();
        at.rebooted().await;
        at.released().await;
        at.once().await;
        at.controller.stop().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_that_did_not_happen_is_seen_and_ordered_again() {
    // It says that it did, and did not: asked again by force.
    let behaviour = Behaviour {
        outcome: Outcome::Lies,
        ..Behaviour::default()
    };
    let mut at = Loop::start("w-lies", behaviour).await;
    at.falls_ill();
    at.signalled(1).await;
    at.provider.behave(Behaviour::default());
    at.rebooted().await;
    at.released().await;
    let orders = at.orders().await;
    let force: Vec<_> = orders.iter().map(|order| &order["spec"]["force"]).collect();
    assert_eq!(force, [&json!(false), &json!(true)]);
    assert_eq!((at.signals(), at.provider.reboots(at.name())), (2, 1));
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_says_internal_and_does_nothing_is_asked_again_after_the_deadline() {
    let settings = Settings {
        behaviour: Behaviour {
            outcome: Outcome::Fails,
            ..Behaviour::default()
        },
        set: vec![("janitor", "timeout", "'4s'")],
        ..Settings::default()
    };
    let mut at = Loop::start_with("w-fails", settings).await;
    at.falls_ill();
    at.signalled(1).await;
    at.provider.behave(Behaviour::default());
    // Whether it was done nobody knows: until its deadline the node is looked at, and nothing sent.
    at.rebooted().await;
    at.released().await;
    assert_eq!((at.signals(), at.provider.reboots(at.name())), (2, 1));
    let calls = at.provider.calls();
    let signals = calls.iter().filter(|call| call.rpc == Rpc::Reboot);
    let times: Vec<_> = signals.map(|call| call.at).collect();
    let between = times[1].duration_since(times[0]);
    // The deadline counts from before the call.
    assert!(between > SignedDuration::from_secs(2), "{between:?}");
    let orders = at.orders().await;
    assert_eq!(orders.len(), 2, "{orders:#?}");
    at.controller.stop().unwrap();
}
