//! What a detector found.

use health_event::{HealthEvent, ProcessingStrategy, RecommendedAction, pci};

use crate::xid;

/// What kind of fault a finding speaks of; its text is the `fault` of `warden scan`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An error number of the GPU driver.
    Xid(u32),
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Xid(code) => write!(f, "xid:{code}"),
        }
    }
}

/// How bad an event is, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It is only stored, or it says that all is well.
    Info,
    /// Unhealthy, nothing asked for.
    Warning,
    /// Unhealthy, an action is asked for.
    Error,
    /// Work on the part can't go on.
    Fatal,
}

impl Severity {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Fatal => "fatal",
        }
    }

    /// Of an event.
    pub fn of(event: &HealthEvent) -> Self {
        if event.is_healthy || event.strategy == ProcessingStrategy::StoreOnly {
            Self::Info
        } else if event.is_fatal {
            Self::Fatal
        } else if event.recommended_action == RecommendedAction::None {
            Self::Warning
        } else {
            Self::Error
        }
    }
}

/// One statement of a line about one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind of fault.
    pub kind: Kind,
    /// The statement. `node_name`, `id`, `generated_at` and the order are for the reader of the
    /// log to fill in.
    pub event: HealthEvent,
}

impl Finding {
    /// How bad it is.
    pub fn severity(&self) -> Severity {
        Severity::of(&self.event)
    }

    /// The PCI address in its compared form, if the line names one.
    pub fn pci(&self) -> Option<String> {
        let entity = self.event.entities.iter().find(|e| e.kind == "PCI")?;
        Some(pci::normalise(&entity.value))
    }

    /// What it means and what to do next, in plain words, one or two sentences.
    pub fn explain(&self) -> String {
        match self.kind {
            Kind::Xid(code) => xid::explain(code, &self.event),
        }
    }
}
