use health_event::Entity;

use super::*;
use crate::{KernelLog, KernelLogConfig, Record};

const RESET: &str = "changed from 0x0 (None) to 0x1 (GPU Reset Required)";
const REBOOT: &str = "changed from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)";
const PEERS: &str = "changed from 0x0 (None) to 0x3 (Drain P2P)";
const DRAIN: &str = "changed from 0x0 (None) to 0x4 (Drain and Reset)";
const NONE: &str = "changed from 0x1 (GPU Reset Required) to 0x0 (None)";

fn line(code: &str, text: &str) -> HealthEvent {
    let line = format!("NVRM: Xid (PCI:0000:17:00): {code}, {text}");
    let mut findings = Vec::new();
    KernelLog::new(KernelLogConfig::default())
        .observe(&Record::printed(line.as_bytes()), &mut findings);
    findings.remove(0).event
}

fn recovery(text: &str) -> HealthEvent {
    line(RECOVERY_ACTION, &format!("GPU recovery action {text}"))
}

fn gpu(causes: &[&str], recoveries: Vec<HealthEvent>) -> Gpu {
    let causes = causes.iter().map(|code| cause_of(&line(code, "x")));
    Gpu {
        causes: causes.collect(),
        recoveries,
    }
}

/// `code:strategy:fatal?:ACTION(<cause)`, `!` before a healthy one.
fn short(event: &HealthEvent) -> String {
    let healthy = if event.is_healthy { "!" } else { "" };
    let stored = match event.strategy {
        ProcessingStrategy::ExecuteRemediation => "",
        ProcessingStrategy::StoreOnly | ProcessingStrategy::StoreAndAnalyse => " stored",
    };
    let fatal = if event.is_fatal { " fatal" } else { "" };
    let cause = event.metadata.get(keys::CONSEQUENCE_OF);
    let cause = cause.map_or(String::new(), |cause| format!(" <{cause}"));
    let (code, action) = (event.error_codes.concat(), event.recommended_action);
    format!("{healthy}{code}{stored}{fatal} {action}{cause}")
}

fn check(event: HealthEvent, gpu: &Gpu, want: &[&str]) {
    let case = format!("{} {:?}", event.message, gpu.causes);
    let said: Vec<String> = attach(event, gpu).iter().map(short).collect();
    assert_eq!(said, want, "{case}");
}

/// 119, 62: COMPONENT_RESET; 79: RESTART_BM; 74: CONTACT_SUPPORT, fatal; 162: CONTACT_SUPPORT, not
/// fatal; 31: NONE.
#[test]
fn a_154_after_its_cause_opens_only_if_it_asks_for_more() {
    let table: [(&str, &[&str], &str); 14] = [
        (RESET, &[], "154 fatal COMPONENT_RESET"),
        (RESET, &["119"], "154 stored fatal COMPONENT_RESET <119"),
        (DRAIN, &["119"], "154 stored fatal COMPONENT_RESET <119"),
        (
            RESET,
            &["119", "79"],
            "154 stored fatal COMPONENT_RESET <79",
        ),
        (REBOOT, &["79"], "154 stored fatal RESTART_BM <79"),
        (REBOOT, &["119"], "154 fatal RESTART_BM <119"),
        (REBOOT, &["31"], "154 fatal RESTART_BM"),
        (RESET, &["31"], "154 fatal COMPONENT_RESET"),
        // Nobody knows what 74 needs, and the driver states it.
        (RESET, &["74"], "154 fatal COMPONENT_RESET <74"),
        (REBOOT, &["74", "119"], "154 fatal RESTART_BM <74"),
        // And the other way about: no repair is what a person was asked for.
        (PEERS, &["79"], "154 fatal CONTACT_SUPPORT <79"),
        (PEERS, &["74"], "154 stored fatal CONTACT_SUPPORT <74"),
        // Not fatal by the table, fatal by the line.
        (PEERS, &["162"], "154 fatal CONTACT_SUPPORT <162"),
        ("is unclear", &["119"], "154 fatal CONTACT_SUPPORT <119"),
    ];
    for (text, causes, want) in table {
        check(recovery(text), &gpu(causes, Vec::new()), &[want]);
    }
}

#[test]
fn a_154_before_its_cause_stays_open_and_loses_its_action() {
    let open = |text| gpu(&[], vec![recovery(text)]);
    let cause = |code| line(code, "x");
    let reset = "119 fatal COMPONENT_RESET";
    check(cause("119"), &open(RESET), &[reset, "154 NONE <119"]);
    check(cause("119"), &open(REBOOT), &[reset]);
    check(cause("119"), &open(PEERS), &[reset]);
    check(cause("31"), &open(RESET), &["31 NONE"]);
    check(cause("74"), &open(RESET), &["74 fatal CONTACT_SUPPORT"]);
    let reboot = "79 fatal RESTART_BM";
    check(cause("79"), &open(REBOOT), &[reboot, "154 NONE <79"]);
    // It lost it already, or never had effects.
    let attached = attach(cause("119"), &open(RESET)).remove(1);
    check(cause("79"), &gpu(&["119"], vec![attached]), &[reboot]);
    let stored = attach(recovery(RESET), &gpu(&["119"], Vec::new())).remove(0);
    check(cause("79"), &gpu(&["119"], vec![stored]), &[reboot]);
}

#[test]
fn the_newest_154_replaces_the_earlier_wherever_that_stood() {
    let stored = attach(recovery(RESET), &gpu(&["119"], Vec::new())).remove(0);
    let after = gpu(&["119"], vec![stored]);
    check(
        recovery(REBOOT),
        &after,
        &["!154 stored NONE <119", "154 fatal RESTART_BM <119"],
    );
    check(
        recovery(DRAIN),
        &after,
        &["154 stored fatal COMPONENT_RESET <119"],
    );
    // One with effects stays open; what it asks for is what was said last.
    let acting = gpu(&["119"], vec![recovery(REBOOT)]);
    check(recovery(RESET), &acting, &["154 NONE <119"]);
    check(recovery(REBOOT), &acting, &["154 fatal RESTART_BM <119"]);
    // 0 closes it in both spaces: a healthy event closes in its own and in weaker ones.
    check(recovery(NONE), &after, &["!154 NONE"]);
    check(recovery(NONE), &acting, &["!154 NONE"]);
}

#[test]
fn only_xids_with_effects_are_tied() {
    let known = gpu(&["119"], vec![recovery(RESET)]);
    let mut historical = recovery(RESET);
    historical.strategy = ProcessingStrategy::StoreOnly;
    let mut other_agent = recovery(RESET);
    other_agent.agent = "someone".into();
    let mut other_check = recovery(RESET);
    other_check.check_name = "Other".into();
    for event in [historical, other_agent, other_check] {
        assert!(!is_tied(&event));
        assert_eq!(attach(event.clone(), &known), [event]);
    }
}

#[test]
fn what_is_said_anew_keeps_the_drivers_words_and_place_and_is_a_new_event() {
    let mut before = recovery(RESET);
    before.id = "1".into();
    before.generated_at = jiff::Timestamp::from_second(1).ok();
    let mut cause = line("119", "x");
    cause.generated_at = jiff::Timestamp::from_second(2).ok();
    let said = attach(cause.clone(), &gpu(&[], vec![before.clone()]));
    assert_eq!(said[0], cause);
    assert_eq!(said[1].message, before.message);
    assert_eq!(said[1].entities, [Entity::new("PCI", "0000:17:00")]);
    assert_eq!(said[1].generated_at, cause.generated_at);
    assert!(said[1].id.is_empty());
}
