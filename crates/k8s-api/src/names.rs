//! Every label, annotation, taint, finalizer and metadata key that Warden writes or reads on
//! Kubernetes objects, with who writes it, who reads it and where it comes from.
//!
//! This file and `health_event::keys` are the only ones that spell our domain; agents and checks
//! stand in `health_event::checks`, because the node's agent needs them too.

/// What a name is used as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Key of a label.
    Label,
    /// Name of a label without the configurable prefix (`quarantine.label-prefix`).
    PrefixedLabel,
    /// Key of an annotation.
    Annotation,
    /// Key of a taint.
    Taint,
    /// Key of a label or an annotation of an object that is no node.
    ObjectKey,
    /// Key of an event's metadata inside an annotation.
    Metadata,
    /// Name of an object of ours, or of the field manager.
    Object,
}

/// Where a name comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Ours.
    Warden,
    /// NVSentinel's, kept so that its users can move over; the section of its sources.
    Reference(&'static str),
    /// Another program's, which we only read.
    Other(&'static str),
}

/// One name with its history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    /// The text, as it stands on the object.
    pub text: &'static str,
    /// What it is used as.
    pub kind: Kind,
    /// Where it comes from.
    pub origin: Origin,
    /// Who of us writes it; empty if we only read it.
    pub written_by: &'static str,
    /// Who reads it.
    pub read_by: &'static str,
    /// Values that it may have.
    pub values: &'static str,
}

impl Name {
    /// The text.
    pub const fn as_str(&self) -> &'static str {
        self.text
    }

    /// The text behind the configured prefix (a prefix ends with `/`, or is empty).
    pub fn with_prefix(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.text)
    }
}

macro_rules! names {
    ($($(#[$doc:meta])* $id:ident = $text:expr, $kind:ident, $origin:expr,
        written by $written:expr, read by $read:expr, values $values:expr;)*) => {
        $($(#[$doc])* pub const $id: Name = Name {
            text: $text,
            kind: Kind::$kind,
            origin: $origin,
            written_by: $written,
            read_by: $read,
            values: $values,
        };)*
        /// All of them.
        pub const ALL: &[Name] = &[$($id),*];
    };
}

const FQ_9: Origin = Origin::Reference("fault-quarantine: annotations and labels");
const STATE: Origin = Origin::Reference("commons/pkg/statemanager");
const TTL_CLEANUP: Origin = Origin::Reference("janitor: TTL cleanup (ADR-037)");
const EXTERNAL: Origin = Origin::Reference("janitor: ExternalRemediationRequest");

names! {
    // --- Annotations of a node, ours ---
    /// Which incident holds the node: the proof that a mark is ours.
    INCIDENT = "warden.dev/incident", Annotation, Origin::Warden,
        written by "quarantine; on repair objects the incident's id, by remediation",
        read by "quarantine: every write tests it; adoption at start; remediation",
        values "{id, version, nodeUID}, see IncidentMark";
    /// Types of the conditions that we wrote.
    CONDITIONS = "warden.dev/conditions", Annotation, Origin::Warden,
        written by "connector, in the same status patch", read by "connector",
        values "JSON list of types, sorted, see ConditionList";
    /// While it is there nothing new is started on the node.
    PAUSE = "warden.dev/pause", Annotation, Origin::Warden,
        written by "", read by "quarantine, drain", values "anything, also nothing";
    // --- Annotations of a node, the reference's ---
    /// The events that hold the node.
    HEALTH_EVENT = "quarantineHealthEvent", Annotation, FQ_9,
        written by "quarantine", read by "adoption; other programs",
        values "JSON list of events, at most 32 KiB, see health_events";
    /// The taints put on for them.
    APPLIED_TAINTS = "quarantineHealthEventAppliedTaints", Annotation, FQ_9,
        written by "quarantine, only with a taint", read by "adoption; other programs",
        values "JSON list of {key, value, effect, preExisting}";
    /// Whether a cordon was decided.
    IS_CORDONED = "quarantineHealthEventIsCordoned", Annotation, FQ_9,
        written by "quarantine, only with a cordon", read by "adoption; other programs",
        values "True";
    /// Whether someone else had cordoned the node before.
    CORDON_PRE_EXISTING = "quarantineHealthEventCordonPreExisting", Annotation, FQ_9,
        written by "quarantine", read by "adoption; other programs", values "True";
    /// A person uncordoned the node while we held it.
    UNCORDONED_MANUALLY = "quarantinedNodeUncordonedManually", Annotation, FQ_9,
        written by "quarantine; removed by the next quarantine", read by "adoption",
        values "True";
    /// A person removed a taint of ours.
    UNTAINTED_MANUALLY = "quarantinedNodeUntaintedManually", Annotation, FQ_9,
        written by "quarantine; removed by the next quarantine", read by "adoption",
        values "True";
    /// What the reference's remediation did last.
    REMEDIATION_STATE = "latestFaultRemediationState", Annotation,
        Origin::Reference("fault-remediation"),
        written by "quarantine", read by "adoption; other programs",
        values "JSON, see remediation_state";
    // --- Annotations of a repair object ---
    /// How long a repair object is kept.
    TTL = "nvsentinel.nvidia.com/ttl", ObjectKey, TTL_CLEANUP,
        written by "janitor, where it is absent; remediation", read by "janitor",
        values "a span as Go writes it: 336h0m0s";
    /// When it goes.
    EXPIRY = "nvsentinel.nvidia.com/expiry", ObjectKey, TTL_CLEANUP,
        written by "janitor, where it is absent; remediation", read by "janitor",
        values "a time, RFC 3339";
    /// It stays.
    PRESERVE = "nvsentinel.nvidia.com/preserve", ObjectKey, TTL_CLEANUP,
        written by "", read by "janitor", values "true";
    /// Which attempt of its incident a repair object is.
    ATTEMPT = "warden.dev/attempt", ObjectKey, Origin::Warden,
        written by "remediation", read by "remediation, where the store was lost",
        values "a number from 1";
    /// The action that a repair object was ordered for.
    ACTION = "warden.dev/action", ObjectKey, Origin::Warden,
        written by "remediation", read by "remediation, where the store was lost",
        values "its name in the configuration";
    /// Boot of the node when its repair was ordered.
    BOOT_BEFORE = "warden.dev/boot-before", ObjectKey, Origin::Warden,
        written by "remediation", read by "remediation, where the store was lost",
        values "a boot id, or nothing";
    /// Who made a repair object.
    OBJECT_MANAGED_BY = "app.kubernetes.io/managed-by", ObjectKey,
        Origin::Reference("fault-remediation: templates"),
        written by "remediation", read by "people", values "warden";
    // --- Labels of a node ---
    /// Who cordoned.
    CORDON_BY = "cordon-by", PrefixedLabel, FQ_9,
        written by "quarantine, unless cordoned before", read by "people",
        values "Warden, or AGENT-CREATOR where forced";
    /// Why.
    CORDON_REASON = "cordon-reason", PrefixedLabel, FQ_9,
        written by "quarantine, unless cordoned before", read by "people",
        values "names of the rule sets, joined by '-', at most 63 bytes";
    /// When.
    CORDON_TIMESTAMP = "cordon-timestamp", PrefixedLabel, FQ_9,
        written by "quarantine, unless cordoned before", read by "people",
        values "UTC, 2026-01-02T03-04-05Z";
    /// Who uncordoned.
    UNCORDON_BY = "uncordon-by", PrefixedLabel, FQ_9,
        written by "quarantine, at a release that uncordons", read by "people",
        values "as cordon-by";
    /// Why it was cordoned.
    UNCORDON_REASON = "uncordon-reason", PrefixedLabel, FQ_9,
        written by "quarantine, at a release that uncordons", read by "people",
        values "cordon-reason, cut to 55 bytes, and -removed";
    /// When.
    UNCORDON_TIMESTAMP = "uncordon-timestamp", PrefixedLabel, FQ_9,
        written by "quarantine, at a release that uncordons", read by "people",
        values "as cordon-timestamp";
    /// Where a node's way out of and back into service stands.
    STATE_LABEL = "dgxc.nvidia.com/nvsentinel-state", Label, STATE,
        written by "quarantine", read by "other programs",
        values "quarantined, draining, drain-succeeded, drain-failed, remediating, \
                remediation-succeeded, remediation-failed";
    /// Opts a node out of new incidents.
    MANAGED_BY = "k8saas.nvidia.com/ManagedByNVSentinel", Label,
        Origin::Reference("shipped rule sets"),
        written by "", read by "quarantine", values "false opts out";
    /// Says that somebody else repairs the node.
    EXTERNALLY_MANAGED = "nvsentinel.dgxc.nvidia.com/managed", Label, EXTERNAL,
        written by "", read by "quarantine: no release", values "false opts out";
    /// Puts a node into the breaker's pool `gpu`.
    GPU_PRESENT = "nvidia.com/gpu.present", Label, Origin::Other("gpu-feature-discovery"),
        written by "", read by "node cache: pools", values "true";
    /// A control-plane node.
    CONTROL_PLANE = "node-role.kubernetes.io/control-plane", Label,
        Origin::Other("kubeadm"),
        written by "", read by "quarantine: protected", values "anything";
    // --- Taints ---
    /// Somebody else repairs the node.
    EXTERNAL_REMEDIATION = "nvsentinel.dgxc.nvidia.com/external-remediation", Taint, EXTERNAL,
        written by "", read by "quarantine: no release", values "name of the request";
    /// What policy `taint` puts on a node that a co-operating controller uncordoned.
    QUARANTINED_TAINT = "warden.dev/quarantined", Taint, Origin::Warden,
        written by "quarantine", read by "quarantine", values "true, NoSchedule";
    // --- Co-operating controllers ---
    /// The GPU operator's driver upgrade cordons and uncordons nodes.
    DRIVER_UPGRADE_STATE = "nvidia.com/gpu-driver-upgrade-state", Label,
        Origin::Other("gpu-operator"),
        written by "", read by "quarantine: co-operators", values "working values, see its docs";
    /// kured cordons and uncordons the node that it reboots.
    KURED_REBOOT = "weave.works/kured-reboot-in-progress", Annotation, Origin::Other("kured"),
        written by "", read by "quarantine: co-operators", values "a time";
    // --- Pods ---
    /// The devices that a pod has.
    POD_DEVICES = "dgxc.nvidia.com/devices", ObjectKey,
        Origin::Reference("metadata-collector: pod devices"),
        written by "", read by "drain", values "JSON, see the reference";
    /// A pod that a kubelet runs by itself; the API server only shows it.
    MIRROR_POD = "kubernetes.io/config.mirror", ObjectKey, Origin::Other("kubelet"),
        written by "", read by "drain", values "a hash";
    // --- Inside quarantineHealthEvent ---
    /// How many events did not fit.
    LEFT_OUT = "warden.dev/left-out", Metadata, Origin::Warden,
        written by "quarantine", read by "people", values "a number";
    // --- Events ---
    /// The last stored event that an Event counts, so that none is counted twice after a restart.
    EVENT_SEQ = "warden.dev/last-seq", ObjectKey, Origin::Warden,
        written by "connector, on Events", read by "connector", values "a number";
    // --- Objects ---
    /// Field manager of all our writes, and the component of our Events.
    FIELD_MANAGER = "warden-controller", Object, Origin::Warden,
        written by "all writes", read by "people", values "-";
    /// The Lease that one controller holds.
    LEASE = "warden-controller", Object, Origin::Warden,
        written by "lease", read by "lease", values "-";
}

/// What ends the reason of a condition or Event for a fault (`SysLogsXIDErrorIsNotHealthy`), as in
/// the reference (platform-connectors).
pub const NOT_HEALTHY_SUFFIX: &str = "IsNotHealthy";
/// What ends the reason of a condition that is well, as in the reference.
pub const HEALTHY_SUFFIX: &str = "IsHealthy";
/// The message of a condition without faults, as in the reference.
pub const NO_HEALTH_FAILURES: &str = "No Health Failures";
/// Reason of the Event on a node that should be out of service and is withheld.
pub const QUARANTINE_WITHHELD: &str = health_event::checks::QUARANTINE_WITHHELD;
/// Reason of the Event on the node at which a pool's breaker tripped.
pub const BREAKER_TRIPPED: &str = health_event::checks::BREAKER_TRIPPED;
/// Reason of the Event on a node whose drain waits for pods to finish, as in the reference.
pub const AWAITING_POD_COMPLETION: &str = "AwaitingPodCompletion";
/// Reason of the Event on a node whose drain will delete the pods that are left, as in the reference.
pub const WAITING_BEFORE_FORCE_DELETE: &str = "WaitingBeforeForceDelete";
/// Reason of the Event on a node whose drain waits for disruption budgets.
pub const EVICTION_BLOCKED: &str = "EvictionBlocked";
/// Reason of the Event on a node whose drain failed.
pub const DRAIN_FAILED: &str = "DrainFailed";
/// Reason of the Event on a node whose drain does not begin, for a reason that a person can end.
pub const DRAIN_WITHHELD: &str = "DrainWithheld";
/// Reason of the Event on a node that is out and whose marks something takes off again and again.
pub const MARKS_REMOVED: &str = "MarksRemoved";
/// Reason of the Event on a node on which an attempt to repair it failed.
pub const REPAIR_FAILED: &str = "RepairFailed";
/// Reason of the Event on a node that a person took back while a repair may still have its effect.
pub const REPAIR_NOT_RECALLED: &str = "RepairNotRecalled";
/// Reason of the Event on the controller's own node whose reboot waits until the controller runs elsewhere.
pub const REBOOT_WAITS: &str = "RebootWaits";
/// Reason of the Event on a node that only a person can repair.
pub const REPAIR_NEEDS_OPERATOR: &str = "RepairNeedsOperator";
/// Value of [`OBJECT_MANAGED_BY`].
pub const OBJECT_MANAGED_BY_VALUE: &str = "warden";
/// Value of [`TTL`] of the repair objects that we make, as in the reference.
pub const REPAIR_TTL: &str = "336h";
/// Type of the condition of a node that would be taken out, or given back, if no other
/// fault-quarantine ran in the cluster.
pub const OTHER_QUARANTINE: &str = health_event::checks::OTHER_QUARANTINE;
/// Type of the condition of a node with more fatal checks of senders' own than a node has
/// conditions for.
pub const MORE_FAULTS: &str = health_event::checks::MORE_FAULTS;
/// Value of annotations that say yes, as in the reference.
pub const TRUE: &str = "True";
/// Value of [`CORDON_BY`], unless a sender forced the cordon.
pub const CORDON_BY_VALUE: &str = "Warden";
/// Default of `quarantine.label-prefix`, as in the reference's chart.
pub const LABEL_PREFIX: &str = "k8saas.nvidia.com/";
/// Value of [`STATE_LABEL`] while a node is out and nothing else is under way.
pub const STATE_QUARANTINED: &str = "quarantined";
/// The same while its pods are moved off.
pub const STATE_DRAINING: &str = "draining";
/// The same once they are gone.
pub const STATE_DRAIN_SUCCEEDED: &str = "drain-succeeded";
/// The same where they are not gone in time.
pub const STATE_DRAIN_FAILED: &str = "drain-failed";
/// The same while a repair is ordered or runs.
pub const STATE_REMEDIATING: &str = "remediating";
/// The same once its effect was seen.
pub const STATE_REMEDIATION_SUCCEEDED: &str = "remediation-succeeded";
/// The same where nothing more is done by itself.
pub const STATE_REMEDIATION_FAILED: &str = "remediation-failed";
/// Working values of [`DRIVER_UPGRADE_STATE`], as the GPU operator writes them.
pub const DRIVER_UPGRADE_WORKING: [&str; 9] = [
    "cordon-required",
    "wait-for-jobs-required",
    "pod-deletion-required",
    "node-maintenance-required",
    "drain-required",
    "post-maintenance-required",
    "pod-restart-required",
    "validation-required",
    "uncordon-required",
];

/// Types of conditions that the kubelet or others own: never ours, whatever a check is called.
pub const FOREIGN_CONDITIONS: [&str; 5] = [
    "Ready",
    "MemoryPressure",
    "DiskPressure",
    "PIDPressure",
    "NetworkUnavailable",
];

/// Greatest length of a label's value, in bytes (Kubernetes).
pub const LABEL_LIMIT: usize = 63;

/// A text as the value of a label: letters, digits, `-`, `_` and `.` stay, all else becomes `-`,
/// cut to [`LABEL_LIMIT`], then trimmed to a letter or digit at both ends. The reference's rule
/// for `cordon-reason`.
pub fn label_value(text: &str) -> String {
    let clean: String = text
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '-'
            }
        })
        .take(LABEL_LIMIT)
        .collect();
    clean
        .trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The API server's rule for qualified names.
    fn is_qualified(text: &str) -> bool {
        let (prefix, name) = text
            .rsplit_once('/')
            .map_or((None, text), |(p, n)| (Some(p), n));
        prefix.is_none_or(health_event::node::is_dns_subdomain)
            && !name.is_empty()
            && name.len() <= 63
            && label_value(name) == name
    }

    #[test]
    fn every_name_passes_the_api_servers_rule() {
        for name in ALL {
            assert!(is_qualified(name.text), "{}", name.text);
            assert!(is_qualified(&name.with_prefix(LABEL_PREFIX)) || name.text.contains('/'));
        }
    }

    #[test]
    fn no_name_is_declared_twice() {
        for (i, a) in ALL.iter().enumerate() {
            for b in &ALL[i + 1..] {
                assert!(a.text != b.text || a.kind == Kind::Object, "{}", a.text);
            }
        }
    }

    #[test]
    fn every_name_has_a_writer_or_a_reader() {
        for name in ALL {
            assert!(!name.read_by.is_empty(), "{} is read by nobody", name.text);
            let other = matches!(name.origin, Origin::Other(_));
            assert!(
                !other || name.written_by.is_empty(),
                "{} is not ours",
                name.text
            );
        }
    }

    #[test]
    fn label_values_are_cut_and_cleaned() {
        let table = [
            ("GPU fatal error ruleset", "GPU-fatal-error-ruleset"),
            ("--a b--", "a-b"),
            ("-.x._", "x"),
            ("Ünïcode!", "n-code"),
            ("", ""),
            ("...", ""),
            ("ä", ""),
            ("a/b.c_d", "a-b.c_d"),
        ];
        for (text, want) in table {
            assert_eq!(label_value(text), want, "{text:?}");
        }
        let long = format!("{}-b", "a".repeat(62));
        assert_eq!(label_value(&long), "a".repeat(62));
        // Cut first, then trimmed, as the reference does.
        let late = format!("--{}", "a".repeat(62));
        assert_eq!(label_value(&late), "a".repeat(61));
    }

    proptest! {
        #[test]
        fn any_text_makes_a_legal_label_value(text in ".{0,200}") {
            let value = label_value(&text);
            prop_assert!(value.len() <= LABEL_LIMIT);
            let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
            prop_assert!(edge(value.chars().next()) && edge(value.chars().next_back()));
        }
    }
}
