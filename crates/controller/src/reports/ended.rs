//! Ends that no sender tells of: a reboot, for checks that are listed, and a check that is no more.

use std::collections::BTreeSet;

use event_store::{EventStore, ReadError, StoredFault, WriteError};
use health_event::{BootId, Boots, CloseCause, FaultId, NodeName, Sender};
use jiff::Timestamp;
use tracing::info;

use super::compare::is_told_later;
use crate::config::CheckRef;

/// What a settled report proves: everything up to its number is stored, and each detector's first
/// pass of this boot is done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settled<'a> {
    pub(super) node: &'a NodeName,
    pub(super) machine: &'a str,
    pub(super) boot: &'a BootId,
    pub(super) spool: &'a str,
    pub(super) last_number: u64,
}

/// Which of a node's open faults ended with a reboot: they came over its agent from other senders
/// than its detectors, their check is listed, and their newest event is of this machine and of an
/// earlier boot.
fn ended_by_reboot(
    open: &[StoredFault],
    report: &Settled<'_>,
    boots: &Boots,
    listed: &BTreeSet<CheckRef>,
) -> Vec<FaultId> {
    // A report that was under way while the machine booted again proves nothing any more.
    if boots.present() != Some(report.boot) {
        return Vec::new();
    }
    let agent = Sender::agent(report.node.as_str());
    let is_listed = |fault: &StoredFault| {
        let scope = &fault.id.scope;
        listed
            .iter()
            .any(|c| c.agent == scope.agent && c.check == scope.check_name)
    };
    let of_earlier_boot = |fault: &StoredFault| {
        fault.order.as_ref().is_some_and(|order| {
            !order.boot.is_unknown()
                && order.boot != *report.boot
                && !is_told_later(order, report.spool, report.last_number)
        })
    };
    open.iter()
        .filter(|fault| fault.sender == agent && !fault.asserted_by_agent)
        .filter(|fault| fault.machine == report.machine)
        .filter(|fault| is_listed(fault) && of_earlier_boot(fault))
        .map(|fault| fault.id.clone())
        .collect()
}

/// Closes what ended with a reboot.
pub(super) async fn close_rebooted(
    store: &EventStore,
    report: &Settled<'_>,
    listed: &BTreeSet<CheckRef>,
    now: Timestamp,
) -> Result<(), EndError> {
    let mut open = store.open_faults(report.node)?.to_vec();
    open.extend(store.observed(report.node)?);
    if open.is_empty() {
        return Ok(());
    }
    let machine = store.machine(report.machine)?.unwrap_or_default();
    for id in ended_by_reboot(&open, report, &machine.boots, listed) {
        if store.close_fault(&id, CloseCause::Reboot, now).await? {
            info!(
                node = %report.node,
                check = id.scope.check_name,
                device = %id.key.device,
                code = id.key.code,
                "fault closed: the node rebooted (ingest.reboot_clears)"
            );
        }
    }
    Ok(())
}

/// Closes the open faults of checks that are no more, once, at start.
///
/// # Errors
/// The store can't be read or written.
pub async fn close_retired(
    store: &EventStore,
    retired: &[CheckRef],
    now: Timestamp,
) -> Result<(), EndError> {
    for CheckRef { agent, check } in retired {
        let open = store.open_faults_of_check(agent, check)?;
        for fault in &open {
            store
                .close_fault(&fault.id, CloseCause::RetiredCheck, now)
                .await?;
        }
        info!(
            agent,
            check,
            closed = open.len(),
            "check retired (ingest.retired_checks)"
        );
    }
    Ok(())
}

/// Why faults could not be closed.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The store can't be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The store can't be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl EndError {
    /// Static name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read(error) => error.code(),
            Self::Write(error) => error.code(),
        }
    }
}

#[cfg(test)]
#[path = "ended_tests.rs"]
mod tests;
