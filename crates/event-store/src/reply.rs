//! The answer to a write.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::error::WriteError;

/// The answer to a write, ready once it is durable. Dropping it does not take the write back.
#[derive(Debug)]
#[must_use = "a write without its answer may have been refused"]
pub struct Reply<T>(oneshot::Receiver<Result<T, WriteError>>);

/// Where the writer puts the answer.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, WriteError>>;

impl<T> Reply<T> {
    pub(crate) fn new() -> (Answer<T>, Self) {
        let (answer, reply) = oneshot::channel();
        (answer, Self(reply))
    }

    /// Blocks the thread until the answer is there; not for async code.
    ///
    /// # Errors
    /// What the write failed with.
    pub fn wait(self) -> Result<T, WriteError> {
        self.0.blocking_recv().unwrap_or(Err(WriteError::Closed))
    }
}

impl<T> Future for Reply<T> {
    type Output = Result<T, WriteError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|answer| answer.unwrap_or(Err(WriteError::Closed)))
    }
}
