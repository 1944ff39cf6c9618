use wire::warden::v1::{Asserted, Detector, DetectorState};

use super::*;

fn report() -> ReportRequest {
    ReportRequest {
        node_name: "gpu-1".into(),
        boot_id: "boot".into(),
        machine_id: "machine".into(),
        spool_id: "spool".into(),
        process_id: "process".into(),
        detectors: vec![Detector {
            name: "kernel-log".into(),
            state: DetectorState::DetectorSettled as i32,
            why: String::new(),
        }],
        ..ReportRequest::default()
    }
}

type Change = fn(&mut ReportRequest, &str);

#[test]
fn a_report_beyond_a_bound_is_refused_with_its_field() {
    assert_eq!(check(&report()).unwrap().as_str(), "gpu-1");
    let long = "x".repeat(LONGEST_TEXT + 1);
    let table: [(&str, Change); 6] = [
        ("node_name", |r, _| r.node_name = "GPU".into()),
        ("boot_id", |r, long| r.boot_id = long.into()),
        ("agent_version", |r, _| r.agent_version = "1\n2".into()),
        ("process_id", |r, _| r.process_id.clear()),
        ("detectors", |r, _| {
            r.detectors = vec![Detector::default(); 65];
        }),
        ("asserted.hash", |r, _| {
            r.asserted = Some(Asserted {
                hash: vec![1],
                ..Asserted::default()
            });
        }),
    ];
    for (field, change) in table {
        let mut report = report();
        change(&mut report, &long);
        let error = check(&report).unwrap_err();
        assert!(error.starts_with(field), "{field}: {error}");
    }
}

#[test]
fn settled_counts_for_the_present_process_and_boot_only() {
    let now = Timestamp::now();
    let after = |before: AgentState, report: &ReportRequest| {
        let detectors = DetectorStates::new(&report.detectors);
        state_after(
            &before,
            report,
            &detectors,
            BootId::new(&report.boot_id),
            now,
        )
    };
    let settled = after(AgentState::default(), &report());
    assert_eq!(settled.settled_boot, Some(BootId::new("boot")));
    assert_eq!(settled.process_changed_at, Some(now));

    let mut restarted = report();
    restarted.process_id = "another".into();
    restarted.detectors[0].state = DetectorState::DetectorStarting as i32;
    let starting = after(settled.clone(), &restarted);
    assert_eq!(starting.settled_boot, None);
    assert_eq!(starting.unsettled, ["kernel-log: starting"]);

    let mut from_nothing = report();
    from_nothing.started_from_nothing = true;
    assert_eq!(after(settled.clone(), &from_nothing).settled_boot, None);

    let mut no_boot = report();
    no_boot.boot_id.clear();
    assert_eq!(after(settled, &no_boot).settled_boot, None);
}
