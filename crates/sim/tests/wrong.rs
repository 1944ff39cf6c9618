//! Rules of the loop that are broken on purpose: each is caught by the promise that it breaks, so that
//! no promise holds because nothing can break it.

use decide::drain;
use decide::remediation;
use sim::whole::{Broken, Leaves, Setup, What, Wrong, never};

use crate::looped::{ENDS, caught, says};
use What::*;

/// What must happen, what goes wrong, what is broken by it.
type Row = (&'static [(What, u8)], Wrong, Broken);

const ROWS: [Row; 24] = [
    (&[(Break, 1)], Wrong::EvictsFirst, Broken::EvictionUnstored),
    (
        &[(Break, 1), (Uncordon, 1)],
        Wrong::StaleEviction,
        Broken::EvictionWithoutIncident,
    ),
    (&[(Break, 1)], Wrong::OrdersFirst, Broken::OrderUnstored),
    (
        &[(Break, 1), (Uncordon, 1)],
        Wrong::StaleOrder,
        Broken::OrderWithoutIncident,
    ),
    (&[(Break, 1)], Wrong::SendsFirst, Broken::SignalUnstored),
    (
        &[(Break, 1), (Crash, 1)],
        Wrong::SendsAgain,
        Broken::SignalTwice,
    ),
    (
        &[(Break, 1), (Misbehave, 1)],
        Wrong::LostIsRefused,
        Broken::TwoReboots,
    ),
    (
        &[(Break, 1), (AskReboot, 1)],
        Wrong::NoLock,
        Broken::SignalWithoutLock,
    ),
    (
        &[(Break, 1), (AskReboot, 1)],
        Wrong::SharesLock,
        Broken::TwoRepairs,
    ),
    (
        &[(Break, 1), (Crash, 1)],
        Wrong::CrashUnlocks,
        Broken::RunsUnlocked,
    ),
    (
        &[(Break, 1), (Delete, 1), (Register, 1)],
        Wrong::IgnoresOrphans,
        Broken::TwoReboots,
    ),
    (
        &[(Break, 1), (AskReboot, 1)],
        Wrong::IgnoresBoot,
        Broken::RebootedAlready,
    ),
    (
        &[(Break, 1), (Uncordon, 1)],
        Wrong::IgnoresRecall,
        Broken::SignalWithoutIncident,
    ),
    (
        &[(Break, 1), (Heal, 1)],
        Wrong::ReleasesDuringRepair,
        Broken::ReleasedDuringRepair,
    ),
    (
        &[(Break, 1), (PodComes, 1)],
        Wrong::RebootsOverPods,
        Broken::SignalOverPods,
    ),
    (
        &[(Break, 1), (Heal, 1), (AskReboot, 1)],
        Wrong::ReleasesDuringOthersRepair,
        Broken::ReleasedDuringRepair,
    ),
    (
        &[(Break, 1)],
        Wrong::ReleasesWithFault,
        Broken::ReleasedWithFault,
    ),
    (
        &[(Break, 1), (Crash, 1)],
        Wrong::UnknownIsEmpty,
        Broken::DrainedUnknown,
    ),
    (&[(Break, 1)], Wrong::OverlooksPods, Broken::DrainedWithPods),
    (
        &[(Break, 1), (Pause, 1)],
        Wrong::DrainIgnoresPause,
        Broken::BegunWhilePaused,
    ),
    (
        &[(Break, 1), (Pause, 1)],
        Wrong::OrderIgnoresPause,
        Broken::BegunWhilePaused,
    ),
    (
        &[(Break, 1), (Pause, 1)],
        Wrong::JanitorIgnoresPause,
        Broken::BegunWhilePaused,
    ),
    (
        &[(Break, 1), (Uncordon, 1)],
        Wrong::ForgetsHold,
        Broken::PersonOverruled,
    ),
    (
        &[(Break, 1)],
        Wrong::ReadyIsEnough,
        Broken::SucceededInSameBoot,
    ),
];

#[test]
fn shells_and_decisions_that_break_a_rule_are_caught() {
    for (limits, wrong, broken) in ROWS {
        let setup = Setup::new(limits).with_pods(&[Leaves::Evicted]);
        caught(setup.breaking(wrong), says(broken));
    }
}

#[test]
fn a_stage_that_acts_in_dry_run_is_caught() {
    let mut setup = Setup::new(&[(Break, 1)]).with_pods(&[Leaves::Evicted]);
    setup.drain.mode = drain::Mode::DryRun;
    let setup = setup.breaking(Wrong::DrainIgnoresDryRun);
    caught(setup, says(Broken::ActedInDryRun));
    let mut setup = Setup::new(&[(Break, 1)]);
    setup.remediation.mode = remediation::Mode::DryRun;
    let setup = setup.breaking(Wrong::OrderIgnoresDryRun);
    caught(setup, says(Broken::ActedInDryRun));
}

#[test]
fn what_has_no_end_is_caught() {
    // A provider that takes a signal and does nothing, and no deadline that ends it.
    let mut setup = Setup::new(&[(Break, 1), (Misbehave, 1)]);
    setup.janitor.timeout = never();
    for executor in setup.remediation.executors.values_mut() {
        executor.deadline = never();
    }
    caught(setup, ENDS);
    let setup = Setup::new(&[(Break, 1)]);
    caught(setup.breaking(Wrong::KeepsLock), ENDS);
    // All attempts are used up, until one counts no more.
    let mut setup = Setup::new(&[(Break, 2)]);
    setup.remediation.max_attempts = 1;
    caught(setup.breaking(Wrong::WakesNobody), ENDS);
}

#[test]
fn a_ladder_without_an_end_is_caught() {
    // The window forgets attempts at once.
    let mut setup = Setup::new(&[(Break, 3), (Tick, 1)]);
    setup.remediation.window = jiff::SignedDuration::from_secs(1);
    let setup = setup.breaking(Wrong::CountsByWindow);
    caught(setup, says(Broken::TooManyAttempts));
}

#[test]
fn a_repair_over_pods_is_caught() {
    // Pods that came after the first reboot, and while an order waited.
    let setup = Setup::new(&[(Break, 2), (PodComes, 1)]);
    let setup = setup.breaking(Wrong::LooksOnce);
    caught(setup, says(Broken::RepairOverPods));
    let setup = Setup::new(&[(Break, 1), (PodComes, 1), (Pause, 2), (Tick, 1)]);
    let setup = setup.breaking(Wrong::FollowsPlannedAlone);
    caught(setup, says(Broken::RepairOverPods));
}

#[test]
fn what_a_boot_covers_and_nobody_knows_any_more_is_caught() {
    let mut setup = Setup::new(&[(Break, 1), (SelfReboot, 1)]);
    setup.agent = false;
    caught(setup.breaking(Wrong::ForgetsCovered), ENDS);
}

#[test]
fn a_recovery_without_the_agents_word_is_caught() {
    // What is said to be over before the agent has looked.
    let setup = Setup::new(&[(Break, 1), (Heal, 1)]).breaking(Wrong::ReleasesUnsettled);
    caught(setup, says(Broken::ReleasedUnsettled));
}
