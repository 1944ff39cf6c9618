//! The module while it is switched off: what an earlier life left under way is looked at until the
//! node tells how it ended. Nothing is opened, written or released; without such an incident
//! nothing runs.

use std::time::Duration;

use decide::rules::RuleSets;
use event_store::{EventStore, ReadError};
use health_event::NodeName;
use health_event::incident::QuarantineStatus;
use jiff::Timestamp;

use super::apply::Apply;
use super::breaker::Breaker;
use super::run::QuarantineError;
use super::work::Module;
use super::{other, settings, startup};
use crate::context::Context;
use crate::kubernetes::{Program, Reference};
use crate::lease::Leadership;
use crate::workers::Workers;

/// Between looks while a node is to be taken out, or not: one is enough, if it can be read.
const LOOK: Duration = Duration::from_secs(1);
/// Between looks while only releases are left: one that was begun may be late, and only the node
/// tells.
const LATE: Duration = Duration::from_secs(30);

/// Looks until nothing is under way, or until the order to stop.
///
/// # Errors
/// [`QuarantineError`]; the process then ends.
pub async fn settle(context: Context, leadership: Leadership) -> Result<(), QuarantineError> {
    let start = |error: &dyn std::fmt::Display| QuarantineError::Start(error.to_string());
    startup::note_off(&context).await.map_err(|e| start(&e))?;
    other::forget(&context).await.map_err(|e| start(&e))?;
    if !under_way(&context.store).map_err(|e| start(&e))?.is_empty() {
        let stop = context.stop.clone();
        tokio::select! {
            () = stop.requested() => {}
            looked = look(context.clone(), leadership) => looked?,
        }
    }
    context.stop.requested().await;
    Ok(())
}

async fn look(context: Context, leadership: Leadership) -> Result<(), QuarantineError> {
    context.nodes.synced().await;
    let start = |error: &dyn std::fmt::Display| QuarantineError::Start(error.to_string());
    let config = &context.config.quarantine;
    let pools: Vec<String> = context.nodes.pool_names().map(str::to_owned).collect();
    let breaker = settings::bounds(config);
    let breaker = Breaker::load(&context.store, breaker, &pools, Timestamp::now());
    let rules = RuleSets::compile(&[]).expect("no rule sets are valid rule sets");
    let apply = Apply {
        kube: context.kube.clone(),
        leadership,
        label_prefix: config.label_prefix.clone(),
        mode: settings::mode(config),
        reference: Reference::new(Program::FaultQuarantine),
    };
    let module = Module::new(
        context.clone(),
        apply,
        settings::policy(&context.config, None),
        rules,
        breaker.map_err(|e| start(&e))?,
        Workers::new(),
    );
    loop {
        let open = under_way(&context.store).map_err(|e| start(&e))?;
        for (node, _) in &open {
            module.work(node).await;
        }
        let open = under_way(&context.store).map_err(|e| start(&e))?;
        if open.is_empty() {
            return Ok(());
        }
        let applies = open.iter().any(|(_, releases)| !releases);
        tokio::time::sleep(if applies { LOOK } else { LATE }).await;
    }
}

/// Nodes with a write of unknown outcome, and whether it is a release.
fn under_way(store: &EventStore) -> Result<Vec<(NodeName, bool)>, ReadError> {
    let open = store.open_incidents()?.into_iter();
    let under_way = open.filter_map(|incident| match incident.quarantine {
        QuarantineStatus::Applying => Some((incident.node, false)),
        QuarantineStatus::Releasing(_) => Some((incident.node, true)),
        QuarantineStatus::Withheld(_)
        | QuarantineStatus::Observed
        | QuarantineStatus::Quarantined
        | QuarantineStatus::Closed(_) => None,
    });
    Ok(under_way.collect())
}
