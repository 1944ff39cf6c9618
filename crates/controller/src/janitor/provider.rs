//! Asking the provider that reboots machines.
//!
//! # Guarantees
//! - [`Provider::connect`] sends nothing that a provider could act on: certificates and token are read,
//!   and the connection with its TLS stands, before anything is decided to be sent. So all that can
//!   fail without an effect fails there, and is tried again.
//! - After that only four codes prove that nothing was begun; all others, and no answer at all, do
//!   not (faults-incidents 3, rule 4). The published provider answers every failure with INTERNAL.
//! - The token is in no message and no log line; the answers of the provider are cut.

use std::path::PathBuf;
use std::time::Duration;

use decide::janitor::Answer;
use health_event::text::chain;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use wire::provider::csp_provider_service_client::CspProviderServiceClient;
use wire::provider::{IsNodeReadyRequest, SendRebootSignalRequest};

use crate::config::ProviderConfig;

/// Longest wait for a connection with its TLS: two lost SYNs of a healthy network fit in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a question, which changes nothing.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer: an id of a request, or a bit.
const LARGEST_ANSWER: usize = 64 * 1024;
/// Bytes of a certificate or token file.
const LARGEST_FILE: u64 = 1024 * 1024;
/// Characters of the provider's words that are kept.
const LONGEST_WORDS: usize = 500;
/// Characters of a request's id that are kept; a condition's message has room for 32 KiB.
const LONGEST_REQUEST: usize = 4_096;

/// Why there is no connection. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotReached {
    /// A file that it needs can't be used.
    #[error("{what} {} can't be used: {why}. Check janitor.{key}", path.display())]
    File {
        /// What it holds.
        what: &'static str,
        /// Where it is configured.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// There is no connection, or its TLS does not stand.
    #[error(
        "the provider {host} can't be reached: {why}. Nothing was sent; it is tried again. Check \
         janitor.cspProviderHost and cspProviderCAPath, and whether the provider runs"
    )]
    Connection {
        /// `HOST:PORT`.
        host: String,
        /// Why.
        why: String,
    },
}

impl NotReached {
    /// Static name of the error.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::File { .. } => "provider_file",
            Self::Connection { .. } => "provider_unreachable",
        }
    }
}

/// A connection over which one call goes.
#[derive(Clone)]
pub(super) struct Connection {
    client: CspProviderServiceClient<Channel>,
    token: Option<MetadataValue<Ascii>>,
}

/// Who reboots machines.
#[derive(Debug)]
pub(super) struct Provider(pub(super) ProviderConfig);

impl Provider {
    /// Everything that a call needs, so that what fails from then on may have been done.
    ///
    /// # Errors
    /// [`NotReached`]: nothing was sent.
    pub(super) async fn connect(&self, force: bool) -> Result<Connection, NotReached> {
        let config = &self.0;
        let host = match &config.force_host {
            Some(host) if force => host,
            Some(_) | None => &config.host,
        };
        let failed = |error: &(dyn std::error::Error + 'static)| NotReached::Connection {
            host: host.clone(),
            why: cut(&chain(error), LONGEST_WORDS),
        };
        let token = self.token().await?;
        let scheme = if config.insecure { "http" } else { "https" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"));
        let mut endpoint = endpoint
            .map_err(|error| failed(&error))?
            .connect_timeout(CONNECT_TIMEOUT);
        if !config.insecure {
            let path = &config.ca_path;
            let pem = read(path, "the certificate authority", "cspProviderCAPath").await?;
            let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
            endpoint = endpoint.tls_config(tls).map_err(|error| failed(&error))?;
        }
        let connected = tokio::time::timeout(CONNECT_TIMEOUT * 2, endpoint.connect()).await;
        let channel = match connected {
            Ok(channel) => channel.map_err(|error| failed(&error))?,
            Err(late) => return Err(failed(&late)),
        };
        let client =
            CspProviderServiceClient::new(channel).max_decoding_message_size(LARGEST_ANSWER);
        Ok(Connection { client, token })
    }

    /// Read for each call, since the kubelet renews it.
    async fn token(&self) -> Result<Option<MetadataValue<Ascii>>, NotReached> {
        let Some(path) = &self.0.token_path else {
            return Ok(None);
        };
        let (what, key) = ("the token", "cspProviderTokenPath");
        let text = read(path, what, key).await?;
        let bad = |why: &str| NotReached::File {
            what,
            key,
            path: path.to_owned(),
            why: why.to_owned(),
        };
        let text = text.trim();
        if text.is_empty() {
            return Err(bad("it is empty"));
        }
        let value: Result<MetadataValue<Ascii>, _> = format!("Bearer {text}").parse();
        // The library's words would carry nothing, but so it stays.
        let mut value = value.map_err(|_| bad("it holds characters that no header can"))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// Has the machine of a node reboot: once, whatever comes of it.
    pub(super) async fn signal(&self, connection: Connection, node: &str) -> Answer {
        let Connection { mut client, token } = connection;
        let message = SendRebootSignalRequest {
            node_name: node.to_owned(),
        };
        let call = client.send_reboot_signal(with_token(message, token));
        match tokio::time::timeout(self.0.call_timeout, call).await {
            Ok(Ok(answer)) => Answer::Sent {
                request: cut(&answer.into_inner().request_id, LONGEST_REQUEST),
            },
            Ok(Err(status)) if is_refusal(status.code()) => Answer::Refused(said(&status)),
            Ok(Err(status)) => Answer::Lost(said(&status)),
            Err(_) => Answer::Lost(format!("no answer within {:?}", self.0.call_timeout)),
        }
    }

    /// Whether a reboot is done, as far as the provider knows.
    pub(super) async fn ask(&self, force: bool, node: &str, request: &str) -> Answer {
        let Connection { mut client, token } = match self.connect(force).await {
            Ok(connection) => connection,
            Err(error) => return Answer::NotAsked(error.to_string()),
        };
        let message = IsNodeReadyRequest {
            node_name: node.to_owned(),
            request_id: request.to_owned(),
        };
        let call = client.is_node_ready(with_token(message, token));
        match tokio::time::timeout(ASK_TIMEOUT, call).await {
            Ok(Ok(answer)) if answer.get_ref().is_ready => Answer::Done,
            Ok(Ok(_)) => Answer::NotDone,
            Ok(Err(status)) => Answer::NotAsked(said(&status)),
            Err(_) => Answer::NotAsked(format!("no answer within {ASK_TIMEOUT:?}")),
        }
    }
}

/// Whether a code proves that nothing was begun.
fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument | Code::Unauthenticated | Code::PermissionDenied | Code::NotFound
    )
}

fn with_token<T>(message: T, token: Option<MetadataValue<Ascii>>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert(wire::AUTHORIZATION, token);
    }
    request
}

async fn read(
    path: &std::path::Path,
    what: &'static str,
    key: &'static str,
) -> Result<String, NotReached> {
    use tokio::io::AsyncReadExt as _;
    let text = async {
        let mut text = String::new();
        let file = tokio::fs::File::open(path).await?;
        file.take(LARGEST_FILE).read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    text.await.map_err(|error| NotReached::File {
        what,
        key,
        path: path.to_owned(),
        why: error.to_string(),
    })
}

fn said(status: &Status) -> String {
    let words = cut(status.message(), LONGEST_WORDS);
    format!("{:?}: {words}", status.code())
}

/// The provider's words, without what a terminal would obey, and not longer than people read.
fn cut(text: &str, longest: usize) -> String {
    let shown = text.chars().filter(|c| !c.is_control());
    shown.take(longest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference's table of transient codes, where `Unavailable` and `DeadlineExceeded` are sent
    /// again: here no code is, and only four end the object at once.
    #[test]
    fn r14_only_codes_that_prove_that_nothing_was_begun_are_refusals() {
        for code in (0..=16).map(Code::from_i32) {
            let want = [
                Code::InvalidArgument,
                Code::Unauthenticated,
                Code::PermissionDenied,
                Code::NotFound,
            ];
            assert_eq!(is_refusal(code), want.contains(&code), "{code:?}");
        }
    }

    #[test]
    fn words_are_cut_and_plain() {
        assert_eq!(cut("a\u{1b}[31mb\nc", 500), "a[31mbc");
        assert_eq!(cut(&"x".repeat(9_999), 5), "xxxxx");
        let status = Status::internal("no\u{7} such");
        assert_eq!(said(&status), "Internal: no such");
    }
}
