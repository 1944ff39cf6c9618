//! XID 154 and its cause: one problem, told by two lines.
//!
//! The driver writes an error (119) and, right before or after it, the recovery that the GPU needs
//! now (154). [`attach`] decides what is said of such a line, given what is open on its GPU.
//!
//! # Guarantees
//! - A 154 whose demand an open cause of the same GPU makes already is only stored, and names the
//!   cause: it neither opens nor escalates.
//! - One that came before its cause stays open and loses its action once the cause is there.
//! - A demand that no open cause makes is said as the driver states it, also after its cause: what
//!   a line states is never weakened.
//! - Of one GPU there is one 154, the newest.
//!
//! # What it does not do
//! It does not tell causes by their numbers or by time: a cause is an open XID of this GPU that
//! asks for at least as much, so that being wrong about which one it was can lose nothing. The
//! caller gives only what lines of the present boot said, because a fault of an earlier one may be
//! about to close.

use health_event::{HealthEvent, ProcessingStrategy, RecommendedAction, checks, keys};

/// The XID that states the recovery that a GPU needs.
pub const RECOVERY_ACTION: &str = "154";

/// An open fault of another XID on the GPU of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Its code.
    pub code: String,
    /// Whether it is fatal.
    pub fatal: bool,
    /// What it asks for.
    pub action: RecommendedAction,
}

/// What is open on one GPU, said in the present boot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gpu {
    /// Faults of other XIDs that have effects.
    pub causes: Vec<Cause>,
    /// The last event of each open 154; there is one a strategy at most.
    pub recoveries: Vec<HealthEvent>,
}

impl Gpu {
    fn recovery(&self, strategy: ProcessingStrategy) -> Option<&HealthEvent> {
        self.recoveries.iter().find(|r| r.strategy == strategy)
    }
}

/// Whether what is open on its GPU matters to what is said of this event.
pub fn is_tied(event: &HealthEvent) -> bool {
    event.agent == checks::SYSLOG_AGENT
        && event.check_name == checks::XID
        && event.strategy == ProcessingStrategy::ExecuteRemediation
        && !event.is_healthy
        && event.error_codes.len() == 1
}

/// What is said instead of the event, in this order: the event itself, as it is or as a
/// consequence, and what becomes of a 154 that was said before.
pub fn attach(event: HealthEvent, gpu: &Gpu) -> Vec<HealthEvent> {
    if !is_tied(&event) {
        return vec![event];
    }
    if event.error_codes == [RECOVERY_ACTION] {
        return recovery(event, gpu);
    }
    let restated = gpu
        .recovery(ProcessingStrategy::ExecuteRemediation)
        .filter(|recovery| recovery.recommended_action != RecommendedAction::None)
        .and_then(|recovery| {
            let cause = cause_of(&event);
            covers(&cause, recovery).then(|| {
                let mut restated = without_action(recovery.clone(), &cause);
                restated.generated_at = event.generated_at;
                restated
            })
        });
    std::iter::once(event).chain(restated).collect()
}

fn recovery(mut event: HealthEvent, gpu: &Gpu) -> Vec<HealthEvent> {
    // The gravest: of several that cover it, the one by which the GPU will be repaired.
    let gravest = |cause: &&Cause| (cause.fatal, cause.action.strength());
    let covering = gpu.causes.iter().filter(|cause| covers(cause, &event));
    if let Some(cause) = covering.max_by_key(gravest) {
        let open = gpu.recovery(ProcessingStrategy::ExecuteRemediation);
        if open.is_some() {
            return vec![without_action(event, cause)];
        }
        event.strategy = ProcessingStrategy::StoreOnly;
        follows(&mut event, cause);
        return vec![event];
    }
    let asking = |cause: &&Cause| cause.action != RecommendedAction::None;
    if let Some(cause) = gpu.causes.iter().filter(asking).max_by_key(gravest) {
        follows(&mut event, cause);
    }
    let stored = gpu.recovery(ProcessingStrategy::StoreOnly);
    let replaced = stored.map(|earlier| replaced(earlier, &event));
    replaced.into_iter().chain([event]).collect()
}

fn cause_of(event: &HealthEvent) -> Cause {
    Cause {
        code: event.error_codes.concat(),
        fatal: event.is_fatal,
        action: event.recommended_action,
    }
}

/// Whether everything that the statement asks for is asked for by the cause. What a person has to
/// look at is no repair: it neither covers one nor is covered by one.
fn covers(cause: &Cause, stated: &HealthEvent) -> bool {
    let repairs = is_repair(cause.action) && is_repair(stated.recommended_action);
    let enough = cause.action == stated.recommended_action
        || (repairs && cause.action.strength() >= stated.recommended_action.strength());
    enough && cause.fatal >= stated.is_fatal
}

fn is_repair(action: RecommendedAction) -> bool {
    use RecommendedAction::{ComponentReset, ReplaceVm, RestartBm, RestartVm};
    [ComponentReset, RestartVm, RestartBm, ReplaceVm].contains(&action)
}

fn follows(event: &mut HealthEvent, cause: &Cause) {
    let key = keys::CONSEQUENCE_OF.to_owned();
    event.metadata.insert(key, cause.code.clone());
}

fn without_action(mut event: HealthEvent, cause: &Cause) -> HealthEvent {
    event.id.clear();
    event.is_fatal = false;
    event.recommended_action = RecommendedAction::None;
    follows(&mut event, cause);
    event
}

/// The healthy statement for a 154 that was only stored and that a newer one with effects replaces.
fn replaced(earlier: &HealthEvent, by: &HealthEvent) -> HealthEvent {
    HealthEvent {
        id: String::new(),
        is_healthy: true,
        is_fatal: false,
        recommended_action: RecommendedAction::None,
        message: "Replaced by what the driver states now".to_owned(),
        generated_at: by.generated_at,
        metadata: by.metadata.clone(),
        ..earlier.clone()
    }
}

#[cfg(test)]
mod tests;
