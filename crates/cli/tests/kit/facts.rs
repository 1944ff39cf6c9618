//! What a controller would say, in its own types.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::json;
use wire::api;

pub(crate) const INCIDENT: &str = "01K4Y2WJ8R0000000000000001";

/// `seconds` before the controller's present time.
pub(crate) fn ago(seconds: i64) -> Timestamp {
    let now: Timestamp = "2026-09-12T01:20:30Z".parse().unwrap();
    now - SignedDuration::from_secs(seconds)
}

pub(crate) fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

pub(crate) fn status() -> api::Status {
    api::Status {
        version: "0.1.0".into(),
        profile: "cordon".into(),
        dry_run: false,
        quarantine: "enforce".into(),
        other_quarantine: None,
        other_quarantine_looked_at: None,
        drain: "off".into(),
        remediation: "off".into(),
        janitor: "off".into(),
        ready: true,
        parts: vec!["store: ready".into(), "nodes: ready".into()],
        nodes: 8,
        out: 0,
        withheld: 0,
        draining: 0,
        repairing: 0,
        need_person: 0,
        open_faults: 0,
        observed_faults: 0,
        restored_faults: 0,
        foreign_marked: 0,
        agents_silent: 0,
        agents_missing: 0,
        agents_conflicting: 0,
        agents_other_machine: 0,
        agents_other_boot: 0,
        fatal_in_service: 0,
        pool_faults: Vec::new(),
        missing_rights: Vec::new(),
        config: api::ConfigState::default(),
        store: api::Store {
            id: "01K4XXXX".into(),
            last_seq: 1_234,
            first_seq: 1,
            live_bytes: 3 << 20,
            free_bytes: 40 << 30,
            gaps: Vec::new(),
        },
    }
}

pub(crate) fn node_line(name: &str, state: Option<&str>) -> api::NodeLine {
    api::NodeLine {
        name: name.into(),
        pool: "gpu".into(),
        cordoned: state == Some("Quarantined"),
        ready: "True".into(),
        open_faults: usize::from(state.is_some()),
        state: state.map(str::to_owned),
        given_back: false,
        agent: "settled".into(),
        fatal_faults: usize::from(state.is_some()),
        kept_by: Vec::new(),
        drain: None,
        repair: None,
        marks_removed: 0,
        needs_person: false,
    }
}

pub(crate) fn pool() -> api::BreakerPool {
    api::BreakerPool {
        pool: "gpu".into(),
        nodes: 8,
        out: 0,
        withheld: Vec::new(),
        tripped: false,
        off: false,
        level_bound: Some(4),
        rate_bound: Some(4),
        window_seconds: Some(300),
        trip: None,
    }
}

pub(crate) fn tripped_pool() -> api::BreakerPool {
    api::BreakerPool {
        out: 4,
        withheld: vec!["gpu-5".into(), "gpu-6".into()],
        tripped: true,
        trip: Some(json!({
            "since": ago(200), "bound": "rate", "rule": "GPU fatal error ruleset",
            "check": "SysLogsXIDError", "share": 3, "counted": 4,
        })),
        ..pool()
    }
}

/// A node of which nothing is known but that it is there.
pub(crate) fn node() -> api::Node {
    api::Node {
        name: "gpu-17".into(),
        object: Some(api::NodeObject {
            uid: "uid-17".into(),
            pool: "gpu".into(),
            cordoned: false,
            taints: Vec::new(),
            ready: "True".into(),
            boot_id: "boot-1".into(),
            system_uuid: "machine-17".into(),
            blocked_by: Vec::new(),
            foreign_marks: Vec::new(),
            unconfirmed: Vec::new(),
            write_refused: None,
        }),
        agent: api::Agent {
            state: "settled".into(),
            version: "0.1.0".into(),
            last_report_at: Some(ago(12)),
            process_since: Some(ago(86_400)),
            boot_id: "boot-1".into(),
            machine_id: "machine-17".into(),
            unsettled: Vec::new(),
        },
        faults: Vec::new(),
        observed: Vec::new(),
        incidents: Vec::new(),
        holds: Vec::new(),
        closed: Vec::new(),
        reboots: Vec::new(),
        boots_differ: None,
    }
}

/// An XID 79, as the kernel log says it.
pub(crate) fn xid_79() -> api::Fault {
    api::Fault {
        id: "3f2a9c01d4e5".into(),
        agent: "syslog-health-monitor".into(),
        component_class: "GPU".into(),
        check: "SysLogsXIDError".into(),
        device: "PCI=0000:cb:00".into(),
        code: "79".into(),
        fatal: true,
        elsewhere: false,
        custom_action: String::new(),
        action: "RESTART_BM".into(),
        message: "NVRM: Xid (PCI:0000:CB:00): 79, GPU has fallen off the bus.\u{1b}[2J".into(),
        since: Some(ago(505)),
        last_at: ago(60),
        count: 3,
        sender: "agent:gpu-17".into(),
        incident: Some(INCIDENT.into()),
        boot_id: "boot-1".into(),
        restored: false,
        injected: false,
        origin: String::new(),
        overridden: String::new(),
    }
}

/// An incident of [`xid_79`].
pub(crate) fn incident(state: &str) -> api::Incident {
    api::Incident {
        id: INCIDENT.into(),
        node: "gpu-17".into(),
        node_uid: "uid-17".into(),
        version: 3,
        state: state.into(),
        detail: String::new(),
        withheld_by: None,
        not_before: None,
        since: ago(504),
        opened_at: ago(505),
        closed_at: None,
        pool: "gpu".into(),
        cordon: true,
        cordon_pre_existing: false,
        taints: Vec::new(),
        faults: vec![api::IncidentFault {
            fault: "node/gpu-17 SysLogsXIDError 79 PCI=0000:cb:00".into(),
            rules: vec!["GPU fatal error ruleset".into()],
            custom_action: String::new(),
            action: "RESTART_BM".into(),
            joined_at: ago(505),
            closed_at: None,
            seq: 1_200,
        }],
        needs_operator: None,
        held_by: None,
        faults_unknown: false,
        marks_removed: 0,
        release_kept_by: None,
        validation: None,
        drain: None,
        repair: None,
    }
}

pub(crate) fn step(seq: u64, at: Timestamp, from: &str, to: &str, why: &str) -> api::Step {
    api::Step {
        seq,
        incident: INCIDENT.into(),
        node: "gpu-17".into(),
        at,
        module: "quarantine".into(),
        from: from.into(),
        to: to.into(),
        cause: json!({ "reason": "code", "text": why, "notes": [] }),
    }
}

/// What takes a node out.
pub(crate) fn taken_out() -> Vec<api::Step> {
    let first = ago(505);
    vec![
        step(
            7,
            first,
            "",
            "Applying",
            "event 1200 matches GPU fatal error ruleset",
        ),
        step(
            8,
            first + SignedDuration::from_millis(45),
            "Applying",
            "Quarantined",
            "the node shows our write",
        ),
    ]
}
