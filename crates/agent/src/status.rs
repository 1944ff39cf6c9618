//! How the agent stands towards the controller and its callers, for `/healthz` and for calls that are
//! passed on.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tonic::Code;
use tonic::transport::Channel;

use crate::link::said;

/// Shared; every lock is short.
#[derive(Debug, Default)]
pub struct Status(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    channel: Option<Channel>,
    worked: bool,
    why: Option<String>,
    reports: u64,
    socket: Option<String>,
}

/// What people are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Whether a connection stands.
    pub connected: bool,
    /// What is in the way, if anything.
    pub why: Option<String>,
    /// Reports that the controller took.
    pub reports: u64,
    /// Why nobody can connect to the socket that should be served, if so.
    pub socket: Option<String>,
}

impl Status {
    /// A connection stands.
    pub fn connected(&self, channel: Option<Channel>) {
        let mut inner = self.lock();
        inner.channel = channel;
        inner.worked = false;
        inner.why = None;
    }

    /// None does, and why.
    pub fn disconnected(&self, why: &str) {
        let mut inner = self.lock();
        inner.channel = None;
        inner.why = Some(why.to_owned());
    }

    /// The controller took events.
    pub fn delivered(&self) {
        let mut inner = self.lock();
        inner.worked = true;
        inner.why = None;
    }

    /// The controller took a report.
    pub fn reported(&self) {
        let mut inner = self.lock();
        inner.worked = true;
        inner.reports += 1;
    }

    /// It did not, and why.
    pub fn refused(&self, error: &tonic::Status) {
        let token = matches!(error.code(), Code::Unauthenticated | Code::PermissionDenied);
        let hint = if token {
            "; check the agent's service account and the controller's ingest.audiences"
        } else {
            ""
        };
        let why = format!("{:?}: {}{hint}", error.code(), said(error));
        self.lock().why = Some(why);
    }

    /// Why nobody can connect to the socket, if so. Answers it if that is news.
    pub fn socket(&self, why: Option<String>) -> Option<String> {
        let mut inner = self.lock();
        let news = (inner.socket != why).then(|| why.clone()).flatten();
        inner.socket = why;
        news
    }

    /// Whether this connection carried anything.
    pub fn worked(&self) -> bool {
        self.lock().worked
    }

    /// The connection, if one stands.
    pub fn channel(&self) -> Option<Channel> {
        self.lock().channel.clone()
    }

    /// For people.
    pub fn shown(&self) -> Shown {
        let inner = self.lock();
        Shown {
            connected: inner.channel.is_some(),
            why: inner.why.clone(),
            reports: inner.reports,
            socket: inner.socket.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
