//! What becomes of a repair when its incident is over.

use health_event::incident::{Repair, RepairStatus};
use jiff::Timestamp;

/// The repair of an incident that is given back or closed at `now`: what was not at its end is
/// cancelled. The attempt stays as it is, for an order that may have its effect still is no failure
/// and no success: its object, if it can't be recalled, keeps lock and deadline.
pub fn ended(repair: Option<&Repair>, now: Timestamp) -> Option<Repair> {
    let repair = repair?;
    Some(match repair.status {
        RepairStatus::Planned { .. }
        | RepairStatus::Requested
        | RepairStatus::Running
        | RepairStatus::Unknown => Repair {
            status: RepairStatus::Cancelled,
            since: now,
            attempt: repair.attempt.clone(),
        },
        RepairStatus::Succeeded
        | RepairStatus::Failed(_)
        | RepairStatus::NeedsOperator(_)
        | RepairStatus::Cancelled => repair.clone(),
    })
}

#[cfg(test)]
mod tests {
    use health_event::BootId;
    use health_event::incident::{Attempt, Effect, OperatorReason, RepairFailure, Rung};

    use super::*;
    use crate::kit::at;

    #[test]
    fn what_is_not_at_its_end_is_cancelled_with_its_attempt() {
        let attempt = Attempt {
            number: 2,
            rung: Rung::Reboot,
            action: "RESTART_BM".to_owned(),
            object: "maintenance-n1-x-2".to_owned(),
            force: true,
            boot_before: BootId::new("b1"),
            requested_at: at(1),
            deadline: at(31),
            not_begun_before: 0,
            seen_before: None,
            effect: Effect::Pending,
        };
        let repair = |status| Repair {
            status,
            since: at(1),
            attempt: Some(attempt.clone()),
        };
        for status in [
            RepairStatus::Planned { rung: Rung::Reset },
            RepairStatus::Requested,
            RepairStatus::Running,
            RepairStatus::Unknown,
        ] {
            let after = ended(Some(&repair(status)), at(5)).unwrap();
            assert_eq!(after.status, RepairStatus::Cancelled);
            assert_eq!(
                (after.since, after.attempt.as_ref()),
                (at(5), Some(&attempt))
            );
        }
        for status in [
            RepairStatus::Succeeded,
            RepairStatus::Failed(RepairFailure::Deadline),
            RepairStatus::NeedsOperator(OperatorReason::StillOpen),
            RepairStatus::Cancelled,
        ] {
            let before = repair(status);
            assert_eq!(ended(Some(&before), at(5)), Some(before));
        }
        assert_eq!(ended(None, at(5)), None);
    }
}
