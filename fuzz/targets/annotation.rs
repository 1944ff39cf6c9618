//! Any text as each of the annotations that are read from a node, by whoever wrote them.
#![no_main]

use k8s_api::health_events::{self, MAX_BYTES};
use k8s_api::{AppliedTaint, ConditionList, IncidentMark};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(list) = ConditionList::parse(text) {
        assert_eq!(ConditionList::parse(&list.render()), Ok(list));
    }
    if let Ok(mark) = IncidentMark::parse(text) {
        assert_eq!(IncidentMark::parse(&mark.render()), Ok(mark));
    }
    if let Ok(taints) = AppliedTaint::parse_list(text) {
        let rendered = AppliedTaint::render_list(&taints);
        assert_eq!(AppliedTaint::parse_list(&rendered), Ok(taints));
    }
    if let Ok(events) = health_events::parse(text) {
        let rendered = health_events::render(&events);
        assert!(rendered.len() <= MAX_BYTES);
        let again = health_events::parse(&rendered).expect("what we render can be read");
        assert!(again.len() <= events.len());
        let whole = again.len() == events.len() && rendered.len() < MAX_BYTES / 2;
        assert!(!whole || health_events::render(&again) == rendered);
    }
});
