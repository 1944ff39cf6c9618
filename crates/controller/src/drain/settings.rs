//! From the configuration to what decisions are bound to.

use std::collections::BTreeSet;

use decide::drain::{Mode, Policy};
use health_event::Sender;
use jiff::{SignedDuration, Timestamp};

use crate::config::{DrainConfig, IngestConfig, ServiceAccount};

/// How far the module may act by its configuration.
pub(super) fn mode(config: &DrainConfig) -> Mode {
    if !config.enabled {
        Mode::Off
    } else if config.dry_run {
        Mode::DryRun
    } else {
        Mode::Enforce
    }
}

/// Who may force a drain: those who may force a quarantine.
pub(super) fn forcing(config: &IngestConfig) -> BTreeSet<Sender> {
    let accounts = config.override_identities.iter();
    accounts.map(ServiceAccount::sender).collect()
}

pub(super) fn policy(config: &DrainConfig, first_action_until: Option<Timestamp>) -> Policy {
    Policy {
        mode: mode(config),
        namespaces: config.namespaces.clone(),
        grace: Some(signed(config.grace)),
        immediate_deadline: signed(config.immediate_deadline),
        delete_after: signed(config.delete_after),
        completion_deadline: config.completion_deadline.map(signed),
        at_deadline: config.at_deadline,
        stuck_timeout: signed(config.stuck_timeout),
        not_ready_timeout: signed(config.not_ready_timeout),
        dead_kubelet_timeout: signed(config.dead_kubelet_timeout),
        gpu_pods_only: config.gpu_pods_only,
        first_action_until,
    }
}

fn signed(span: std::time::Duration) -> SignedDuration {
    SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX)
}
