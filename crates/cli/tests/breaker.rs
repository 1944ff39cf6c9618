//! `warden breaker`.

use crate::kit::{Server, ask, pool, text, tripped_pool};

#[test]
fn a_tripped_pool_shows_why_who_waits_and_what_to_do() {
    let pools = text(&[tripped_pool()]);
    let server = Server::start(&[("GET /api/v1/breaker", 200, pools.clone())]);
    let ran = ask(&server, &["breaker"]);
    assert_eq!(ran.code, Some(0));
    insta::assert_snapshot!(ran.out);
    assert_eq!(ask(&server, &["breaker", "show"]).out, ran.out);
    let json = ask(&server, &["breaker", "show", "--format", "json"]);
    assert_eq!(json.out, format!("{pools}\n"));
}

#[test]
fn a_closed_breaker_asks_for_nothing() {
    let server = Server::start(&[("GET /api/v1/breaker", 200, text(&[pool()]))]);
    let out = ask(&server, &["breaker"]).out;
    assert!(out.contains("closed") && !out.contains("reset"), "{out}");
}

#[test]
fn a_reset_sends_what_was_asked_for() {
    let done = r#"{"done":"reset; 2 withheld nodes are dropped"}"#;
    let server = Server::start(&[("POST /api/v1/breaker/reset", 200, done.to_owned())]);
    let ran = ask(
        &server,
        &["breaker", "reset", "--pool", "gpu", "--drop-withheld"],
    );
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(0), "reset; 2 withheld nodes are dropped\n")
    );
    ask(&server, &["breaker", "reset"]);
    let bodies: Vec<String> = server
        .called()
        .into_iter()
        .map(|called| called.body)
        .collect();
    let want = [
        r#"{"pool":"gpu","drop_withheld":true}"#,
        r#"{"pool":null,"drop_withheld":false}"#,
    ];
    assert_eq!(bodies, want);
}

#[test]
fn bounds_are_shown_and_so_is_that_there_are_none() {
    use wire::api::BreakerPool;
    let shown = |pool: BreakerPool| {
        let server = Server::start(&[("GET /api/v1/breaker", 200, text(&[pool]))]);
        ask(&server, &["breaker"]).out
    };
    let table = [
        (pool(), "4, 4 in 5 min", "closed"),
        (
            BreakerPool {
                level_bound: Some(8),
                rate_bound: Some(1),
                ..pool()
            },
            "all, 1 in 5 min",
            "closed",
        ),
        (
            BreakerPool {
                off: true,
                level_bound: None,
                rate_bound: None,
                ..pool()
            },
            "all ",
            "off",
        ),
        // An older controller tells none of it.
        (
            BreakerPool {
                level_bound: None,
                rate_bound: None,
                window_seconds: None,
                ..pool()
            },
            "?",
            "closed",
        ),
    ];
    for (pool, bounds, word) in table {
        let out = shown(pool);
        assert!(out.contains(bounds) && out.contains(word), "{out}");
    }
}
