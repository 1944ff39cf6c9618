//! A `RebootNode` object from its creation to its end: whoever made it, under the same lock and
//! with the same look before any repetition.
//!
//! # Course
//! ```text
//!  made ─► lock ─► intent stored ─► signal sent ─► other boot, and Ready ─► Succeeded
//!                      │  (unknown)     │ refused, before anything began ─► Failed
//!                      │                └ no answer: only the node can tell
//!                      └────────────────────────► deadline ─► Timeout
//! ```
//!
//! # Invariants (`tests`)
//! - The intent is stored before the signal is sent (P3), and a signal whose answer was lost is
//!   never sent again: the node is looked at until the deadline.
//! - No signal without the node's lock, without a free place, or for a node that is excluded.
//! - *Succeeded* is another boot and Ready. Where the provider says that it is done and the node
//!   has stayed in its boot, it is `NoRebootObserved`.
//! - Every object has an end: by its deadline in every state, also with the node gone.
//! - What is recalled before its signal may be sent is never sent; after that nothing recalls it:
//!   it keeps lock and deadline, also while it is being deleted.

mod orphans;
pub mod selector;
pub mod ttl;

#[cfg(test)]
mod tests;

use health_event::BootId;
use jiff::{SignedDuration, Timestamp};

use crate::later;
pub use orphans::runs_without_object;

/// Settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// From the start to the effect. Default 25 min, that of the reference's chart.
    pub timeout: SignedDuration,
    /// An object that could not start for this long ends. Default 6 h.
    pub queue_timeout: SignedDuration,
    /// Where the provider says that it is done, the node may stay in its boot for this long after
    /// the signal. Default 10 min.
    pub no_reboot_after: SignedDuration,
    /// Between questions to the provider. Default 15 s.
    pub ask_interval: SignedDuration,
    /// A person sends the signal, and says so in the object's status.
    pub manual: bool,
}

/// Whether the signal was sent, as the object's condition `SignalSent` says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Signal {
    /// The condition is absent, or Unknown.
    #[default]
    Unknown,
    /// True; its message is the provider's id of the request.
    Sent {
        /// The id, maybe empty.
        request: String,
    },
    /// False.
    Failed,
}

/// The object, reduced to what decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebootNode {
    /// When it was made.
    pub created_at: Timestamp,
    /// It asks for force.
    pub force: bool,
    /// It is being deleted.
    pub deleting: bool,
    /// `status.startTime`.
    pub started_at: Option<Timestamp>,
    /// `status.completionTime`: it is at its end.
    pub completed_at: Option<Timestamp>,
    /// Condition `SignalSent`.
    pub signal: Signal,
    /// Whether condition `ManualMode` stands.
    pub says_manual: bool,
}

/// The node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// Not seen yet.
    NotKnown,
    /// A direct read said that it does not exist.
    Missing,
    /// As it is.
    Seen {
        /// Boot.
        boot: BootId,
        /// Whether the condition Ready is True.
        ready: bool,
    },
}

/// The lock of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Not asked for yet, or it could not be said.
    NotKnown,
    /// This object holds it.
    Ours,
    /// Another object holds it.
    Others,
}

/// That a signal is sent, stored before it is; where a person sends it, that it is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// Boot of the node before.
    pub boot_before: BootId,
    /// When.
    pub at: Timestamp,
    /// Whether this process stored it and has not called yet: else the call may have been made.
    pub fresh: bool,
}

/// What the provider answered to the last call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The signal is taken.
    Sent {
        /// Id of the request.
        request: String,
    },
    /// The signal is refused by what proves that nothing was begun.
    Refused(String),
    /// Nobody knows whether the signal was taken.
    Lost(String),
    /// The provider says that the request is done.
    Done,
    /// The provider says that the request is not done.
    NotDone,
    /// It could not be asked.
    NotAsked(String),
}

/// Whether another reboot may run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It may.
    Free,
    /// As many run as may at once.
    Full,
    /// The controller runs on this node, which goes last and alone.
    OwnNodeLast,
    /// A person paused the node: nothing is started on it.
    Paused,
}

/// Everything that one decision about one object looks at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The object.
    pub object: &'a RebootNode,
    /// Its node.
    pub node: &'a Node,
    /// The node's lock.
    pub lock: Lock,
    /// The stored intent.
    pub intent: Option<&'a Intent>,
    /// The last answer.
    pub answer: Option<&'a Answer>,
    /// When the provider was last asked.
    pub asked_at: Option<Timestamp>,
    /// Whether another reboot may run now.
    pub place: Place,
    /// Whether the node is excluded from repairs.
    pub excluded: bool,
    /// Whether whom it was made for does not want it any more.
    pub recalled: bool,
    /// Nothing is begun before then: the provider could not be reached, so that nothing was sent.
    pub not_before: Option<Timestamp>,
    /// Settings.
    pub policy: &'a Policy,
}

/// A condition as it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `True`, `False`; `None`: `Unknown`.
    pub status: Option<bool>,
    /// Reason.
    pub reason: &'static str,
    /// Message.
    pub message: String,
}

/// A change of the object's status, in one write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatusChange {
    /// Sets `startTime`.
    pub started_at: Option<Timestamp>,
    /// Sets `completionTime`.
    pub completed_at: Option<Timestamp>,
    /// Condition `SignalSent`.
    pub signal: Option<Condition>,
    /// Condition `NodeReady`.
    pub node_ready: Option<Condition>,
    /// Condition `ManualMode`, True.
    pub manual: bool,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do before this time, unless something changes.
    Wait(Option<Timestamp>),
    /// Take the node's lock.
    Lock,
    /// Give the node's lock back, and forget the intent.
    Unlock,
    /// Store that the signal is sent now, in this boot.
    Intend(BootId),
    /// Send the signal.
    Send {
        /// By force.
        force: bool,
    },
    /// Ask the provider whether the request is done.
    Ask {
        /// Its id.
        request: String,
    },
    /// Write the status.
    Write(StatusChange),
}

/// What is done next with one object.
pub fn decide(view: &View<'_>, now: Timestamp) -> Step {
    let object = view.object;
    let look = Look { view, now };
    if object.completed_at.is_some() || (object.deleting && !look.may_be_sent()) {
        return match view.lock {
            Lock::Ours => Step::Unlock,
            Lock::NotKnown | Lock::Others => Step::Wait(None),
        };
    }
    look.under_way()
}

/// Until when a signal that is sent at `at` may have its effect.
pub fn deadline_of(at: Timestamp, policy: &Policy) -> Timestamp {
    later(at, policy.timeout)
}

struct Look<'a> {
    view: &'a View<'a>,
    now: Timestamp,
}

impl Look<'_> {
    fn under_way(&self) -> Step {
        let view = self.view;
        if let Some(step) = self.takes_answer() {
            return step;
        }
        if self.may_be_sent() && self.has_rebooted() {
            return self.succeeded();
        }
        if *view.node == Node::Missing {
            return self.ends("NodeNotFound", "the node does not exist any more");
        }
        let deadline = self.deadline();
        if deadline <= self.now {
            return self.ends("Timeout", self.what_was_late());
        }
        if view.excluded && !self.may_be_sent() {
            return self.ends("NodeExcluded", "the node is excluded from repairs");
        }
        if view.recalled && !self.may_be_sent() {
            return self.ends(
                "Recalled",
                "what it was made for is over; its signal was not sent",
            );
        }
        match (&view.object.signal, view.intent) {
            (Signal::Failed, _) => self.ends("Failed", "the signal could not be sent"),
            (Signal::Sent { request }, _) => self.follow(request, deadline),
            (Signal::Unknown, Some(_)) if view.policy.manual => self.wait_for_person(deadline),
            // The call may have been made: only the node can tell.
            (Signal::Unknown, Some(intent)) if !intent.fresh => Step::Wait(Some(deadline)),
            (Signal::Unknown, Some(_)) => Step::Send {
                force: view.object.force,
            },
            (Signal::Unknown, None) => self.begin(deadline),
        }
    }

    fn begin(&self, deadline: Timestamp) -> Step {
        let view = self.view;
        let Node::Seen { boot, .. } = view.node else {
            return Step::Wait(Some(deadline));
        };
        // What nobody could see is not begun.
        if boot.is_unknown() {
            return Step::Wait(Some(deadline));
        }
        if view.place != Place::Free {
            return Step::Wait(Some(deadline));
        }
        if let Some(at) = view.not_before.filter(|at| *at > self.now) {
            return Step::Wait(Some(at.min(deadline)));
        }
        match view.lock {
            Lock::NotKnown => Step::Lock,
            Lock::Others => Step::Wait(Some(deadline)),
            Lock::Ours => Step::Intend(boot.clone()),
        }
    }

    /// The person's word that the signal was sent comes by the object's status.
    fn wait_for_person(&self, deadline: Timestamp) -> Step {
        if self.view.object.says_manual {
            return Step::Wait(Some(deadline));
        }
        Step::Write(StatusChange {
            started_at: self.start_if_none(),
            manual: true,
            signal: Some(unknown("Initializing", "Reboot signal not yet sent")),
            node_ready: Some(not_determined()),
            ..StatusChange::default()
        })
    }

    /// The signal was sent: the node is waited for, and the provider asked.
    fn follow(&self, request: &str, deadline: Timestamp) -> Step {
        let policy = self.view.policy;
        if policy.manual {
            return Step::Wait(Some(deadline));
        }
        if let (Some(Answer::Done), Node::Seen { ready: true, .. }) =
            (self.view.answer, self.view.node)
        {
            let until = later(self.sent_at(), policy.no_reboot_after);
            if until <= self.now && self.stayed_in_its_boot() {
                return self.ends(
                    "NoRebootObserved",
                    "the provider says that it is done, and the node is Ready in the boot that it \
                     had before",
                );
            }
        }
        let next = self
            .view
            .asked_at
            .map_or(self.now, |at| later(at, policy.ask_interval));
        if next <= self.now {
            let request = request.to_owned();
            return Step::Ask { request };
        }
        Step::Wait(Some(next.min(deadline)))
    }

    /// What the last call led to, until it stands in the object's status.
    fn takes_answer(&self) -> Option<Step> {
        let intent = self.view.intent?;
        if self.view.object.signal != Signal::Unknown {
            return None;
        }
        let started_at = Some(self.view.object.started_at.unwrap_or(intent.at));
        let change = match self.view.answer? {
            Answer::Sent { request } => StatusChange {
                started_at,
                signal: Some(Condition {
                    status: Some(true),
                    reason: "Succeeded",
                    message: request.clone(),
                }),
                node_ready: Some(not_determined()),
                ..StatusChange::default()
            },
            Answer::Refused(why) => StatusChange {
                started_at,
                completed_at: Some(self.now),
                signal: Some(Condition {
                    status: Some(false),
                    reason: "Failed",
                    message: format!("failed to send reboot signal: {why}"),
                }),
                // The reference leaves it Unknown, which its remediation takes for "under way" for
                // ever.
                node_ready: Some(Condition {
                    status: Some(false),
                    reason: "Failed",
                    message: "the reboot signal was refused".to_owned(),
                }),
                ..StatusChange::default()
            },
            Answer::Lost(why) if self.view.object.started_at.is_none() => StatusChange {
                started_at,
                signal: Some(unknown(
                    "OutcomeUnknown",
                    &format!(
                        "whether the provider took the reboot signal is not known: {why}. It is \
                         not sent again; the node is watched until the deadline"
                    ),
                )),
                node_ready: Some(not_determined()),
                ..StatusChange::default()
            },
            Answer::Lost(_) | Answer::Done | Answer::NotDone | Answer::NotAsked(_) => return None,
        };
        Some(Step::Write(change))
    }

    fn may_be_sent(&self) -> bool {
        let manual = self.view.policy.manual;
        let called = |intent: &Intent| manual || !intent.fresh;
        self.view.intent.is_some_and(called)
            || matches!(self.view.object.signal, Signal::Sent { .. })
    }

    fn sent_at(&self) -> Timestamp {
        let intended = self.view.intent.map(|intent| intent.at);
        let started = self.view.object.started_at;
        intended.or(started).unwrap_or(self.view.object.created_at)
    }

    fn deadline(&self) -> Timestamp {
        let (object, policy) = (self.view.object, self.view.policy);
        let begun = object.started_at.or_else(|| self.view.intent.map(|i| i.at));
        match begun {
            Some(at) => deadline_of(at, policy),
            None => later(object.created_at, policy.queue_timeout),
        }
    }

    fn what_was_late(&self) -> &'static str {
        let begun = self.view.object.started_at.is_some() || self.view.intent.is_some();
        match self.view.object.signal {
            Signal::Sent { .. } => "the node was not seen to have rebooted in time",
            Signal::Unknown | Signal::Failed if begun && self.view.policy.manual => {
                "nobody sent the reboot signal in time"
            }
            Signal::Unknown | Signal::Failed if begun => {
                "whether the signal was taken is not known, and the node was not seen to have \
                 rebooted in time"
            }
            Signal::Unknown | Signal::Failed => {
                "it could not start in time: another repair of the node, too many at once, the \
                 provider can't be reached, or the node's boot id is not known"
            }
        }
    }

    /// Whether the node runs in another boot than before, and is Ready.
    fn has_rebooted(&self) -> bool {
        let (Some(intent), Node::Seen { boot, ready: true }) = (self.view.intent, self.view.node)
        else {
            return false;
        };
        let known = !boot.is_unknown() && !intent.boot_before.is_unknown();
        known && *boot != intent.boot_before
    }

    fn stayed_in_its_boot(&self) -> bool {
        let (Some(intent), Node::Seen { boot, .. }) = (self.view.intent, self.view.node) else {
            return false;
        };
        *boot == intent.boot_before
    }

    fn succeeded(&self) -> Step {
        let signal = match self.view.object.signal {
            Signal::Sent { .. } => None,
            Signal::Unknown | Signal::Failed => Some(Condition {
                status: Some(true),
                reason: "Succeeded",
                message: String::new(),
            }),
        };
        Step::Write(StatusChange {
            started_at: self.start_if_none(),
            completed_at: Some(self.now),
            signal,
            node_ready: Some(Condition {
                status: Some(true),
                reason: "Succeeded",
                message: "the node is Ready in another boot".to_owned(),
            }),
            manual: false,
        })
    }

    fn start_if_none(&self) -> Option<Timestamp> {
        let none = self.view.object.started_at.is_none();
        none.then(|| self.view.intent.map_or(self.now, |intent| intent.at))
    }

    fn ends(&self, reason: &'static str, message: &str) -> Step {
        Step::Write(StatusChange {
            started_at: self.start_if_none(),
            completed_at: Some(self.now),
            node_ready: Some(Condition {
                status: Some(false),
                reason,
                message: message.to_owned(),
            }),
            ..StatusChange::default()
        })
    }
}

fn unknown(reason: &'static str, message: &str) -> Condition {
    Condition {
        status: None,
        reason,
        message: message.to_owned(),
    }
}

fn not_determined() -> Condition {
    unknown("Initializing", "Node ready state not yet determined")
}
