use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

fn jwt(exp: i64) -> String {
    let claims = URL_SAFE_NO_PAD.encode(json!({ "exp": exp }).to_string());
    format!("e30.{claims}.c2ln")
}

fn in_an_hour() -> i64 {
    Timestamp::now().as_second() + 3_600
}

/// What the scripted API server answers.
#[derive(Clone)]
enum Answer {
    Yes,
    No,
    Down,
}

/// A reviewer whose API server answers what the cell says, and counts.
fn reviewer(answer: &Arc<Mutex<Answer>>) -> (Arc<TokenReviewer>, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let (answer, count) = (Arc::clone(answer), Arc::clone(&asked));
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.lock().unwrap().clone();
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            assert_eq!(
                request.uri().path(),
                "/apis/authentication.k8s.io/v1/tokenreviews"
            );
            let sent = request.into_body().collect().await?.to_bytes();
            let mut review: Value = serde_json::from_slice(&sent)?;
            assert_eq!(review["spec"]["audiences"], json!(["warden"]));
            tokio::task::yield_now().await;
            review["status"] = match answer {
                Answer::Yes => json!({
                    "authenticated": true,
                    "audiences": ["warden"],
                    "user": {
                        "username": "system:serviceaccount:warden:warden-agent",
                        "extra": { NODE_NAME_EXTRA: ["gpu-1"] },
                    },
                }),
                Answer::No => json!({ "authenticated": false, "error": "no such token" }),
                Answer::Down => return Err(tower::BoxError::from("connection refused")),
            };
            Ok(Response::new(Body::from(review.to_string().into_bytes())))
        }
    });
    let client = Client::new(service, "default");
    let metrics = Arc::new(ControllerMetrics::new());
    let reviewer = TokenReviewer::new(client, vec!["warden".to_owned()], metrics);
    (Arc::new(reviewer), asked)
}

fn forget_freshness(reviewer: &TokenReviewer, token: &str) {
    let slot = reviewer.slot(Sha256::digest(token.as_bytes()).into());
    if let Some(Memory::Good { at, .. } | Memory::Refused { at, .. }) =
        slot.memory.lock().unwrap().as_mut()
    {
        *at -= SignedDuration::from_hours(1);
    }
}

#[tokio::test]
async fn a_token_is_asked_about_once_however_many_show_it() {
    let answer = Arc::new(Mutex::new(Answer::Yes));
    let (reviewer, asked) = reviewer(&answer);
    let token = jwt(in_an_hour());
    let calls = (0..20).map(|_| {
        let (reviewer, token) = (Arc::clone(&reviewer), token.clone());
        tokio::spawn(async move { reviewer.review(&token).await })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap().unwrap().node.as_deref(), Some("gpu-1"));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    forget_freshness(&reviewer, &token);
    reviewer.review(&token).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2, "again after ten minutes");
}

#[tokio::test]
async fn while_the_api_server_is_away_only_a_reviewed_token_is_good() {
    let answer = Arc::new(Mutex::new(Answer::Yes));
    let (reviewer, _) = reviewer(&answer);
    let known = jwt(in_an_hour());
    reviewer.review(&known).await.unwrap();
    *answer.lock().unwrap() = Answer::Down;
    forget_freshness(&reviewer, &known);
    reviewer.review(&known).await.unwrap();
    let new = jwt(in_an_hour() + 1);
    let error = reviewer.review(&new).await.unwrap_err();
    assert_eq!(error.code(), "token_unchecked");
    *answer.lock().unwrap() = Answer::Yes;
    reviewer.review(&new).await.unwrap();
}

#[tokio::test]
async fn no_token_is_believed_past_its_expiry() {
    let answer = Arc::new(Mutex::new(Answer::Yes));
    let (reviewer, _) = reviewer(&answer);
    let token = jwt(in_an_hour());
    let slot = reviewer.slot(Sha256::digest(token.as_bytes()).into());
    let mut believed = (*reviewer.review(&token).await.unwrap()).clone();
    believed.expires_at = Some(Timestamp::now());
    slot.remember(Ok(believed), Timestamp::now()).unwrap();
    *answer.lock().unwrap() = Answer::Down;
    assert_eq!(
        reviewer.review(&token).await.unwrap_err().code(),
        "token_unchecked"
    );
    *answer.lock().unwrap() = Answer::Yes;
    let late = jwt(Timestamp::now().as_second() - 1);
    assert_eq!(
        reviewer.review(&late).await.unwrap_err().code(),
        "token_refused"
    );
}

#[tokio::test]
async fn a_refusal_is_remembered_shortly_and_a_later_review_takes_belief_away() {
    let answer = Arc::new(Mutex::new(Answer::No));
    let (reviewer, asked) = reviewer(&answer);
    let token = jwt(in_an_hour());
    for _ in 0..3 {
        assert_eq!(
            reviewer.review(&token).await.unwrap_err().code(),
            "token_refused"
        );
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    forget_freshness(&reviewer, &token);
    *answer.lock().unwrap() = Answer::Yes;
    reviewer.review(&token).await.unwrap();
    forget_freshness(&reviewer, &token);
    *answer.lock().unwrap() = Answer::No;
    assert_eq!(
        reviewer.review(&token).await.unwrap_err().code(),
        "token_refused"
    );
    *answer.lock().unwrap() = Answer::Down;
    forget_freshness(&reviewer, &token);
    assert_eq!(
        reviewer.review(&token).await.unwrap_err().code(),
        "token_unchecked",
        "a refused token is not good because nobody can be asked"
    );
}

#[tokio::test]
async fn an_absurd_token_costs_no_review() {
    let (reviewer, asked) = reviewer(&Arc::new(Mutex::new(Answer::Yes)));
    for token in [String::new(), "x".repeat(LONGEST_TOKEN + 1)] {
        assert_eq!(
            reviewer.review(&token).await.unwrap_err().code(),
            "token_refused"
        );
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

/// The clock jumped ahead, and back.
#[test]
fn what_was_learned_in_the_future_is_asked_again() {
    let now = Timestamp::now();
    let table = [
        (now - SignedDuration::from_secs(9), true, true),
        (now - SignedDuration::from_secs(11), true, false),
        (now - SignedDuration::from_mins(11), false, false),
        (now + SignedDuration::from_secs(1), false, false),
        (now + SignedDuration::from_hours(24), false, false),
    ];
    for (at, good, refused) in table {
        let slot = Slot::default();
        let reviewed = Reviewed {
            user: "u".into(),
            groups: Vec::new(),
            node: None,
            expires_at: None,
        };
        drop(slot.remember(Ok(reviewed), at));
        assert_eq!(slot.recall(now).is_some(), good, "{at}");
        drop(slot.remember(Err("it has expired".into()), at));
        assert_eq!(slot.recall(now).is_some(), refused, "{at}");
    }
}

#[test]
fn what_an_answer_must_hold() {
    let status = |audiences: &[&str], nodes: &[&str]| TokenReviewStatus {
        authenticated: Some(true),
        audiences: Some(audiences.iter().map(ToString::to_string).collect()),
        user: Some(UserInfo {
            extra: Some(BTreeMap::from([(
                NODE_NAME_EXTRA.to_owned(),
                nodes.iter().map(ToString::to_string).collect(),
            )])),
            ..UserInfo::default()
        }),
        ..TokenReviewStatus::default()
    };
    let now = Timestamp::now();
    let want = ["warden".to_owned()];
    let node = |status| judge(status, &want, None, now).map(|reviewed| reviewed.node);
    assert_eq!(node(status(&["warden"], &["a"])), Ok(Some("a".to_owned())));
    assert_eq!(node(status(&["warden"], &["a", "b"])), Ok(None));
    assert!(node(status(&["other"], &["a"])).is_err());
    assert!(node(status(&[], &["a"])).is_err());
    let nobody = TokenReviewStatus {
        authenticated: None,
        ..status(&["warden"], &["a"])
    };
    assert!(node(nobody).is_err());
}

#[test]
fn the_memory_is_bounded_and_keeps_what_is_in_use() {
    let mut slots = Slots::new(1_000);
    let hash = |n: usize| {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&n.to_be_bytes());
        hash
    };
    let kept = slots.get(hash(0));
    for n in 1..5_000 {
        slots.get(hash(n));
        if n % 500 == 0 {
            assert!(Arc::ptr_eq(&kept, &slots.get(hash(0))), "{n}");
        }
    }
    assert!(slots.young.len() + slots.old.len() <= 2_000);
}

#[test]
fn no_token_makes_the_expiry_panic() {
    for token in [
        "",
        ".",
        "..",
        "a.b.c",
        "a.e30.c",
        "a.eyJleHAiOjF9",
        "a.eyJleHAiOiJ4In0.b",
    ] {
        let expiry = expiry_of(token);
        assert_eq!(expiry.is_some(), token == "a.eyJleHAiOjF9", "{token}");
    }
}

/// What is asked at the scripted API server at one moment.
#[derive(Debug, Default)]
struct InFlight {
    now: usize,
    most: usize,
    of_token: BTreeMap<String, usize>,
    /// The most of one token at one moment.
    most_of_one: usize,
    asked: usize,
}

impl InFlight {
    fn begin(&mut self, token: &str) {
        self.asked += 1;
        self.now += 1;
        self.most = self.most.max(self.now);
        let of_token = self.of_token.entry(token.to_owned()).or_default();
        *of_token += 1;
        self.most_of_one = self.most_of_one.max(*of_token);
    }

    fn end(&mut self, token: &str) {
        self.now -= 1;
        *self.of_token.get_mut(token).unwrap() -= 1;
    }
}

/// A reviewer whose API server answers nothing before the gate lets it.
fn gated(gate: &Arc<Semaphore>) -> (Arc<TokenReviewer>, Arc<Mutex<InFlight>>) {
    let in_flight = Arc::new(Mutex::new(InFlight::default()));
    let (gate, seen) = (Arc::clone(gate), Arc::clone(&in_flight));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (gate, seen) = (Arc::clone(&gate), Arc::clone(&seen));
        async move {
            let sent = request.into_body().collect().await?.to_bytes();
            let mut review: Value = serde_json::from_slice(&sent)?;
            let token = review["spec"]["token"].as_str().unwrap().to_owned();
            seen.lock().unwrap().begin(&token);
            gate.acquire().await?.forget();
            seen.lock().unwrap().end(&token);
            review["status"] = json!({ "authenticated": true, "audiences": ["warden"] });
            let answer = Body::from(review.to_string().into_bytes());
            Ok::<_, tower::BoxError>(Response::new(answer))
        }
    });
    let client = Client::new(service, "default");
    let metrics = Arc::new(ControllerMetrics::new());
    let reviewer = TokenReviewer::new(client, vec!["warden".to_owned()], metrics);
    (Arc::new(reviewer), in_flight)
}

/// With the clock standing still unless all wait: a second of it is over when nothing more happens.
#[tokio::test(start_paused = true)]
async fn fifty_reviews_run_at_a_time_and_one_of_a_token() {
    const TOKENS: usize = 200;
    let gate = Arc::new(Semaphore::new(0));
    let (reviewer, in_flight) = gated(&gate);
    let expiry = in_an_hour();
    let calls: Vec<_> = (0..TOKENS * 2)
        .map(|n| {
            // Two callers show each token.
            let token = jwt(expiry + i64::try_from(n / 2).unwrap());
            let reviewer = Arc::clone(&reviewer);
            tokio::spawn(async move { reviewer.review(&token).await })
        })
        .collect();
    // In this time their pace lets all of them come; after that each needs one step of it.
    tokio::time::sleep(PACE * u32::try_from(TOKENS).unwrap() * 2).await;
    for round in 0..TOKENS {
        tokio::time::sleep(PACE * 2).await;
        let left = TOKENS - round;
        assert_eq!(
            in_flight.lock().unwrap().now,
            left.min(AT_A_TIME),
            "{round}"
        );
        gate.add_permits(1);
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let seen = in_flight.lock().unwrap();
    assert_eq!(
        (seen.most, seen.most_of_one, seen.asked),
        (AT_A_TIME, 1, TOKENS)
    );
}
