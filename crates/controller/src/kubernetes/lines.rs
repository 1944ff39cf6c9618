//! A watch's answer, line by line, with bounds.

use std::time::Duration;

use health_event::text::chain;
use http::header::{ACCEPT, ACCEPT_ENCODING};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use kube::client::Body;

use super::Kube;

/// Longest line: an object's limit in etcd is 1.5 MiB, managed fields and escapes included.
pub const MAX_LINE_BYTES: usize = 8 * 1024 * 1024;
/// With no line for this long (the server sends a bookmark each minute) the connection is dead.
const SILENCE: Duration = Duration::from_mins(3);

/// Why a watch did not begin.
#[derive(Debug)]
pub(crate) enum NotBegun {
    /// The server's answer was this.
    Answered(StatusCode),
    /// There was no answer.
    Lost(String),
}

/// The lines of one watch.
#[derive(Debug)]
pub(crate) struct Lines {
    body: Body,
    chunk: Bytes,
    line: Vec<u8>,
}

impl Lines {
    /// Begins a watch by its path with query.
    pub(crate) async fn begin(kube: &Kube, path: &str) -> Result<Self, NotBegun> {
        let request = Request::get(path)
            .header(ACCEPT, "application/json")
            // A newer server compresses each line for itself, which no decoder reads.
            .header(ACCEPT_ENCODING, "identity")
            .body(Body::empty())
            .map_err(|error| NotBegun::Lost(error.to_string()))?;
        #[expect(clippy::disallowed_methods, reason = "a watch changes nothing")]
        let sent = kube.client().send(request).await;
        let response = sent.map_err(|error| NotBegun::Lost(chain(&error)))?;
        // No webhook is asked about a watch: only a missing right forbids one.
        let status = response.status();
        kube.note_right(None, path, status == StatusCode::FORBIDDEN);
        match status {
            StatusCode::OK => Ok(Self {
                body: response.into_body(),
                chunk: Bytes::new(),
                line: Vec::new(),
            }),
            status => Err(NotBegun::Answered(status)),
        }
    }

    /// The next line, its end included.
    ///
    /// # Errors
    /// Why there is none any more. A line that was cut off is not answered.
    pub(crate) async fn next(&mut self) -> Result<&[u8], String> {
        self.line.clear();
        loop {
            let end = self.chunk.iter().position(|byte| *byte == b'\n');
            let part = self
                .chunk
                .split_to(end.map_or(self.chunk.len(), |at| at + 1));
            self.line.extend_from_slice(&part);
            if self.line.len() > MAX_LINE_BYTES {
                return Err("a line is longer than any object can be".to_owned());
            }
            if end.is_some() {
                return Ok(&self.line);
            }
            let frame = match tokio::time::timeout(SILENCE, self.body.frame()).await {
                Err(_) => return Err("nothing came for three minutes".to_owned()),
                Ok(None) => return Err("the server ended it".to_owned()),
                Ok(Some(Err(error))) => return Err(chain(&error)),
                Ok(Some(Ok(frame))) => frame,
            };
            if let Ok(data) = frame.into_data() {
                self.chunk = data;
            }
        }
    }
}
