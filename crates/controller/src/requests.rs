//! What a person asks of the quarantine module, on its way from the API.

use std::time::Duration;

use health_event::NodeName;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Requests that wait at most; a person's are few.
const WAITING: usize = 64;

/// Longest time until the asker is answered; the CLI waits for 30 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Close the breaker of a pool, or of all.
    BreakerReset {
        /// Which; none = all.
        pool: Option<String>,
        /// Whether withheld nodes are dropped instead of taken out.
        drop_withheld: bool,
    },
    /// Take a node out and keep it out until a person ends it.
    Hold {
        /// Which.
        node: NodeName,
        /// Why, for people.
        reason: String,
    },
    /// End a person's hold of a node, else its incident.
    Release {
        /// Which.
        node: NodeName,
        /// Why, for people; empty = not said.
        reason: String,
    },
    /// End a node's incident, held or not.
    Cancel {
        /// Which.
        node: NodeName,
        /// Why, for people; empty = not said.
        reason: String,
    },
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// In words.
    pub text: String,
    /// It was recorded, and nothing is written to the node for it.
    pub only_recorded: bool,
}

/// A request with who asks and where the answer goes.
#[derive(Debug)]
pub struct Asked {
    /// What.
    pub request: Request,
    /// The user name that the API server gave, or `local`.
    pub actor: String,
    /// The answer: what was done, or why not and what would help.
    pub answer: oneshot::Sender<Result<Done, String>>,
}

/// Where requests are put in. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Requests(mpsc::Sender<Asked>);

/// Why a request got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Too many wait.
    #[error("too many requests wait; ask again in a moment")]
    Busy,
    /// The module is off or the process stops.
    #[error(
        "the quarantine module does not run here; see quarantine.enabled and the \
             profile. By hand: `kubectl cordon NODE`; what takes a node back, `warden explain NODE` names"
    )]
    Off,
    /// No answer in time.
    #[error(
        "the request is taken in, and not done yet: a write to the node is under way, or waits until \
         quarantine writes again. `warden explain NODE` shows when it is done; it is forgotten if the \
         controller stops before that"
    )]
    Waits,
}

impl RequestError {
    /// Static name for metrics and messages.
    pub fn code(self) -> &'static str {
        match self {
            Self::Busy => "requests_busy",
            Self::Off => "quarantine_off",
            Self::Waits => "request_waits",
        }
    }
}

/// A new pair: the API's end and the module's.
pub fn channel() -> (Requests, mpsc::Receiver<Asked>) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (Requests(sender), receiver)
}

impl Requests {
    /// Puts a request in and waits for the module's answer, at most 20 s.
    ///
    /// # Errors
    /// [`RequestError`] if the module does not take it, or has not done it by then.
    pub async fn ask(
        &self,
        request: Request,
        actor: String,
    ) -> Result<Result<Done, String>, RequestError> {
        let (answer, reply) = oneshot::channel();
        let asked = Asked {
            request,
            actor,
            answer,
        };
        self.0.try_send(asked).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => RequestError::Busy,
            mpsc::error::TrySendError::Closed(_) => RequestError::Off,
        })?;
        let reply = timeout(ANSWER_WITHIN, reply).await;
        reply
            .map_err(|_| RequestError::Waits)?
            .map_err(|_| RequestError::Off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_asks_is_answered_although_the_request_still_waits() {
        let (requests, mut taken_in) = channel();
        let node = NodeName::new("n").unwrap();
        let asks = requests.ask(
            Request::Cancel {
                node,
                reason: String::new(),
            },
            "ann".into(),
        );
        assert_eq!(asks.await, Err(RequestError::Waits));
        // Who asked has gone, and the request is done all the same.
        assert_eq!(taken_in.recv().await.unwrap().actor, "ann");
    }
}
