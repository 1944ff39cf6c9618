//! Following a collection of objects other than nodes: listed, then watched, resumed where it stood.

use std::convert::Infallible;
use std::mem::discriminant;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::lines::{Lines, NotBegun};
use super::{Call, CallError, Kube, jittered, percent_encoded};

/// Objects of a page where the list can't stream.
const PAGE: usize = 500;
/// Longest time for one page.
const PAGE_TIMEOUT: Duration = Duration::from_mins(1);
/// The server ends the watch after this; bookmarks keep the version fresh before.
const WATCH_SECONDS: u32 = 600;
/// First pause after a failure that brought nothing; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What is followed.
#[derive(Debug, Clone)]
pub(crate) struct Collection {
    /// For messages: `pods of node gpu-17`.
    pub(crate) what: String,
    /// Path: `/api/v1/pods`.
    pub(crate) path: &'static str,
    /// Selectors, percent-encoded, each with `&` before it; empty: all.
    pub(crate) selectors: String,
}

/// What happens in a collection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change<T> {
    /// All objects follow, and whatever is not among them is gone; till [`Change::Listed`].
    Listing,
    /// It is there, as it is now.
    Put(T),
    /// It is gone, or selected no more; as it was last.
    Gone(T),
    /// All objects were said.
    Listed,
    /// Nothing came. It is tried again, from a list on; what was known may be old.
    Failed(Trouble),
}

/// Why nothing comes of a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The API server knows no such collection, so that no object of it can be there.
    Absent,
    /// We may not read it: the API server's answer.
    Refused(String),
    /// Anything else.
    Other(String),
}

#[derive(Deserialize)]
struct Line<T> {
    object: T,
}

#[derive(Deserialize)]
struct Head {
    #[serde(rename = "type")]
    kind: String,
    object: HeadObject,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct HeadObject {
    metadata: HeadMetadata,
    code: u16,
    message: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct HeadMetadata {
    resource_version: String,
    annotations: Option<InitialEnd>,
}

#[derive(Deserialize)]
struct InitialEnd {
    #[serde(rename = "k8s.io/initial-events-end")]
    end: Option<String>,
}

#[derive(Deserialize)]
struct Page<T> {
    metadata: PageMetadata,
    items: Vec<T>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

enum End {
    /// The server ended it as it always does, or the connection was lost.
    Closed(String),
    /// The server knows no such collection.
    Absent,
    /// The server does not let us read it: what it answered.
    Refused(String),
    /// The version is too old, or there is none: list again.
    Expired(String),
    /// The server knows no streaming list.
    NoStreaming,
}

/// Where a watch stands.
#[derive(Default)]
struct Position {
    /// Last version seen; empty before a list is complete.
    version: String,
    /// Whether anything came since the last start.
    progress: bool,
    /// Whether pages are read because the list can't stream.
    pages: bool,
}

/// Follows until the future is dropped. `T` is what is read of each object, the rest is skipped.
pub(crate) async fn follow<T: DeserializeOwned>(
    kube: &Kube,
    of: &Collection,
    mut take: impl FnMut(Change<T>),
) -> Infallible {
    let mut position = Position::default();
    let mut pause = FIRST_PAUSE;
    let mut told = None;
    loop {
        position.progress = false;
        let why = match run(kube, of, &mut position, &mut take).await {
            End::NoStreaming => {
                position.pages = true;
                continue;
            }
            End::Expired(why) => {
                position.version.clear();
                Trouble::Other(why)
            }
            End::Closed(why) => Trouble::Other(why),
            End::Absent => Trouble::Absent,
            End::Refused(why) => Trouble::Refused(why),
        };
        debug!(
            code = "watch_ended",
            what = of.what,
            ?why,
            "a watch goes on"
        );
        if position.progress {
            (pause, told) = (FIRST_PAUSE, None);
            continue;
        }
        // The words of one trouble may differ each time.
        if told != Some(discriminant(&why)) {
            warn!(
                code = "watch_failed",
                what = of.what,
                ?why,
                "a watch brings nothing; tried again"
            );
            told = Some(discriminant(&why));
        }
        // The end of the list tells that it is over.
        position.version.clear();
        take(Change::Failed(why));
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn run<T: DeserializeOwned>(
    kube: &Kube,
    of: &Collection,
    position: &mut Position,
    take: &mut impl FnMut(Change<T>),
) -> End {
    if position.version.is_empty() {
        take(Change::Listing);
        if position.pages
            && let Err(end) = list(kube, of, position, take).await
        {
            return end;
        }
    }
    let list = if position.version.is_empty() {
        "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned()
    } else {
        format!("&resourceVersion={}", position.version)
    };
    let path = format!(
        "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}{}{list}",
        of.path, of.selectors
    );
    let mut lines = match Lines::begin(kube, &path).await {
        Ok(lines) => lines,
        Err(NotBegun::Lost(why)) => return End::Closed(why),
        Err(NotBegun::Answered(StatusCode::GONE)) => return End::Expired("410".to_owned()),
        Err(NotBegun::Answered(StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY))
            if position.version.is_empty() =>
        {
            return End::NoStreaming;
        }
        Err(NotBegun::Answered(status)) => return refused(status, status.to_string()),
    };
    loop {
        let end = match lines.next().await {
            Ok(line) => take_line(line, of, position, take),
            Err(why) => Some(End::Closed(why)),
        };
        if let Some(end) = end {
            return end;
        }
    }
}

/// What an answer means that is no list.
fn refused(status: StatusCode, why: String) -> End {
    match status {
        StatusCode::NOT_FOUND => End::Absent,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => End::Refused(why),
        _ => End::Closed(why),
    }
}

/// Takes one line in. Answers if the watch is over.
fn take_line<T: DeserializeOwned>(
    line: &[u8],
    of: &Collection,
    position: &mut Position,
    take: &mut impl FnMut(Change<T>),
) -> Option<End> {
    let head: Head = match serde_json::from_slice(line) {
        Ok(head) => head,
        Err(error) => return passed_over(of, &error),
    };
    let (kind, head) = (head.kind.as_str(), head.object);
    let listing = position.version.is_empty();
    match kind {
        "ERROR" if head.code == 410 => return Some(End::Expired(head.message)),
        "ERROR" => return Some(End::Closed(format!("{} {}", head.code, head.message))),
        "BOOKMARK" => {
            let ends = head.metadata.annotations.is_some_and(|a| a.end.is_some());
            if listing && !ends {
                return None;
            }
            position.progress = true;
            position.version = head.metadata.resource_version;
            if listing {
                take(Change::Listed);
            }
            return None;
        }
        _ => {}
    }
    let object = match serde_json::from_slice::<Line<T>>(line) {
        Ok(line) => line.object,
        Err(error) => return passed_over(of, &error),
    };
    position.progress = true;
    if !listing {
        position.version = head.metadata.resource_version;
    }
    take(if kind == "DELETED" {
        Change::Gone(object)
    } else {
        Change::Put(object)
    });
    None
}

/// An object that we can't read must not stop all others; the next version of it may do.
fn passed_over(of: &Collection, error: &serde_json::Error) -> Option<End> {
    let what = &of.what;
    warn!(code = "object_undecodable", what, %error, "a line of a watch is passed over");
    None
}

async fn list<T: DeserializeOwned>(
    kube: &Kube,
    of: &Collection,
    position: &mut Position,
    take: &mut impl FnMut(Change<T>),
) -> Result<(), End> {
    let mut next = String::new();
    loop {
        let call = Call {
            act: format!("listing of {}", of.what),
            path: format!("{}?limit={PAGE}{}{next}", of.path, of.selectors),
            write: None,
            accept: "application/json",
        };
        let closed = |error: &dyn std::fmt::Display| End::Closed(error.to_string());
        let body = kube.call(&call, Instant::now() + PAGE_TIMEOUT).await;
        let body = body.map_err(|error| match &error {
            CallError::NotFound { .. } => End::Absent,
            CallError::Refused { refusal, .. } => {
                let status = StatusCode::from_u16(refusal.status);
                refused(status.unwrap_or_default(), error.to_string())
            }
            CallError::Changed { .. }
            | CallError::Budget { .. }
            | CallError::Unavailable { .. } => closed(&error),
        })?;
        let page: Page<T> = serde_json::from_slice(&body).map_err(|error| closed(&error))?;
        for object in page.items {
            take(Change::Put(object));
        }
        if page.metadata.next.is_empty() {
            position.progress = true;
            position.version = page.metadata.resource_version;
            take(Change::Listed);
            return Ok(());
        }
        let token = percent_encoded(&page.metadata.next);
        next = format!("&continue={token}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq, Eq)]
    struct Named {
        name: String,
    }

    #[derive(Debug, Deserialize, PartialEq, Eq)]
    struct Object {
        metadata: Named,
    }

    #[test]
    fn each_line_is_taken_for_what_it_says() {
        let of = Collection {
            what: "things".to_owned(),
            path: "/things",
            selectors: String::new(),
        };
        let mut said = Vec::new();
        let mut position = Position::default();
        let mut take = |change: Change<Object>| said.push(change);
        let object = |name: &str| Object {
            metadata: Named {
                name: name.to_owned(),
            },
        };
        for line in [
            r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"3"},"spec":{}}}"#,
            r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"4"}}}"#,
            r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"5","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
            r#"{"type":"MODIFIED","object":{"metadata":{"name":7,"resourceVersion":"6"}}}"#,
            r#"{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}"#,
            r#"{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"8"}}}"#,
            "no JSON",
        ] {
            assert!(
                take_line(line.as_bytes(), &of, &mut position, &mut take).is_none(),
                "{line}"
            );
        }
        assert_eq!(position.version, "8");
        let gone = r#"{"type":"ERROR","object":{"code":410,"message":"too old"}}"#;
        assert!(matches!(
            take_line(gone.as_bytes(), &of, &mut position, &mut take),
            Some(End::Expired(why)) if why == "too old"
        ));
        let other = r#"{"type":"ERROR","object":{"code":500,"message":"oops"}}"#;
        assert!(matches!(
            take_line(other.as_bytes(), &of, &mut position, &mut take),
            Some(End::Closed(why)) if why == "500 oops"
        ));
        let want = [
            Change::Put(object("a")),
            Change::Listed,
            Change::Put(object("a")),
            Change::Gone(object("a")),
        ];
        assert_eq!(said, want);
    }
}
