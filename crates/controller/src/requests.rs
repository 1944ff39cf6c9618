//! What a person asks of the quarantine module, on its way from the API.

use health_event::NodeName;
use tokio::sync::{mpsc, oneshot};

/// Requests that wait at most; a person's are few.
const WAITING: usize = 64;

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
    /// End a node's incident.
    Release {
        /// Which.
        node: NodeName,
    },
}

/// A request with who asks and where the answer goes.
#[derive(Debug)]
pub struct Asked {
    /// What.
    pub request: Request,
    /// The user name that the API server gave, or `local`.
    pub actor: String,
    /// The answer: what was done, or why not and what would help.
    pub answer: oneshot::Sender<Result<String, String>>,
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
    #[error("the quarantine module does not run here; see quarantine.enabled and the profile")]
    Off,
}

impl RequestError {
    /// Static name for metrics and messages.
    pub fn code(self) -> &'static str {
        match self {
            Self::Busy => "requests_busy",
            Self::Off => "quarantine_off",
        }
    }
}

/// A new pair: the API's end and the module's.
pub fn channel() -> (Requests, mpsc::Receiver<Asked>) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (Requests(sender), receiver)
}

impl Requests {
    /// Puts a request in and waits for the module's answer.
    ///
    /// # Errors
    /// [`RequestError`] if the module does not take it.
    pub async fn ask(
        &self,
        request: Request,
        actor: String,
    ) -> Result<Result<String, String>, RequestError> {
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
        reply.await.map_err(|_| RequestError::Off)
    }
}
