//! Rules that are broken on purpose, each of which must be caught.

/// What a wrong decision does not look at, or what a wrong shell does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// Pods are evicted before the drain is stored.
    EvictsFirst,
    /// Evictions go out whatever has become of the incident.
    StaleEviction,
    /// The object is made before the order is stored.
    OrdersFirst,
    /// Objects are made whatever has become of the incident.
    StaleOrder,
    /// The signal is sent before its intent is stored.
    SendsFirst,
    /// A signal whose answer is not known is sent again.
    SendsAgain,
    /// An answer that was lost is taken for a refusal.
    LostIsRefused,
    /// Nobody takes the node's lock.
    NoLock,
    /// The node's lock goes to whoever sends.
    SharesLock,
    /// A new process takes the locks of the old one for nobody's.
    CrashUnlocks,
    /// Nobody looks whether a signal may be on its way whose object is gone.
    IgnoresOrphans,
    /// Nobody looks whether the machine has booted since the order.
    IgnoresBoot,
    /// What was ordered is carried out though its incident is over.
    IgnoresRecall,
    /// A recovery does not look at the repair.
    ReleasesDuringRepair,
    /// A recovery looks at the reboot alone that its incident waits for.
    ReleasesDuringOthersRepair,
    /// Nobody looks whether pods came while an order waited.
    RebootsOverPods,
    /// Pods are followed no more once a repair is ordered.
    FollowsPlannedAlone,
    /// A node that was empty once is taken for empty before each attempt.
    LooksOnce,
    /// Attempts count in their window alone, also for their incident.
    CountsByWindow,
    /// The effect of the last attempt alone counts.
    ForgetsEffect,
    /// What is covered before anything was planned is forgotten.
    ForgetsCovered,
    /// A recovery does not look at the faults.
    ReleasesWithFault,
    /// A recovery does not wait for the agent.
    ReleasesUnsettled,
    /// Pods that are not known are taken for none.
    UnknownIsEmpty,
    /// The drain overlooks every pod.
    OverlooksPods,
    /// The drain does not look at the pause.
    DrainIgnoresPause,
    /// The remediation does not look at the pause.
    OrderIgnoresPause,
    /// The janitor does not look at the pause.
    JanitorIgnoresPause,
    /// The drain acts in dry run.
    DrainIgnoresDryRun,
    /// The remediation acts in dry run.
    OrderIgnoresDryRun,
    /// A person's uncordon is forgotten.
    ForgetsHold,
    /// A node that is Ready is taken for one that has rebooted.
    ReadyIsEnough,
    /// The lock of an object that is over is never given back.
    KeepsLock,
    /// Nobody counts how many reboots run.
    IgnoresPlaces,
    /// The janitor takes the controller's own node for any other.
    OwnNodeIsAny,
    /// The place of a reboot that is over is never given back.
    KeepsIntent,
    /// The drain of the controller's own node does not wait for others.
    DrainsOwnNodeAtOnce,
    /// A repair of the node is ordered on which the controller runs.
    OrdersOnOwnNode,
    /// The breaker is not asked.
    IgnoresBreaker,
    /// The breaker is not told that a node is given back.
    KeepsLevel,
    /// Pods are moved off a node that the breaker withholds.
    DrainsWithheld,
    /// The remediation does not say when it is to be looked at again.
    WakesNobody,
    /// What the watch does not show (yet) is taken for gone.
    UnshownIsGone,
}
