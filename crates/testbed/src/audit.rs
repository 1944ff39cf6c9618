//! The API server's audit log: who asked for what. This is how a test proves that a program writes
//! nothing but what it promised.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEvent {
    /// When the request came in.
    pub at: Timestamp,
    /// Who asked, such as `system:serviceaccount:<namespace>:<name>`.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// The plural resource, such as `nodes`; empty for a path that is no resource (`/readyz`).
    pub resource: String,
    /// Such as `status` or `eviction`; empty for the object itself.
    pub subresource: String,
    /// Empty for objects of the whole cluster.
    pub namespace: String,
    /// Empty where the request names no object; a created object may be named in `object` only.
    pub name: String,
    /// `ResponseComplete` (once for each request), `ResponseStarted` (watches) or `Panic`.
    pub stage: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// The body of a write, as sent. None for leases, secrets, tokens and all reads.
    pub object: Option<Value>,
}

impl AuditEvent {
    /// Whether the request could change something.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    stage: String,
    verb: String,
    user: User,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    request_object: Option<Value>,
    request_received_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

impl From<Line> for AuditEvent {
    fn from(line: Line) -> Self {
        Self {
            at: line.request_received_timestamp,
            user: line.user.username,
            verb: line.verb,
            resource: line.object_ref.resource,
            subresource: line.object_ref.subresource,
            namespace: line.object_ref.namespace,
            name: line.object_ref.name,
            stage: line.stage,
            code: line.response_status.code,
            object: line.request_object,
        }
    }
}

/// Reads the log. A last line without its end is still being written and is left out.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<AuditEvent>> {
    if !path.exists() {
        bail!(
            "there is no audit log at {}: start the testbed with Options::audit_log",
            path.display()
        );
    }
    let text = fs::read_to_string(path)
        .with_context(|| format!("reading the audit log {}", path.display()))?;
    parse(&text).with_context(|| format!("parsing the audit log {}", path.display()))
}

fn parse(text: &str) -> anyhow::Result<Vec<AuditEvent>> {
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| {
            serde_json::from_str::<Line>(line)
                .map(AuditEvent::from)
                .with_context(|| format!("this line is no audit event: {line}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = concat!(
        r#"{"kind":"Event","level":"Request","auditID":"1","stage":"ResponseComplete","#,
        r#""requestURI":"/api/v1/nodes/gpu-1/status","verb":"patch","#,
        r#""user":{"username":"admin","groups":["system:masters"]},"#,
        r#""objectRef":{"resource":"nodes","name":"gpu-1","apiVersion":"v1","#,
        r#""subresource":"status"},"responseStatus":{"metadata":{},"code":200},"#,
        r#""requestObject":{"a":1},"#,
        r#""requestReceivedTimestamp":"2026-01-02T03:04:05.000006Z"}"#,
        "\n",
    );

    #[test]
    fn unfinished_last_line_is_left_out() {
        let events = parse(&format!("{PATCH}{{\"kind\":")).unwrap();
        assert_eq!(events.len(), 1);
        let event = &events[0];
        assert!(event.is_write());
        assert_eq!(event.user, "admin");
        assert_eq!(
            (event.resource.as_str(), event.subresource.as_str()),
            ("nodes", "status")
        );
        assert_eq!((event.name.as_str(), event.code), ("gpu-1", 200));
        assert_eq!(event.object, Some(serde_json::json!({"a": 1})));
    }

    #[test]
    fn line_that_is_no_event_is_an_error() {
        let text = format!("{:#}", parse("{}\n").unwrap_err());
        assert!(text.contains("no audit event"), "{text}");
    }
}
