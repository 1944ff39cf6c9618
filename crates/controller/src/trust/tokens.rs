//! TokenReviews, asked seldom and remembered by the token's hash.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use telemetry::ControllerMetrics;
use telemetry::metrics::OutcomeLabel;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

/// After this a token is reviewed again: how long a revoked token goes on working.
const REVIEW_AGAIN: SignedDuration = SignedDuration::from_mins(10);
/// How long a refusal is remembered, so that a caller in a loop costs one review.
const REFUSAL_KEPT: SignedDuration = SignedDuration::from_secs(10);
/// Reviews at a time: measured, 50 at a time are 1,500 a second with a P99 of 0.4 s.
const AT_A_TIME: usize = 50;
/// Least time between two reviews: 500 a second, the share of the API server that a reconnecting
/// fleet may take.
const PACE: Duration = Duration::from_millis(2);
/// Longest wait for one review, the wait for its turn included.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest token that is looked at: a projected token is about 1 KiB, the headers' limit 16 KiB.
const LONGEST_TOKEN: usize = 16 * 1024;
/// Tokens in one generation of the memory; two generations are kept. 100,000 agents fit into one.
const GENERATION: usize = 131_072;
/// The key under which the API server says which node a token is bound to (Kubernetes 1.30).
const NODE_NAME_EXTRA: &str = "authentication.kubernetes.io/node-name";

type Hash = [u8; 32];

/// What the API server said about a token that it believes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reviewed {
    /// User name.
    pub user: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Node that the token is bound to.
    pub node: Option<String>,
    /// When it expires; none = it doesn't say.
    pub expires_at: Option<Timestamp>,
}

/// Why a token is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// The API server, or its expiry, says no.
    #[error("the token is not valid: {0}")]
    Refused(String),
    /// The API server could not be asked.
    #[error("the token can't be checked now: {0}")]
    Unavailable(String),
}

impl ReviewError {
    /// Static name for metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused(_) => "token_refused",
            Self::Unavailable(_) => "token_unchecked",
        }
    }
}

/// What is remembered of one token.
#[derive(Debug, Clone)]
enum Memory {
    Good {
        at: Timestamp,
        reviewed: Arc<Reviewed>,
    },
    Refused {
        at: Timestamp,
        why: String,
    },
}

/// One token: what is remembered, and the lock that one review holds.
#[derive(Debug, Default)]
struct Slot {
    memory: Mutex<Option<Memory>>,
    review: tokio::sync::Mutex<()>,
}

/// Two generations: when the young one is full it becomes the old one, and what the old one held
/// and nobody asked for since is forgotten.
#[derive(Debug)]
struct Slots {
    /// Tokens in one generation.
    generation: usize,
    young: HashMap<Hash, Arc<Slot>>,
    old: HashMap<Hash, Arc<Slot>>,
}

/// Asks the API server whose a token is.
#[derive(Debug)]
pub struct TokenReviewer {
    client: ClientHandle,
    audiences: Vec<String>,
    slots: Mutex<Slots>,
    permits: Semaphore,
    next_turn: Mutex<Instant>,
    metrics: Arc<ControllerMetrics>,
}

/// A client that can be shown in debug output without what it holds.
struct ClientHandle(Client);

impl std::fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl TokenReviewer {
    /// Over a client whose credentials may create TokenReviews. A token must be for one of the
    /// audiences; none = the API server's own.
    pub fn new(client: Client, audiences: Vec<String>, metrics: Arc<ControllerMetrics>) -> Self {
        Self {
            client: ClientHandle(client),
            audiences,
            slots: Mutex::new(Slots::new(GENERATION)),
            permits: Semaphore::new(AT_A_TIME),
            next_turn: Mutex::new(Instant::now()),
            metrics,
        }
    }

    /// Whose token this is.
    ///
    /// # Errors
    /// [`ReviewError`].
    pub async fn review(&self, token: &str) -> Result<Arc<Reviewed>, ReviewError> {
        if token.is_empty() || token.len() > LONGEST_TOKEN {
            return Err(ReviewError::Refused(format!(
                "it has {} bytes",
                token.len()
            )));
        }
        let slot = self.slot(Sha256::digest(token.as_bytes()).into());
        if let Some(answer) = slot.recall(Timestamp::now()) {
            return answer;
        }
        let turn = timeout(PATIENCE, slot.review.lock()).await;
        let Ok(_turn) = turn else {
            return slot.last_resort("another review of it takes too long", Timestamp::now());
        };
        // Whoever held the lock before may have brought the answer.
        if let Some(answer) = slot.recall(Timestamp::now()) {
            return answer;
        }
        let asked = timeout(PATIENCE, self.ask(token)).await;
        let asked = asked.unwrap_or_else(|_| Err("no answer in 10 s".to_owned()));
        let now = Timestamp::now();
        match asked {
            Err(why) => {
                self.count("unavailable");
                slot.last_resort(&why, now)
            }
            Ok(status) => {
                let judged = judge(status, &self.audiences, expiry_of(token), now);
                self.count(if judged.is_ok() {
                    "authenticated"
                } else {
                    "refused"
                });
                slot.remember(judged, now)
            }
        }
    }

    async fn ask(&self, token: &str) -> Result<TokenReviewStatus, String> {
        let permit = self.permits.acquire().await;
        let _permit = permit.map_err(|_| "the reviewer is closed".to_owned())?;
        sleep_until(self.take_turn()).await;
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: (!self.audiences.is_empty()).then(|| self.audiences.clone()),
                token: Some(token.to_owned()),
            },
            ..TokenReview::default()
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "a question leaves nothing behind"
        )]
        let answer = Api::<TokenReview>::all(self.client.0.clone())
            .create(&PostParams::default(), &review)
            .await;
        // The error may quote the request's address, never its body.
        answer
            .map(|review| review.status.unwrap_or_default())
            .map_err(|error| format!("TokenReview: {error}"))
    }

    fn take_turn(&self) -> Instant {
        let mut next = self
            .next_turn
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let turn = (*next).max(Instant::now());
        *next = turn + PACE;
        turn
    }

    fn slot(&self, hash: Hash) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.get(hash)
    }

    fn count(&self, outcome: &str) {
        let label = OutcomeLabel {
            outcome: outcome.to_owned(),
        };
        self.metrics.token_reviews.get_or_create(&label).inc();
    }
}

impl Slots {
    fn new(generation: usize) -> Self {
        Self {
            generation,
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }

    fn get(&mut self, hash: Hash) -> Arc<Slot> {
        if let Some(slot) = self.young.get(&hash) {
            return Arc::clone(slot);
        }
        if self.young.len() >= self.generation {
            self.old = std::mem::take(&mut self.young);
        }
        let slot = self.old.remove(&hash).unwrap_or_default();
        self.young.insert(hash, Arc::clone(&slot));
        slot
    }
}

/// Whether something was learned less than `span` ago. What lies ahead was learned while the clock was
/// wrong.
fn is_fresh(at: Timestamp, now: Timestamp, span: SignedDuration) -> bool {
    at <= now && now.duration_since(at) < span
}

impl Slot {
    /// What is remembered, if it is fresh enough to answer with.
    fn recall(&self, now: Timestamp) -> Option<Result<Arc<Reviewed>, ReviewError>> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        match memory.as_ref()? {
            Memory::Good { at, reviewed } => {
                let fresh = is_fresh(*at, now, REVIEW_AGAIN);
                (fresh && !reviewed.is_expired(now)).then(|| Ok(Arc::clone(reviewed)))
            }
            Memory::Refused { at, why } => {
                is_fresh(*at, now, REFUSAL_KEPT).then(|| Err(ReviewError::Refused(why.clone())))
            }
        }
    }

    /// The answer while the API server can't be asked: a reviewed token is good until its expiry.
    fn last_resort(&self, why: &str, now: Timestamp) -> Result<Arc<Reviewed>, ReviewError> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        match memory.as_ref() {
            Some(Memory::Good { reviewed, .. })
                if reviewed.expires_at.is_some() && !reviewed.is_expired(now) =>
            {
                Ok(Arc::clone(reviewed))
            }
            Some(Memory::Good { .. } | Memory::Refused { .. }) | None => {
                Err(ReviewError::Unavailable(why.to_owned()))
            }
        }
    }

    fn remember(
        &self,
        judged: Result<Reviewed, String>,
        now: Timestamp,
    ) -> Result<Arc<Reviewed>, ReviewError> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        match judged {
            Ok(reviewed) => {
                let reviewed = Arc::new(reviewed);
                *memory = Some(Memory::Good {
                    at: now,
                    reviewed: Arc::clone(&reviewed),
                });
                Ok(reviewed)
            }
            Err(why) => {
                *memory = Some(Memory::Refused {
                    at: now,
                    why: why.clone(),
                });
                Err(ReviewError::Refused(why))
            }
        }
    }
}

impl Reviewed {
    fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// What a review's answer means.
fn judge(
    status: TokenReviewStatus,
    audiences: &[String],
    expires_at: Option<Timestamp>,
    now: Timestamp,
) -> Result<Reviewed, String> {
    if status.authenticated != Some(true) {
        let why = status
            .error
            .unwrap_or_else(|| "the API server does not know it".to_owned());
        return Err(why.chars().filter(|c| !c.is_control()).take(200).collect());
    }
    // An authenticator that knows no audiences answers none: then nothing is proven.
    let answered = status.audiences.unwrap_or_default();
    if !audiences.is_empty() && !audiences.iter().any(|want| answered.contains(want)) {
        return Err(format!("it is not for audience {}", audiences.join(" or ")));
    }
    if expires_at.is_some_and(|at| at <= now) {
        return Err("it has expired".to_owned());
    }
    let user = status.user.unwrap_or_default();
    let mut extra = user.extra.unwrap_or_default();
    // A token is bound to one node or to none; a list of several would be no proof of any.
    let node = extra
        .remove(NODE_NAME_EXTRA)
        .filter(|nodes| nodes.len() == 1)
        .and_then(|mut nodes| nodes.pop());
    Ok(Reviewed {
        user: user.username.unwrap_or_default(),
        groups: user.groups.unwrap_or_default(),
        node,
        expires_at,
    })
}

/// The expiry that a JSON Web Token claims. Worth something only together with a review, which
/// checked the signature over it.
fn expiry_of(token: &str) -> Option<Timestamp> {
    #[derive(Deserialize)]
    struct Claims {
        exp: i64,
    }
    let payload = token.split('.').nth(1)?;
    let json = URL_SAFE_NO_PAD.decode(payload).ok()?;
    let claims: Claims = serde_json::from_slice(&json).ok()?;
    Timestamp::from_second(claims.exp).ok()
}

#[cfg(test)]
#[path = "tokens_tests.rs"]
mod tests;
