//! Follows the audit trail: core/v1 Events for nodes that the quarantine withholds, for the trip of a
//! breaker, for drains that failed or may not begin, and for repairs that failed or need a person. They are written as those of health events are.

use std::collections::BTreeMap;
use std::time::Duration;

use decide::connector::{RepairStep, Step, StepOf, Trip, step_posts};
use event_store::{StoredTransition, TransitionsOf};
use jiff::Timestamp;
use serde::Deserialize;
use tracing::warn;

use super::events::{FIRST_PAUSE, Follower, LONGEST_PAUSE, OLDEST, Said};
use crate::kubernetes::jittered;

/// Steps taken at a time.
const PAGE: usize = 50;
/// Between two pages that made Events: where a thousand nodes are withheld at once, their cordons
/// and recoveries come first.
const PACE: Duration = Duration::from_secs(1);
/// Steps before the start that are looked at again, in case their Events were not written.
const BACK: u64 = 500;

/// What of a cause is looked at; the quarantine wrote it.
#[derive(Debug, Default, Deserialize)]
struct Cause {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    pool: String,
    #[serde(default)]
    trip: Option<Tripped>,
    #[serde(default)]
    repair_left: Option<String>,
    #[serde(default)]
    marks_removed: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Tripped {
    bound: String,
    rule: String,
    check: String,
    share: u64,
    counted: u64,
}

impl Follower {
    /// Follows until the future is dropped.
    pub(super) async fn run_steps(&self) {
        let store = &self.context.store;
        let last = store.stats().map(|stats| stats.last_transition);
        let mut position = last.unwrap_or_default().saturating_sub(BACK);
        let mut pause = FIRST_PAUSE;
        loop {
            match self.page_of_steps(position).await {
                Ok(Some((next, wrote))) => {
                    position = next;
                    pause = FIRST_PAUSE;
                    if wrote {
                        tokio::time::sleep(PACE).await;
                    }
                }
                Ok(None) => self.more_steps.notified().await,
                Err(why) => {
                    warn!(
                        position,
                        why, "Events of withheld nodes are not written; tried again"
                    );
                    tokio::time::sleep(jittered(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// One page: where the next begins, and whether it made Events. None if there is nothing.
    async fn page_of_steps(&self, after: u64) -> Result<Option<(u64, bool)>, String> {
        let store = &self.context.store;
        let page = store
            .transitions(TransitionsOf::All, after, PAGE)
            .map_err(|error| error.to_string())?;
        let Some(last) = page.last().map(|step| step.seq) else {
            return Ok(None);
        };
        let mut said = BTreeMap::new();
        let now = Timestamp::now();
        for step in page.iter().filter(|s| now.duration_since(s.at) < OLDEST) {
            take(step, &mut said);
        }
        let wrote = !said.is_empty();
        self.write_all(said).await?;
        Ok(Some((last, wrote)))
    }
}

fn take(step: &StoredTransition, said: &mut BTreeMap<decide::connector::AggregationKey, Said>) {
    let cause: Cause = serde_json::from_str(&step.cause).unwrap_or_default();
    let trip = cause.trip.as_ref().map(|trip| Trip {
        pool: &cause.pool,
        bound: &trip.bound,
        rule: &trip.rule,
        check: &trip.check,
        share: trip.share,
        counted: trip.counted,
    });
    let posts = step_posts(&Step {
        node: step.node.as_str(),
        module: module(step),
        withheld: step.to == "Withheld",
        reason: &cause.reason,
        text: &cause.text,
        trip,
        repair_left: cause.repair_left.as_deref(),
        marks_removed: cause.marks_removed.as_deref(),
        at: step.at,
    });
    for post in posts {
        Said::add(said, post, step.seq);
    }
}

fn module(step: &StoredTransition) -> StepOf {
    match step.module.as_str() {
        "quarantine" => StepOf::Quarantine,
        "drain" => StepOf::Drain {
            failed: step.to == "Failed",
        },
        "remediation" => StepOf::Repair(match step.to.as_str() {
            "Failed" => RepairStep::Failed,
            "NeedsOperator" => RepairStep::NeedsOperator,
            _ => RepairStep::Quiet,
        }),
        _ => StepOf::Other,
    }
}

#[cfg(test)]
mod tests {
    use health_event::NodeName;
    use health_event::incident::IncidentId;

    use super::*;

    #[test]
    fn a_step_that_tripped_the_breaker_makes_two_events_and_one_without_a_cause_none() {
        let mut step = StoredTransition {
            seq: 7,
            incident: IncidentId::new("01ARZ3NDEKTSV4RRFFQ69G5FAV").unwrap(),
            node: NodeName::new("gpu-1").unwrap(),
            version: 1,
            at: Timestamp::UNIX_EPOCH,
            module: "quarantine".to_owned(),
            from: String::new(),
            to: "Withheld".to_owned(),
            cause: r#"{"reason":"breaker_withholds","text":"t","pool":"gpu","trip":{"since":
                "2026-01-02T03:04:05Z","bound":"level","rule":"r","check":"c","share":1,
                "counted":2}}"#
                .to_owned(),
        };
        let mut said = BTreeMap::new();
        take(&step, &mut said);
        step.seq = 8;
        take(&step, &mut said);
        let all: Vec<_> = said
            .values()
            .map(|s| (s.post.reason.as_str(), s.seqs.clone()))
            .collect();
        let want = ["BreakerTripped", "QuarantineWithheld"].map(|reason| (reason, vec![7, 8]));
        assert_eq!(all, want);
        said.clear();
        step.cause = "no JSON".to_owned();
        take(&step, &mut said);
        assert!(said.is_empty());
    }
}
