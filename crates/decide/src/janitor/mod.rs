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
//! - What waits for a place, or for its provider, holds no lock of a node, unless its intent is stored.
//! - No signal without the node's lock, without a free place, or for a node that is excluded.
//! - *Succeeded* is another boot and Ready; where an earlier signal may have brought it, the provider says too
//!   that it is done, or the time is over. Where the provider says that it is done and the node
//!   has stayed in its boot, it is `NoRebootObserved`.
//! - Every object has an end: by its deadline in every state, also with the node gone.
//! - What is recalled before its signal may be sent is never sent; after that nothing recalls it:
//!   it keeps lock and deadline, also while it is being deleted.

mod facts;
mod orphans;
mod places;
pub mod selector;
pub mod ttl;

#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp};
use k8s_api::reboot_node::{
    CONTROLLER_HERE, NO_REBOOT_OBSERVED, NODE_EXCLUDED, NODE_NOT_FOUND, RECALLED, TIMEOUT,
};

use crate::later;
pub use facts::{
    Answer, Condition, End, Intent, Lock, Node, Place, Policy, RebootNode, Signal, StatusChange,
    Step, Unwanted, View,
};
pub use orphans::runs_without_object;
pub use places::{Beside, place};

/// What an object says whose node the controller runs on.
const HERE: &str = "the controller itself runs on this node, and would go down with it: nothing is sent until it runs on \
     another node";
/// How far another janitor's clock may be ahead of ours.
const SKEW: SignedDuration = SignedDuration::from_mins(10);

/// What is done next with one object.
pub fn decide(view: &View<'_>, now: Timestamp) -> Step {
    let object = view.object;
    let look = Look { view, now };
    if object.completed_at.is_some() && !look.is_settled() {
        // Its signal may still have its effect, whoever says that it is over.
        return Step::Wait(Some(look.deadline()));
    }
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

/// Until when an object that nobody ends may still have an effect: one that was begun has the time of its
/// signal, any other may be begun as long as it may queue.
pub fn left_until(
    created_at: Timestamp,
    started_at: Option<Timestamp>,
    policy: &Policy,
) -> Timestamp {
    match started_at {
        Some(at) => deadline_of(at, policy),
        None => deadline_of(later(created_at, policy.queue_timeout), policy),
    }
}

/// Until when the effect of a signal may come: a shorter time that is configured later takes nothing from it.
pub fn until(intent: &Intent, policy: &Policy) -> Timestamp {
    deadline_of(intent.at, policy).max(intent.deadline)
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
        let deadline = self.deadline();
        let is_ours =
            !view.earlier_signal || view.answer == Some(&Answer::Done) || deadline <= self.now;
        if self.may_be_sent() && self.has_rebooted() && is_ours {
            return self.succeeded();
        }
        // What may be sent is followed to its deadline: the machine may be there, under another object.
        if *view.node == Node::Missing && !self.may_be_sent() {
            return self.ends(NODE_NOT_FOUND, "the node does not exist any more");
        }
        if deadline <= self.now {
            return self.ends(TIMEOUT, self.what_was_late());
        }
        if view.excluded && !self.may_be_sent() {
            return self.ends(NODE_EXCLUDED, "the node is excluded from repairs");
        }
        if let (Some(why), false) = (view.recalled, self.may_be_sent()) {
            return self.ends(RECALLED, unwanted(why));
        }
        match (&view.object.signal, view.intent) {
            // Ours would say so together with its end.
            (Signal::Failed, Some(intent)) if !intent.fresh && !intent.manual => {
                Step::Wait(Some(deadline))
            }
            (Signal::Failed, _) => self.ends("Failed", "the signal could not be sent"),
            (Signal::Sent { request }, _) => self.follow(request, deadline),
            (Signal::Unknown, Some(intent)) if intent.manual => self.wait_for_person(deadline),
            // The call may have been made: only the node can tell.
            (Signal::Unknown, Some(intent)) if !intent.fresh => Step::Wait(Some(deadline)),
            // The machine has booted since: in the stored boot nothing would prove this signal.
            (Signal::Unknown, Some(intent)) if self.runs_in_another_boot(intent) => {
                self.begin(deadline)
            }
            // Work came to the node, or a person paused it, since the intent was stored: nothing is sent yet.
            (Signal::Unknown, Some(_)) if self.is_kept() => Step::Wait(Some(deadline)),
            (Signal::Unknown, Some(_)) => Step::Send {
                force: view.object.force,
            },
            // Another janitor has begun it: whether it sent the signal nobody here knows.
            (Signal::Unknown, None) if view.object.started_at.is_some() => {
                Step::Wait(Some(deadline))
            }
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
        let here = view.place == Place::ControllerHere;
        if view.object.says_controller_here && !here {
            return says_ready(not_determined());
        }
        if view.place != Place::Free {
            return match view.lock {
                // Another repair may go on meanwhile.
                Lock::Ours => Step::Unlock,
                // Only a person can move it.
                Lock::NotKnown | Lock::Others if here && !view.object.says_controller_here => {
                    says_ready(unknown(CONTROLLER_HERE, HERE))
                }
                Lock::NotKnown | Lock::Others => Step::Wait(Some(deadline)),
            };
        }
        if let Some(at) = view.not_before.filter(|at| *at > self.now) {
            return match (view.lock, view.intent) {
                // Another repair may go on until the next try.
                (Lock::Ours, None) => Step::Unlock,
                // What is stored is taken for sent by another process, which finds the node locked.
                (Lock::Ours, Some(_)) | (Lock::NotKnown | Lock::Others, _) => {
                    Step::Wait(Some(at.min(deadline)))
                }
            };
        }
        match view.lock {
            Lock::NotKnown => Step::Lock,
            Lock::Others => Step::Wait(Some(deadline)),
            Lock::Ours => Step::Intend(boot.clone()),
        }
    }

    /// Whether the node keeps a signal from being sent, whatever places are free.
    fn is_kept(&self) -> bool {
        match self.view.place {
            Place::Free | Place::Full => false,
            Place::ControllerHere | Place::Paused | Place::NotEmpty | Place::NotAdopted => true,
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
                    NO_REBOOT_OBSERVED,
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
        let called = |intent: &Intent| intent.manual || !intent.fresh;
        self.view.intent.is_some_and(called)
            || matches!(self.view.object.signal, Signal::Sent { .. })
    }

    /// Whether nothing that was sent for it may still have its effect.
    fn is_settled(&self) -> bool {
        let Some(intent) = self.view.intent.filter(|_| self.may_be_sent()) else {
            return true;
        };
        let over = until(intent, self.view.policy) <= self.now;
        over || self.runs_in_another_boot(intent) || self.is_proven_by_its_end(intent)
    }

    /// Whether its end is one that we would have written at this moment, or the person's whose signal it is.
    fn is_proven_by_its_end(&self, intent: &Intent) -> bool {
        let Some(end) = self.view.object.end else {
            return false;
        };
        match end {
            _ if intent.manual => true,
            End::Refused => {
                self.view.object.signal == Signal::Failed && !self.view.answer.is_some_and(was_sent)
            }
            End::NoReboot => {
                let until = later(intent.at, self.view.policy.no_reboot_after);
                until <= self.now && self.stayed_in_its_boot()
            }
            // We end as Succeeded in another boot, and as Timeout when the time is over.
            End::Other => false,
        }
    }

    fn sent_at(&self) -> Timestamp {
        let intended = self.view.intent.map(|intent| intent.at);
        let started = self.view.object.started_at;
        intended.or(started).unwrap_or(self.view.object.created_at)
    }

    fn deadline(&self) -> Timestamp {
        let (object, policy) = (self.view.object, self.view.policy);
        // A start that lies ahead is not one.
        let started = object.started_at.filter(|at| *at <= later(self.now, SKEW));
        match (self.view.intent, started) {
            (Some(intent), _) => until(intent, policy),
            (None, Some(at)) => deadline_of(at, policy),
            (None, None) => later(object.created_at, policy.queue_timeout),
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
            Signal::Unknown | Signal::Failed if self.view.place == Place::ControllerHere => {
                "the controller itself runs on this node, and was not moved to another one in time; nothing was \
                 sent"
            }
            Signal::Unknown | Signal::Failed => {
                "it could not start in time: another repair of the node, too many at once, the \
                 provider can't be reached, or the node's boot id is not known"
            }
        }
    }

    /// Whether the node runs in another boot than before, and is Ready.
    fn has_rebooted(&self) -> bool {
        let ready = matches!(self.view.node, Node::Seen { ready: true, .. });
        ready
            && self
                .view
                .intent
                .is_some_and(|intent| self.runs_in_another_boot(intent))
    }

    fn runs_in_another_boot(&self, intent: &Intent) -> bool {
        let Node::Seen { boot, .. } = self.view.node else {
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
            // What was never begun has no start.
            started_at: self.start_if_none().filter(|_| self.may_be_sent()),
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

fn says_ready(ready: Condition) -> Step {
    Step::Write(StatusChange {
        node_ready: Some(ready),
        ..StatusChange::default()
    })
}

fn unwanted(why: Unwanted) -> &'static str {
    match why {
        Unwanted::Over => "what it was made for is over; its signal was not sent",
        Unwanted::IncidentUnknown => {
            "the incident that ordered it is not known, and its node has no mark of it: the store was lost, and \
             the node was given back since. Its signal was not sent; make another object to have the node \
             rebooted all the same"
        }
    }
}

/// Whether the provider took the signal.
fn was_sent(answer: &Answer) -> bool {
    match answer {
        Answer::Sent { .. } | Answer::Done | Answer::NotDone | Answer::NotAsked(_) => true,
        Answer::Refused(_) | Answer::Lost(_) => false,
    }
}

fn not_determined() -> Condition {
    unknown("Initializing", "Node ready state not yet determined")
}
