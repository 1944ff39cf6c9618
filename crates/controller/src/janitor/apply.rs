//! From a decided step to what is done.

use std::time::Duration;

use decide::janitor::{Answer, StatusChange, Step, deadline_of};
use health_event::{BootId, NodeName};
use jiff::{SignedDuration, Timestamp};
use k8s_api::names;
use k8s_api::reboot_node::{PATH, RebootNode};
use telemetry::metrics::{ActionTypeLabel, JanitorActionLabel, OutcomeLabel};
use tracing::{info, warn};

use super::intents::StoredIntent;
use super::provider::NotReached;
use super::status;
use super::work::{Down, Module, Next, TurnError, later};
use super::{adopt, facts};
use crate::crash;
use crate::kubernetes::{Call, CallError, Write};

/// First pause after a provider could not be reached; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Between looks whether a new leader may send.
const LEAD_LOOK: SignedDuration = SignedDuration::from_millis(250);

impl Module {
    /// Does one step.
    pub(super) async fn apply(
        &self,
        key: &NodeName,
        object: &RebootNode,
        step: Step,
        now: Timestamp,
    ) -> Result<Next, TurnError> {
        match step {
            Step::Wait(_) => Ok(Next::Done),
            Step::Lock => self.lock_node(object).await,
            Step::Unlock => self.unlock_node(object).await,
            Step::Intend(boot) => self.intend(key, object, &boot, now).await,
            Step::Send { force: _ } => self.send(key, object, now).await,
            Step::Ask { request } => Ok(self.ask(key, object, &request, now).await),
            Step::Write(change) => self.write(object, &change, now).await,
        }
    }

    async fn lock_node(&self, object: &RebootNode) -> Result<Next, TurnError> {
        // The place first: who waits for one holds no lock that others may want.
        if !self.reserve(object) {
            return Ok(Next::Again);
        }
        let deadline = self.deadline()?;
        let taken = self.locks.take(&self.context.kube, object, deadline).await;
        if taken.is_err() {
            self.count("lock", "failed", object);
        }
        let made = taken?;
        if !made && !self.locks.is_held_by(&object.metadata.uid) {
            self.pass_on(object);
        }
        if !made && self.locks.is_held_by(&object.metadata.uid) && self.other_left_lately() {
            // The other one was in the middle of it when it ended.
            adopt::take_over(self, object, Timestamp::now()).await?;
        }
        Ok(Next::Again)
    }

    async fn unlock_node(&self, object: &RebootNode) -> Result<Next, TurnError> {
        let deadline = self.deadline()?;
        let kube = &self.context.kube;
        let (node, uid) = (&object.spec.node_name, &object.metadata.uid);
        let given_back = self.locks.give_back(kube, node, uid, deadline).await;
        if given_back.is_err() {
            self.count("unlock", "failed", object);
        }
        given_back?;
        Ok(Next::Again)
    }

    /// Forgets what was known of an object that is over.
    pub(super) async fn forget(
        &self,
        key: &NodeName,
        object: &RebootNode,
    ) -> Result<(), TurnError> {
        let intent = self.intent(&object.metadata.uid);
        if intent.is_some_and(|intent| intent.node != object.spec.node_name) {
            return Ok(());
        }
        self.forget_intent(key, &object.metadata.uid).await
    }

    pub(super) async fn forget_intent(&self, key: &NodeName, uid: &str) -> Result<(), TurnError> {
        if let Some(intent) = self.intent(uid) {
            let store = &self.context.store;
            store
                .state_delete(&intent.key(), self.context.fencing)
                .await?;
            self.intents().remove(uid);
            self.count_under_way();
            self.wake_for_places();
            // A release may have waited for it.
            if let Ok(node) = NodeName::new(&intent.node) {
                self.context.wakes.wake(&node);
            }
        }
        self.memory.keep(key, |known| known != uid);
        Ok(())
    }

    /// Stores that the signal is sent, once everything stands that can fail before it is.
    async fn intend(
        &self,
        key: &NodeName,
        object: &RebootNode,
        boot: &BootId,
        now: Timestamp,
    ) -> Result<Next, TurnError> {
        if !self.leadership.may_do_irreversible() {
            self.workers.wake_at(key, later(now, LEAD_LOOK));
            return Ok(Next::Done);
        }
        let connection = if self.policy.manual {
            None
        } else {
            match self.provider.connect(object.spec.force).await {
                Ok(connection) => Some(connection),
                Err(error) => {
                    self.note_down(object, &error);
                    return Ok(Next::Again);
                }
            }
        };
        self.down()[usize::from(object.spec.force)] = None;
        let now = Timestamp::now();
        let intent = StoredIntent {
            uid: object.metadata.uid.clone(),
            object: object.metadata.name.clone(),
            node: object.spec.node_name.clone(),
            machine: self.machine_of(&object.spec.node_name),
            manual: self.policy.manual,
            boot_before: boot.as_str().to_owned(),
            at: now,
            deadline: deadline_of(now, &self.policy),
        };
        if !self.take_place(object, &intent) {
            return Ok(Next::Again);
        }
        crash::point("janitor.before-intent");
        let (store, fencing) = (&self.context.store, self.context.fencing);
        let stored = store.state_put(&intent.key(), intent.render(), fencing);
        if let Err(error) = stored.await {
            // It may be stored: as nothing is sent, the next look stores it anew, or a next process
            // takes it for sent.
            self.intents().remove(&intent.uid);
            return Err(error.into());
        }
        self.count_under_way();
        self.memory
            .change(key, &intent.uid, |known| known.unsent = connection);
        Ok(Next::Again)
    }

    fn note_down(&self, object: &RebootNode, error: &NotReached) {
        let now = Timestamp::now();
        let until = {
            let mut down = self.down();
            let of = &mut down[usize::from(object.spec.force)];
            // Of many nodes that try at once only the first makes the pause longer.
            let pause = match *of {
                Some(known) if known.until > now => known.pause,
                Some(known) => (known.pause * 2).min(LONGEST_PAUSE),
                None => FIRST_PAUSE,
            };
            let until = later(now, facts::signed(pause));
            *of = Some(Down { until, pause });
            until
        };
        self.count_signal("unreachable");
        warn!(
            code = error.code(),
            why = %error,
            object = object.metadata.name,
            node = object.spec.node_name,
            %until,
            "a reboot waits for its provider"
        );
    }

    async fn send(
        &self,
        key: &NodeName,
        object: &RebootNode,
        now: Timestamp,
    ) -> Result<Next, TurnError> {
        if !self.leadership.may_do_irreversible() {
            self.workers.wake_at(key, later(now, LEAD_LOOK));
            return Ok(Next::Done);
        }
        let (uid, node) = (&object.metadata.uid, object.spec.node_name.as_str());
        let unsent = self.memory.change(key, uid, |known| known.unsent.take());
        // From here on the call may have been made.
        let Some(connection) = unsent else {
            return Ok(Next::Again);
        };
        let incident = object.metadata.annotations.get(names::INCIDENT.text);
        info!(
            object = object.metadata.name,
            node,
            force = object.spec.force,
            incident,
            "the reboot signal is sent"
        );
        self.count("reboot", "started", object);
        crash::point("janitor.before-send");
        let answer = self.provider.signal(connection, node).await;
        crash::point("janitor.after-send");
        match &answer {
            Answer::Sent { request } => {
                self.count_signal("sent");
                info!(
                    object = object.metadata.name,
                    node, request, "the reboot signal is taken"
                );
            }
            Answer::Refused(why) => {
                self.count_signal("refused");
                warn!(
                    code = "signal_refused",
                    object = object.metadata.name,
                    node,
                    why,
                    "the provider refuses the reboot; check its permissions and the node's provider id"
                );
            }
            Answer::Lost(why) => {
                self.count_signal("lost");
                warn!(
                    code = "signal_lost",
                    object = object.metadata.name,
                    node,
                    why,
                    "nobody knows whether the provider took the reboot signal: it is not sent again, \
                     and the node is watched until the deadline"
                );
            }
            Answer::Done | Answer::NotDone | Answer::NotAsked(_) => {}
        }
        self.memory
            .change(key, uid, |known| known.answer = Some(answer));
        Ok(Next::Again)
    }

    async fn ask(
        &self,
        key: &NodeName,
        object: &RebootNode,
        request: &str,
        now: Timestamp,
    ) -> Next {
        let node = object.spec.node_name.as_str();
        let force = object.spec.force;
        let answer = self.provider.ask(force, node, request).await;
        if let Answer::NotAsked(why) = &answer {
            warn!(
                code = "provider_not_asked",
                object = object.metadata.name,
                node,
                why,
                "the provider does not say whether a reboot is done; asked again"
            );
        }
        self.memory.change(key, &object.metadata.uid, |known| {
            (known.answer, known.asked_at) = (Some(answer), Some(now));
        });
        Next::Again
    }

    async fn write(
        &self,
        object: &RebootNode,
        change: &StatusChange,
        now: Timestamp,
    ) -> Result<Next, TurnError> {
        let deadline = self.deadline()?;
        let name = &object.metadata.name;
        let patch = status::patch(object, change, now);
        let call = Call {
            act: format!("write of the status of RebootNode {name}"),
            path: format!(
                "{PATH}/{name}/status?fieldManager={}",
                names::FIELD_MANAGER.text
            ),
            write: Some((Write::RepairStatus, &patch)),
            accept: "application/json",
        };
        match self.context.kube.call(&call, deadline).await {
            Ok(body) => self.saw(&body),
            // Gone: the watch says so, and what was sent is followed without it.
            Err(CallError::NotFound { .. }) => return Ok(Next::Done),
            Err(error) => return Err(error.into()),
        }
        if change.manual {
            self.count("reboot", "started", object);
        }
        if change.completed_at.is_some() {
            self.ended(object, change, now);
        }
        Ok(Next::Again)
    }

    /// Takes the answer to a write in: the watch may lag behind.
    pub(super) fn saw(&self, body: &[u8]) {
        if let Ok(object) = serde_json::from_slice::<RebootNode>(body) {
            self.context.reboots.put_if_newer(object);
        }
    }

    fn ended(&self, object: &RebootNode, change: &StatusChange, now: Timestamp) {
        let ready = change.node_ready.as_ref();
        let succeeded = ready.is_some_and(|ready| ready.status == Some(true));
        let (reason, message) = ready.map_or(("", ""), |r| (r.reason, r.message.as_str()));
        let node = object.spec.node_name.as_str();
        self.count(
            "reboot",
            if succeeded { "succeeded" } else { "failed" },
            object,
        );
        if succeeded {
            let took = now.duration_since(facts::created_at(object, now));
            let action_type = "reboot".to_owned();
            let mttr = &self.context.metrics.janitor.mttr;
            mttr.get_or_create(&ActionTypeLabel { action_type })
                .observe(took.as_secs_f64());
            info!(object = object.metadata.name, node, "a node was rebooted");
        } else {
            warn!(
                code = "reboot_failed",
                object = object.metadata.name,
                node,
                reason,
                message,
                "a reboot ended without success"
            );
        }
    }

    fn count(&self, action_type: &str, status: &str, object: &RebootNode) {
        // A person's object may name anything, which must not make series without end.
        let node = NodeName::new(&object.spec.node_name).ok();
        let node = node.filter(|node| self.context.nodes.get(node).is_some());
        let label = JanitorActionLabel {
            action_type: action_type.to_owned(),
            status: status.to_owned(),
            node: node
                .map(|node| node.as_str().to_owned())
                .unwrap_or_default(),
        };
        let actions = &self.context.metrics.janitor.actions;
        actions.get_or_create(&label).inc();
    }

    fn count_signal(&self, outcome: &str) {
        let outcome = outcome.to_owned();
        let signals = &self.context.metrics.janitor.signals;
        signals.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub(super) fn count_under_way(&self) {
        let count = i64::try_from(self.intents().len()).unwrap_or(i64::MAX);
        self.context.metrics.janitor.under_way.set(count);
    }
}
