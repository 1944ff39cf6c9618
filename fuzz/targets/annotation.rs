//! Any text as each of the annotations that are read from a node, by whoever wrote them.
#![no_main]

use decide::quarantine::{IncidentMark as DecideMark, parse_applied_taints, render_applied_taints};
use k8s_api::health_events::{self, MAX_BYTES};
use k8s_api::{AppliedTaint, ConditionList, IncidentMark};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(list) = ConditionList::parse(text) {
        assert_eq!(ConditionList::parse(&list.render()), Ok(list));
    }
    incident_mark(text);
    if let Ok(taints) = AppliedTaint::parse_list(text) {
        let rendered = AppliedTaint::render_list(&taints);
        assert_eq!(AppliedTaint::parse_list(&rendered), Ok(taints));
    }
    let taints = parse_applied_taints(text);
    assert_eq!(
        parse_applied_taints(&render_applied_taints(&taints)),
        taints
    );
    if let Ok(events) = health_events::parse(text) {
        let rendered = health_events::render(&events);
        assert!(rendered.len() <= MAX_BYTES);
        let again = health_events::parse(&rendered).expect("what we render can be read");
        assert!(again.len() <= events.len());
        let whole = again.len() == events.len() && rendered.len() < MAX_BYTES / 2;
        assert!(!whole || health_events::render(&again) == rendered);
    }
});

/// Both readers of the mark agree.
fn incident_mark(text: &str) {
    let strict = IncidentMark::parse(text);
    let decided = DecideMark::parse(text);
    if let Ok(mark) = &strict {
        assert_eq!(IncidentMark::parse(&mark.render()).as_ref(), Ok(mark));
        let decided = decided.as_ref().expect("what one reads, the other reads");
        assert_eq!(decided.id, mark.incident);
        assert_eq!(
            (decided.version, &decided.uid),
            (mark.version, &mark.node_uid)
        );
    }
    if let Some(mark) = decided {
        assert_eq!(DecideMark::parse(&mark.render()).as_ref(), Some(&mark));
    }
}
