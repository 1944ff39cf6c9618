//! From the configuration to what decisions are bound to.

use decide::remediation::{Executor, Mode, Policy};
use health_event::incident::Rung;
use jiff::{SignedDuration, Timestamp};

use crate::config::{Config, RemediationConfig};

/// How far the module may act by its configuration.
pub(super) fn mode(config: &RemediationConfig) -> Mode {
    if !config.enabled {
        Mode::Off
    } else if config.dry_run {
        Mode::DryRun
    } else {
        Mode::Enforce
    }
}

pub(super) fn policy(config: &Config, first_action_until: Option<Timestamp>) -> Policy {
    // Whether another's janitor lets orders wait nobody knows.
    let queues = config
        .janitor
        .enabled
        .then_some(config.janitor.queue_timeout);
    let queue_timeout = signed(queues.unwrap_or_default());
    let config = &config.remediation;
    let executors = config.actions.iter().map(|(name, action)| {
        let executor = Executor {
            // The one kind of this version is RebootNode.
            rung: Rung::Reboot,
            deadline: signed(action.deadline),
        };
        (name.clone(), executor)
    });
    Policy {
        executors: executors.collect(),
        ladder: config.ladder.clone(),
        max_attempts: config.max_attempts,
        window: signed(config.attempts_window),
        settle_timeout: signed(config.settle_timeout),
        queue_timeout,
        mode: mode(config),
        first_action_until,
    }
}

/// Whether faults that want the node empty keep a repair until it is drained. Where the drain does
/// not act they do as well, or pods would be killed that nobody moved; unless that was asked for.
pub(super) fn drain_counts(config: &Config) -> bool {
    let drains = config.drain.enabled && !config.drain.dry_run;
    drains || !config.remediation.without_drain
}

pub(super) fn signed(span: std::time::Duration) -> SignedDuration {
    SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_that_does_not_act_keeps_repairs_unless_they_may_go_without_it() {
        for (text, counts) in [
            ("", true),
            ("profile = 'drain'", true),
            ("profile = 'remediate'", true),
            ("[remediation]\nwithout_drain = true", false),
            (
                "profile = 'remediate'\n[remediation]\nwithout_drain = true",
                true,
            ),
            (
                "profile = 'remediate'\n[drain]\ndry_run = true\n[remediation]\nwithout_drain = true",
                false,
            ),
        ] {
            assert_eq!(
                drain_counts(&Config::parse(text).unwrap()),
                counts,
                "{text}"
            );
        }
    }
}
