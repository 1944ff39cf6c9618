//! What persons ask of the module.

use std::sync::PoisonError;

use decide::breaker::BreakerState;
use decide::quarantine::{Decision, Mode, Note, Request, RequestKind};
use health_event::NodeName;
use health_event::incident::{Incident, QuarantineStatus};
use jiff::Timestamp;
use telemetry::events::{BreakerReset, set_breaker};
use tokio::sync::{mpsc, oneshot};

use super::breaker::Breaker;
use super::work::Module;
use crate::janitor::{self, StoredIntent};
use crate::requests::{Asked, Done, Request as Asks};

/// Requests that wait for a node's worker at most.
const WAITING: usize = 1_024;

/// A request on its way to the node's worker.
#[derive(Debug)]
pub(super) struct Waiting {
    request: Request,
    answer: Option<oneshot::Sender<Result<Done, String>>>,
}

/// Takes requests in until their senders are gone.
pub(super) async fn take_in(module: &Module, mut requests: mpsc::Receiver<Asked>) {
    while let Some(Asked {
        request,
        actor,
        answer,
    }) = requests.recv().await
    {
        match request {
            Asks::BreakerReset {
                pool,
                drop_withheld,
            } => {
                let done = module
                    .reset_breaker(pool.as_deref(), drop_withheld, &actor)
                    .await
                    .map(|text| Done {
                        text,
                        only_recorded: false,
                    });
                // The asker may have gone; what was done is in the log.
                drop(answer.send(done));
            }
            Asks::Hold { node, reason } => {
                let actor = if reason.is_empty() {
                    actor
                } else {
                    format!("{actor}: {reason}")
                };
                module.ask(
                    &node,
                    Request {
                        kind: RequestKind::Hold,
                        actor,
                    },
                    Some(answer),
                );
            }
            Asks::Release { node, reason } => {
                let kind = module.kind_of_release(&node);
                let actor = with_reason(actor, &reason);
                module.ask(&node, Request { kind, actor }, Some(answer));
            }
            Asks::Cancel { node, reason } => {
                let kind = RequestKind::Cancel;
                let actor = with_reason(actor, &reason);
                module.ask(&node, Request { kind, actor }, Some(answer));
            }
        }
    }
}

/// Who ends something, and why: `ann (the fan is new)`, as every step and hold of it tells.
fn with_reason(actor: String, reason: &str) -> String {
    if reason.is_empty() {
        actor
    } else {
        format!("{actor} ({reason})")
    }
}

impl Module {
    /// Puts a request before the node's worker. One waits at a time: a later one takes its place.
    fn ask(
        &self,
        node: &NodeName,
        request: Request,
        answer: Option<oneshot::Sender<Result<Done, String>>>,
    ) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let refuse = |answer: Option<oneshot::Sender<_>>, why: &str| {
            if let Some(answer) = answer {
                drop(answer.send(Err(why.to_owned())));
            }
        };
        if self.context.nodes.get(node).is_none() {
            refuse(
                answer,
                &format!("there is no node {node}; see `kubectl get nodes`"),
            );
            return;
        }
        // A reset drops every withheld node, however many: one request a node is bound enough.
        if answer.is_some() && requests.len() >= WAITING {
            refuse(answer, "too many requests wait; ask again in a moment");
            return;
        }
        if let Some(earlier) = requests.insert(node.clone(), Waiting { request, answer }) {
            refuse(earlier.answer, "a later request took this one's place");
        }
        self.workers.wake(node);
    }

    /// A hold of a person is released; any other incident is cancelled.
    fn kind_of_release(&self, node: &NodeName) -> RequestKind {
        let incidents = self
            .context
            .store
            .open_incidents_of(node)
            .unwrap_or_default();
        if incidents.iter().any(|incident| incident.held_by.is_some()) {
            RequestKind::Release
        } else {
            RequestKind::Cancel
        }
    }

    pub(super) fn request_of(&self, node: &NodeName) -> Option<Request> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.get(node).map(|waiting| waiting.request.clone())
    }

    /// The request of this node was taken in. `before` is the incident as it was.
    pub(super) fn answer_request(
        &self,
        node: &NodeName,
        before: Option<&Incident>,
        decision: &Decision,
    ) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(waiting) = requests.remove(node) else {
            return;
        };
        let refused = decision.notes.iter().find_map(|note| match note {
            Note::RequestRefused(why) => Some((*why).to_owned()),
            Note::Blocked { .. }
            | Note::Suppressed(_)
            | Note::OtherMachineOrBoot(_)
            | Note::StrayMarks(_)
            | Note::CooperatorUncordon(_) => None,
        });
        let kind = waiting.request.kind;
        let mode = self.policy_now().mode;
        let done = || {
            let mut done = said(node, kind, before, decision.incident.as_ref(), mode);
            if kind == RequestKind::Cancel {
                done.text.push_str(&self.not_recalled(node, before));
            }
            done
        };
        let answer = refused.map_or_else(|| Ok(done()), Err);
        if let Some(to) = waiting.answer {
            drop(to.send(answer));
        }
    }

    /// Which signals of the node may be out, for the person who ends its incident.
    fn not_recalled(&self, node: &NodeName, before: Option<&Incident>) -> String {
        let machine = before.map_or("", |incident| &incident.machine);
        match janitor::intents(&self.context.store) {
            Ok(mut intents) => {
                intents.retain(|intent| intent.is_of(node.as_str(), machine));
                signals_out(&intents, Timestamp::now())
            }
            Err(error) => format!(
                ". Whether the signal of a reboot is out is not known ({error}): the machine may still reboot"
            ),
        }
    }

    async fn reset_breaker(
        &self,
        pool: Option<&str>,
        drop_withheld: bool,
        actor: &str,
    ) -> Result<String, String> {
        let names: Vec<String> = self.context.nodes.pool_names().map(str::to_owned).collect();
        if let Some(pool) = pool.filter(|pool| !names.iter().any(|name| name == pool)) {
            return Err(format!(
                "there is no pool {pool:?}; there are {}",
                names.join(", ")
            ));
        }
        let (mut waiting, mut reached) = (0, String::new());
        for name in names
            .iter()
            .filter(|name| pool.is_none_or(|pool| pool == *name))
        {
            let (nodes, put, level) = {
                let mut state = self.breaker.lock();
                let nodes = state.reset(name);
                // Under the lock: else the reset could be taken for an automatic one.
                set_breaker(&self.context.metrics, name, false);
                // Under the lock too: else the first could have its turn before it is dropped.
                for node in nodes.iter().filter(|_| drop_withheld) {
                    if self.is_withheld(node) {
                        let request = Request {
                            kind: RequestKind::DropWithheld,
                            actor: actor.to_owned(),
                        };
                        self.ask(node, request, None);
                    }
                }
                let put = Breaker::record(&state, name).map(|(key, value)| {
                    self.context
                        .store
                        .state_put(&key, value, self.context.fencing)
                });
                // Under the lock too: else the first could be out already by the reset that is told of.
                let level = self.level_reached(&state, name);
                (nodes, put, level)
            };
            if let Some(put) = put {
                put.await.map_err(|error| error.to_string())?;
            }
            waiting += nodes.len();
            if !nodes.is_empty() && !drop_withheld {
                reached += &level;
            }
            BreakerReset {
                pool: name,
                actor,
                dropped_withheld: drop_withheld,
            }
            .emit(&self.context.metrics);
            for node in &nodes {
                self.workers.wake(node);
            }
        }
        self.breaker.changed.notify_one();
        let done = if drop_withheld {
            "left in service"
        } else {
            "decided about again, by turn"
        };
        Ok(match waiting {
            0 => "reset; no node was withheld".to_owned(),
            1 => format!("reset; 1 withheld node is {done}{reached}"),
            nodes => format!("reset; {nodes} withheld nodes are {done}{reached}"),
        })
    }

    /// What keeps the nodes of a pool waiting although it was reset; empty if nothing does.
    fn level_reached(&self, state: &BreakerState, pool: &str) -> String {
        let config = &self.breaker.config;
        let size = self.context.nodes.pool_size(pool);
        let bound = config.level_bound(size);
        let out = state.pools.get(pool).map_or(0, |p| p.out.len());
        if !config.enabled || out < bound {
            return String::new();
        }
        format!(
            "; the level bound of pool {pool} is still reached: {out} of {bound} out; give back nodes \
             (`warden release`) or raise the bound, or none of them is taken out"
        )
    }

    fn is_withheld(&self, node: &NodeName) -> bool {
        let incidents = self
            .context
            .store
            .open_incidents_of(node)
            .unwrap_or_default();
        incidents.iter().any(|incident| match incident.quarantine {
            QuarantineStatus::Withheld(_) => true,
            QuarantineStatus::Observed
            | QuarantineStatus::Applying
            | QuarantineStatus::Quarantined
            | QuarantineStatus::Releasing(_)
            | QuarantineStatus::Closed(_) => false,
        })
    }
}

/// Signals that may have their effect still, and until when they are watched for it.
fn signals_out(intents: &[StoredIntent], now: Timestamp) -> String {
    let out = intents.iter().filter(|intent| now < intent.deadline);
    let told = out.map(|intent| {
        format!(
            ". The reboot signal of RebootNode {} may be out since {:.0} and can't be recalled: the machine may \
             still reboot, and is watched for it until {:.0}",
            intent.object, intent.at, intent.deadline
        )
    });
    told.collect()
}

/// What was done about a node, and what was not: nobody is told that a node is out, or back, to which
/// nothing is written.
fn said(
    node: &NodeName,
    kind: RequestKind,
    before: Option<&Incident>,
    after: Option<&Incident>,
    mode: Mode,
) -> Done {
    let idle = match mode {
        Mode::Enforce => None,
        Mode::Refused => Some("another fault-quarantine runs in the cluster"),
        Mode::DryRun => Some("quarantine is in a dry run (as in profile observe)"),
        Mode::Off => Some("quarantine is off"),
    };
    let was_out = before.is_some_and(|before| before.quarantine.is_out());
    let observed = after.is_some_and(|i| i.quarantine == QuarantineStatus::Observed);
    let (act, done, idle, by_hand) = match kind {
        RequestKind::Hold => (
            "the hold",
            if was_out {
                "it is out already, and stays out until `warden release`"
            } else {
                "it is taken out, and stays out until `warden release`"
            },
            idle.or_else(|| {
                observed.then_some("the node is protected (quarantine.protected_nodes)")
            }),
            format!("`kubectl cordon {node}` takes it out"),
        ),
        RequestKind::Release if was_out => (
            "the end of the hold",
            "the hold is ended; it comes back once its faults, if any, have ended",
            idle,
            format!("`warden explain {node}` names what takes it back"),
        ),
        RequestKind::Release => (
            "the end of the hold",
            "the hold is ended",
            idle,
            format!("if you cordoned it yourself, `kubectl uncordon {node}` takes it back"),
        ),
        RequestKind::Cancel | RequestKind::DropWithheld => (
            "the end of its incident",
            if was_out {
                "its incident is ended, and it is given back"
            } else {
                "its incident is ended, and it is left in service"
            },
            idle,
            format!("if you cordoned it yourself, `kubectl uncordon {node}` takes it back"),
        ),
    };
    let replaced = before.and_then(|before| before.held_by.as_deref());
    let replaced = replaced.filter(|_| kind == RequestKind::Hold);
    let replaced = replaced.map_or_else(String::new, |held| {
        format!(". It was held already, by {held}: that is replaced")
    });
    let only_recorded = idle.is_some();
    let text = match idle {
        Some(why) => format!(
            "recorded for node {node}: {act}. Nothing is written to the node, for {why}; by hand: \
             {by_hand}{replaced}"
        ),
        None => format!("done for node {node}: {done}{replaced}"),
    };
    Done {
        text,
        only_recorded,
    }
}

#[cfg(test)]
#[path = "asked_tests.rs"]
mod tests;
