//! One call to the API server, within a deadline.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use health_event::NodeName;
use health_event::text::chain;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use jiff::Timestamp;
use k8s_api::names;
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::Write;
use super::rights::{Right, Rights, is_want_of_right};
use crate::crash;

/// Largest answer that is read: ten times what an object of ours needs.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// First pause before a repetition; it doubles, and a random part of up to as much is added.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Characters of the server's words that are kept.
const LONGEST_MESSAGE: usize = 500;
/// Tries of one call: with doubling pauses about 1.3 s, after which the caller's own back-off is
/// the better one.
const TRIES: u32 = 7;
/// The answer to a write is its metadata, not the whole object (a node's can be 50 KiB).
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// What went wrong with a call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The object is not there.
    #[error("{act}: it does not exist")]
    NotFound {
        /// What was tried, on which object.
        act: String,
    },
    /// Something that the call was conditional on no longer holds (409, 422).
    #[error("{act}: the object changed in between, or refuses the change: {message}")]
    Changed {
        /// What was tried, on which object.
        act: String,
        /// The server's words.
        message: String,
    },
    /// The server refuses for good.
    #[error("{act}: refused: {0}", .refusal.message)]
    Refused {
        /// What was tried, on which object.
        act: String,
        /// The server's answer.
        refusal: Refusal,
    },
    /// A disruption budget does not allow the eviction now (429).
    #[error("{act}: a disruption budget does not allow it now: {message}")]
    Budget {
        /// What was tried, on which object.
        act: String,
        /// The server's words.
        message: String,
        /// What the server asks to wait.
        after: Duration,
    },
    /// No answer that says whether it was done, or "not now" until the deadline.
    #[error("{act}: the API server did not do it in time: {message}. It is tried again")]
    Unavailable {
        /// What was tried, on which object.
        act: String,
        /// The last failure.
        message: String,
    },
}

/// A final refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// The server's words.
    pub message: String,
}

impl CallError {
    /// Static name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not_found",
            Self::Changed { .. } => "changed",
            Self::Refused { refusal, .. } if refusal.status == 403 => "forbidden",
            Self::Refused { .. } => "refused",
            Self::Budget { .. } => "disruption_budget",
            Self::Unavailable { .. } => "unavailable",
        }
    }
}

/// What is read of an object's metadata.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Version of the object.
    pub resource_version: String,
    /// UID.
    pub uid: String,
}

#[derive(Deserialize)]
struct MetadataOnly {
    #[serde(default)]
    metadata: Metadata,
}

/// The calls that Warden makes.
#[derive(Clone)]
pub struct Kube {
    client: Client,
    rights: Rights,
}

impl std::fmt::Debug for Kube {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kube").finish_non_exhaustive()
    }
}

/// A request that can be sent more than once.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// What is tried, on which object: "cordon of node gpu-17".
    pub act: String,
    /// Path with query.
    pub path: String,
    /// What is written; none reads.
    pub write: Option<(Write, &'a Value)>,
    /// What is asked for as answer.
    pub accept: &'static str,
}

/// What an attempt led to.
enum Attempt {
    Done(Vec<u8>),
    Failed(CallError),
    /// Worth another try, after at least this long.
    Again {
        message: String,
        after: Duration,
    },
}

impl Kube {
    /// Over a client made by [`super::client()`].
    pub fn new(client: Client) -> Self {
        let rights = Rights::default();
        Self { client, rights }
    }

    /// The same, telling what rights it lacks.
    pub(crate) fn with_rights(self, rights: Rights) -> Self {
        Self { rights, ..self }
    }

    /// The rights that the API server said are missing.
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// What an answer tells of the right that a call needs.
    pub(super) fn note_right(&self, method: Option<&Method>, path: &str, lacks: bool) {
        match Right::of(method, path) {
            Some(right) if lacks => self.rights.refused(right, Timestamp::now()),
            right => self.rights.granted(right),
        }
    }

    /// The client, for watches.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// A JSON Patch of a node; answers the version that it made.
    ///
    /// # Errors
    /// [`CallError::Changed`] if one of its tests failed.
    pub async fn patch_node(
        &self,
        node: &NodeName,
        act: &str,
        patch: &Value,
        deadline: Instant,
    ) -> Result<Metadata, CallError> {
        let query = format!("?fieldManager={}", names::FIELD_MANAGER.text);
        self.metadata_call(
            &Call {
                act: format!("{act} of node {node}"),
                path: format!("/api/v1/nodes/{node}{query}"),
                write: Some((Write::Node, patch)),
                accept: METADATA_ONLY,
            },
            deadline,
        )
        .await
    }

    /// A strategic-merge patch of a node's status; answers the version that it made.
    ///
    /// # Errors
    /// [`CallError::Changed`] if the UID in the patch is another one.
    pub async fn patch_node_status(
        &self,
        node: &NodeName,
        patch: &Value,
        deadline: Instant,
    ) -> Result<Metadata, CallError> {
        let query = format!("?fieldManager={}", names::FIELD_MANAGER.text);
        self.metadata_call(
            &Call {
                act: format!("write of the conditions of node {node}"),
                path: format!("/api/v1/nodes/{node}/status{query}"),
                write: Some((Write::Conditions, patch)),
                accept: METADATA_ONLY,
            },
            deadline,
        )
        .await
    }

    /// The UID of the node object of this name, read from the API server itself; none if it is not
    /// there.
    ///
    /// # Errors
    /// It can't be said.
    pub async fn node_uid(
        &self,
        node: &NodeName,
        deadline: Instant,
    ) -> Result<Option<String>, CallError> {
        let call = Call {
            act: format!("reading of node {node}"),
            path: format!("/api/v1/nodes/{node}"),
            write: None,
            accept: METADATA_ONLY,
        };
        match self.metadata_call(&call, deadline).await {
            Ok(metadata) => Ok(Some(metadata.uid)),
            Err(CallError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A cheap request that keeps a connection open, so that the first fault after a quiet hour
    /// needs no handshake.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn keep_warm(&self, deadline: Instant) -> Result<(), CallError> {
        let call = Call {
            act: "reading of the API server's version".to_owned(),
            path: "/version".to_owned(),
            write: None,
            accept: "application/json",
        };
        self.call(&call, deadline).await.map(|_| ())
    }

    /// A call whose answer's metadata is wanted.
    ///
    /// # Errors
    /// Those of [`Kube::call`].
    pub async fn metadata_call(
        &self,
        call: &Call<'_>,
        deadline: Instant,
    ) -> Result<Metadata, CallError> {
        let body = self.call(call, deadline).await?;
        let answer: MetadataOnly =
            serde_json::from_slice(&body).map_err(|error| CallError::Unavailable {
                act: call.act.clone(),
                message: format!("the answer is no object: {error}"),
            })?;
        Ok(answer.metadata)
    }

    /// Sends a call, again if the server did not take it, until the deadline.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(&self, call: &Call<'_>, deadline: Instant) -> Result<Vec<u8>, CallError> {
        let Some((write, body)) = call.write else {
            return self.repeat(call, Vec::new(), deadline).await;
        };
        crash::point(write.before());
        let answer = self
            .repeat(call, as_go_writes(&body.to_string()), deadline)
            .await?;
        crash::point(write.after());
        Ok(answer)
    }

    async fn repeat(
        &self,
        call: &Call<'_>,
        body: Vec<u8>,
        deadline: Instant,
    ) -> Result<Vec<u8>, CallError> {
        let mut pause = FIRST_PAUSE;
        let mut last = "the deadline was over before it began".to_owned();
        for _ in 0..TRIES {
            match timeout_at(deadline, self.attempt(call, body.clone())).await {
                Err(_) => break,
                Ok(Attempt::Done(answer)) => {
                    self.answered(call, None);
                    return Ok(answer);
                }
                Ok(Attempt::Failed(error)) => {
                    self.answered(call, Some(&error));
                    return Err(error);
                }
                Ok(Attempt::Again { message, after }) => {
                    last = message;
                    let until = Instant::now() + after.max(jittered(pause));
                    if until >= deadline {
                        break;
                    }
                    tokio::time::sleep_until(until).await;
                    pause *= 2;
                }
            }
        }
        Err(CallError::Unavailable {
            act: call.act.clone(),
            message: last,
        })
    }

    fn answered(&self, call: &Call<'_>, error: Option<&CallError>) {
        let method = call.write.map(|(write, _)| write.method());
        let lacks = match error {
            Some(CallError::Refused { refusal, .. }) => {
                is_want_of_right(refusal.status, &refusal.message)
            }
            Some(
                CallError::NotFound { .. }
                | CallError::Changed { .. }
                | CallError::Budget { .. }
                | CallError::Unavailable { .. },
            )
            | None => false,
        };
        self.note_right(method.as_ref(), &call.path, lacks);
    }

    async fn attempt(&self, call: &Call<'_>, body: Vec<u8>) -> Attempt {
        let mut request = Request::builder()
            .uri(&call.path)
            .header(ACCEPT, call.accept);
        if let Some((write, _)) = call.write {
            request = request
                .method(write.method())
                .header(CONTENT_TYPE, write.content_type());
        }
        let again = |message: String| Attempt::Again {
            message,
            after: Duration::ZERO,
        };
        let request = match request.body(Body::from(body)) {
            Ok(request) => request,
            Err(error) => return again(error.to_string()),
        };
        #[expect(clippy::disallowed_methods, reason = "this is the one way")]
        let sent = self.client.send(request).await;
        let response = match sent {
            Ok(response) => response,
            Err(error) => return again(chain(&error)),
        };
        let (status, headers) = (response.status(), response.headers().clone());
        match Limited::new(response.into_body(), MAX_ANSWER_BYTES)
            .collect()
            .await
        {
            Ok(body) => judge(call, status, &headers, body.to_bytes().into()),
            Err(error) => again(error.to_string()),
        }
    }
}

fn judge(call: &Call<'_>, status: StatusCode, headers: &HeaderMap, body: Vec<u8>) -> Attempt {
    if status.is_success() {
        return Attempt::Done(body);
    }
    let message = message_of(status, &body);
    let act = call.act.clone();
    match status {
        StatusCode::NOT_FOUND => Attempt::Failed(CallError::NotFound { act }),
        StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY => {
            Attempt::Failed(CallError::Changed { act, message })
        }
        StatusCode::TOO_MANY_REQUESTS if let Some(message) = budget_of(&body) => {
            let after = retry_after(headers);
            Attempt::Failed(CallError::Budget {
                act,
                message,
                after,
            })
        }
        StatusCode::TOO_MANY_REQUESTS => Attempt::Again {
            message,
            after: retry_after(headers),
        },
        status if status.is_server_error() => Attempt::Again {
            message,
            after: retry_after(headers),
        },
        status => Attempt::Failed(CallError::Refused {
            act,
            refusal: Refusal {
                status: status.as_u16(),
                message,
            },
        }),
    }
}

/// The server's words, cut.
fn message_of(status: StatusCode, body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    let text = serde_json::from_slice::<Status>(body).map_or_else(
        |_| String::from_utf8_lossy(body).into_owned(),
        |s| s.message,
    );
    format!("{} {}", status.as_u16(), cut(&text))
}

/// What a disruption budget says, if it is one that refuses.
fn budget_of(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Status {
        details: Details,
    }
    #[derive(Deserialize)]
    struct Details {
        causes: Vec<Cause>,
    }
    #[derive(Deserialize)]
    struct Cause {
        reason: String,
        #[serde(default)]
        message: String,
    }
    let status: Status = serde_json::from_slice(body).ok()?;
    let mut causes = status.details.causes.into_iter();
    let cause = causes.find(|cause| cause.reason == "DisruptionBudget")?;
    Some(cut(&cause.message))
}

/// A text of the server, without what a terminal would obey, and not longer than people read.
fn cut(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(LONGEST_MESSAGE)
        .collect()
}

fn retry_after(headers: &HeaderMap) -> Duration {
    headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .map_or(Duration::ZERO, Duration::from_secs)
}

/// The pause and up to as much again, so that callers who failed together don't return together.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 1_000;
    pause + pause * u32::try_from(random).unwrap_or_default() / 1_000
}

/// A text as part of a query.
pub(crate) fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

/// A body with the characters escaped that Go's encoder escapes: the API server compares a `test` of a JSON
/// Patch with its own bytes, and else finds a text with one of them to be another.
fn as_go_writes(body: &str) -> Vec<u8> {
    let mut escaped = String::with_capacity(body.len());
    for character in body.chars() {
        // They stand inside texts only.
        match character {
            '<' => escaped.push_str("\\u003c"),
            '>' => escaped.push_str("\\u003e"),
            '&' => escaped.push_str("\\u0026"),
            '\u{2028}' => escaped.push_str("\\u2028"),
            '\u{2029}' => escaped.push_str("\\u2029"),
            other => escaped.push(other),
        }
    }
    escaped.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_is_final_or_tried_again_after_what_the_server_asks_for() {
        let call = Call {
            act: "cordon of node gpu-17".to_owned(),
            path: "/api/v1/nodes/gpu-17".to_owned(),
            write: None,
            accept: METADATA_ONLY,
        };
        let said = |status: u16, retry_after: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(seconds) = retry_after {
                headers.insert(RETRY_AFTER, seconds.parse().unwrap());
            }
            let body = br#"{"kind":"Status","message":"the server's\nwords"}"#.to_vec();
            let status = StatusCode::from_u16(status).unwrap();
            match judge(&call, status, &headers, body) {
                Attempt::Done(_) => "done".to_owned(),
                Attempt::Failed(error) => format!("{}: {error}", error.code()),
                Attempt::Again { message, after } => format!("again after {after:?}: {message}"),
            }
        };
        let words = "the server'swords";
        let table = [
            (200, None, "done".to_owned()),
            (201, None, "done".to_owned()),
            (
                404,
                None,
                "not_found: cordon of node gpu-17: it does not exist".to_owned(),
            ),
            (429, Some("7"), format!("again after 7s: 429 {words}")),
            (429, None, format!("again after 0ns: 429 {words}")),
            (503, Some("soon"), format!("again after 0ns: 503 {words}")),
            (500, Some("2"), format!("again after 2s: 500 {words}")),
        ];
        for (status, retry_after, want) in table {
            assert_eq!(said(status, retry_after), want, "{status}");
        }
        for (status, code) in [
            (409, "changed"),
            (422, "changed"),
            (403, "forbidden"),
            (400, "refused"),
        ] {
            let told = said(status, None);
            assert!(
                told.starts_with(&format!("{code}: cordon of node gpu-17: ")),
                "{told}"
            );
            assert!(told.contains(words), "{told}");
        }
    }
}
