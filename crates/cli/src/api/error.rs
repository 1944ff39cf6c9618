//! What can go wrong on the way to the controller and back.

use std::io;
use std::path::PathBuf;

use http::StatusCode;

/// Why a call did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The URL can't be used.
    #[error("--server {server:?} can't be used: {why}")]
    Server {
        /// What was given.
        server: String,
        /// What is wrong, and what would be right.
        why: &'static str,
    },
    /// The token can't be read.
    #[error("token file {}: {why}; make one with `kubectl create token SERVICEACCOUNT > FILE`", path.display())]
    TokenFile {
        /// Its path.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The certificate authorities can't be read.
    #[error("CA file {}: {why}; want PEM certificates of the authority that signed the server's", path.display())]
    CaFile {
        /// Its path.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The runtime.
    #[error("can't start the network's runtime")]
    Runtime(#[source] io::Error),
    /// Nobody answers there.
    #[error(
        "can't connect to the controller at {server}: {why}. If it runs in a cluster: `kubectl -n \
         warden port-forward deployment/warden-controller 9441`, then --server \
         http://127.0.0.1:9441"
    )]
    Unreachable {
        /// The address.
        server: String,
        /// Why.
        why: String,
    },
    /// The other side is not who it should be.
    #[error(
        "TLS with {server} failed: {why}. Check the URL's host name and --ca-file: it must hold \
         the authority that signed the server's certificate"
    )]
    Tls {
        /// The address.
        server: String,
        /// Why.
        why: String,
    },
    /// The connection broke, or the answer is not HTTP.
    #[error("{call} on {server} got no answer: {why}. Is that the controller's API port?")]
    NoAnswer {
        /// Method and path.
        call: String,
        /// The address.
        server: String,
        /// Why.
        why: String,
    },
    /// The controller says no.
    #[error("{call} on {server}: {why}{next} [{code}]")]
    Refused {
        /// Method and path.
        call: String,
        /// The address.
        server: String,
        /// HTTP status.
        status: StatusCode,
        /// The controller's words.
        why: String,
        /// The controller's name of it.
        code: String,
        /// What to do, where the controller does not say so.
        next: &'static str,
    },
    /// The answer is not what the API promises.
    #[error(
        "{call} on {server} answered something else than its API promises: {why}. Is it another \
         program's port, or a controller of another version?"
    )]
    Odd {
        /// Method and path.
        call: String,
        /// The address.
        server: String,
        /// Why.
        why: String,
    },
    /// Standard output.
    #[error("can't write the result to standard output")]
    Output(#[from] io::Error),
}

impl ApiError {
    /// Stable name.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Server { .. } => "bad_server",
            Self::TokenFile { .. } => "token_file",
            Self::CaFile { .. } => "ca_file",
            Self::Runtime(_) => "runtime",
            Self::Unreachable { .. } => "unreachable",
            Self::Tls { .. } => "tls",
            Self::NoAnswer { .. } => "no_answer",
            Self::Refused { .. } => "refused",
            Self::Odd { .. } => "odd_answer",
            Self::Output(_) => "output_unwritable",
        }
    }
}
