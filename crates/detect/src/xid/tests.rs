use health_event::{Device, RecommendedAction, checks};
use proptest::prelude::*;

use super::*;
use crate::finding::Severity;
use crate::{Finding, KernelLog, KernelLogConfig, Record};

/// What one detector says of these lines, in order.
fn findings(lines: &[&str]) -> Vec<Finding> {
    let mut log = KernelLog::new(KernelLogConfig::default());
    let mut findings = Vec::new();
    for line in lines {
        log.observe(&Record::printed(line.as_bytes()), &mut findings);
    }
    findings
}

fn only(line: &str) -> Finding {
    let mut all = findings(&[line]);
    assert_eq!(all.len(), 1, "{line}");
    all.remove(0)
}

#[test]
fn every_printed_form_is_read() {
    let table = [
        (
            "NVRM: Xid (PCI:0000:3f:00): 46",
            46,
            Some("0000:3f:00"),
            None,
            None,
        ),
        (
            "NVRM: Xid (PCI:0000:3F:00.0): 46",
            46,
            Some("0000:3F:00"),
            None,
            None,
        ),
        (
            "NVRM: Xid (0000:03:00): 14, Channel 00000001",
            14,
            Some("0000:03:00"),
            None,
            None,
        ),
        (
            "NVRM: Xid (PCI:0000:03:00 GPU-I:05): 94, pid=1, name=a",
            94,
            Some("0000:03:00"),
            Some(1),
            Some("a"),
        ),
        (
            "[1.0] NVRM: Xid (PCI:0000:66:00): 32, pid=2280636, name=train.3, Channel",
            32,
            Some("0000:66:00"),
            Some(2_280_636),
            Some("train.3"),
        ),
        (
            "NVRM: Xid (PCI:0000:b5:00): 13, pid='<unknown>', name=<unknown>, Graphics",
            13,
            Some("0000:b5:00"),
            None,
            None,
        ),
        (
            "NVRM: Xid (PCI:0000:b5:00): 31, pid=<unknown>, name=nvc:[driver], Ch 1",
            31,
            Some("0000:b5:00"),
            None,
            Some("nvc:[driver]"),
        ),
        (
            "NVRM: Xid (PCI:00000008:01:00): 62, 0000(0000)",
            62,
            Some("00000008:01:00"),
            None,
            None,
        ),
        ("NVRM: Xid (PCI:somewhere): 79", 79, None, None, None),
        ("NVRM: Xid (): 79", 79, None, None, None),
        (
            "Dec 11 13:23:01 n1 kernel: NVRM: Xid (PCI:0000:66:00): 79,x",
            79,
            Some("0000:66:00"),
            None,
            None,
        ),
    ];
    for (line, code, pci, pid, process) in table {
        let xid = parse(line.as_bytes()).unwrap_or_else(|| panic!("{line}"));
        assert_eq!(
            (
                xid.code,
                xid.pci.as_deref(),
                xid.pid,
                xid.process.as_deref()
            ),
            (code, pci, pid, process),
            "{line}"
        );
    }
}

#[test]
fn lines_that_state_nothing_give_nothing() {
    let benign = [
        "",
        "NVRM: Xid : 32, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00): 79abc",
        "NVRM: Xid (PCI:0000:66:00): 99999999999999999999",
        "NVRM: Xid (PCI:0000:66:00)",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.148.08",
        "NVRM: GPU at PCI:0000:66:00: GPU-12345678-1234-5678-9abc-def012345678",
        "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20009, Non-fatal, Link 04 RX Short Error Rate",
        "Xid (PCI:0000:66:00): 79",
        "xfs: Xid 79",
    ];
    assert_eq!(findings(&benign), []);
}

#[test]
fn one_statement_a_line_and_a_record_of_many_lines_is_read_line_by_line() {
    let twice = "NVRM: Xid (PCI:0000:66:00): 32, name=NVRM: Xid (PCI:0000:67:00): 79";
    assert_eq!(only(twice).event.error_codes, ["32"]);
    let record = "NVRM: Xid (PCI:0000:66:00): 48, DBE\nNVRM: Xid (PCI:0000:66:00): 64, x";
    let codes: Vec<_> = findings(&[record])
        .into_iter()
        .flat_map(|f| f.event.error_codes)
        .collect();
    assert_eq!(codes, ["48", "64"]);
    let flood = "NVRM: Xid (PCI:0000:66:00): 48, DBE\n".repeat(100);
    assert_eq!(findings(&[&flood]).len(), MAX_STATEMENTS);
}

#[test]
fn what_an_event_carries() {
    let line = "NVRM: Xid (PCI:0000:CB:00.0): 79, pid=1, GPU has fallen off the bus.";
    let finding = only(line);
    let event = &finding.event;
    assert_eq!(
        (
            event.agent.as_str(),
            event.component_class.as_str(),
            event.check_name.as_str()
        ),
        (checks::SYSLOG_AGENT, "GPU", checks::XID)
    );
    assert!(event.is_fatal && !event.is_healthy);
    assert_eq!(event.recommended_action, RecommendedAction::RestartBm);
    assert_eq!(event.message, line);
    assert_eq!(event.metadata["warden.dev/detector"], "kernel-log");
    assert!(!event.metadata.contains_key("warden.dev/origin"));
    assert_eq!(
        event.entities,
        [health_event::Entity::new("PCI", "0000:CB:00")]
    );
    assert_eq!(finding.pci().as_deref(), Some("0000:cb:00"));
    assert_eq!(finding.kind.to_string(), "xid:79");
    assert_eq!(finding.severity(), Severity::Fatal);
    assert!(finding.explain().contains("fallen off the bus"));
    assert!(event.node_name.is_empty() && event.id.is_empty() && event.generated_at.is_none());
}

#[test]
fn a_long_record_is_cut_in_the_message_with_a_mark() {
    let line = format!("NVRM: Xid (PCI:0000:66:00): 79, {}", "ü".repeat(20_000));
    let message = only(&line).event.message;
    assert!(message.len() <= 16 * 1024 && message.len() > 16 * 1024 - 8);
    assert!(message.ends_with("ü [cut]"));
}

#[test]
fn the_registers_of_74_become_entities() {
    let line = "NVRM: Xid (PCI:0000:b2:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3(0x0, 0x0, 0x10000, 0x0, 0x0, 0x80000001, 0x0)";
    let finding = only(line);
    let device = Device::new(finding.event.entities.clone());
    assert_eq!(device.value("NVLINK"), Some("3"));
    assert_eq!(
        device.value("REG2"),
        Some("00000000000000010000000000000000")
    );
    assert_eq!(
        device.value("REG5"),
        Some("10000000000000000000000000000001")
    );
    assert_eq!(
        device.value("REG6"),
        Some("00000000000000000000000000000000")
    );
    let unreadable =
        "NVRM: Xid (PCI:0000:b2:00): 74, link 3(0x0, 0x0, 0x123456789, 0x0, 0x0, 0x0, 0x0)";
    assert_eq!(only(unreadable).event.entities.len(), 1);
}

/// (line's severity word, code) -> (fatal, action), see the module docs.
#[test]
fn the_severity_word_of_a_line_is_never_weakened() {
    let table = [
        ("149", "Fatal", true, RecommendedAction::ContactSupport),
        ("149", "Nonfatal", false, RecommendedAction::ContactSupport),
        ("149", "Odd", false, RecommendedAction::ContactSupport),
        // Catalogue: NONE.
        ("137", "Fatal", true, RecommendedAction::ContactSupport),
        ("137", "Nonfatal", false, RecommendedAction::None),
        // Catalogue: COMPONENT_RESET, fatal.
        ("155", "Fatal", true, RecommendedAction::ComponentReset),
        ("155", "Nonfatal", true, RecommendedAction::ComponentReset),
        // Not in the catalogue.
        ("999", "Fatal", true, RecommendedAction::ContactSupport),
        ("999", "Nonfatal", false, RecommendedAction::ContactSupport),
    ];
    for (code, word, fatal, action) in table {
        let line = format!(
            "NVRM: Xid (PCI:0018:01:00): {code}, SOME_SUB  {word}   XC0 i0 Link -1 (0x025525c6 0x00000000 0x0)"
        );
        let event = only(&line).event;
        assert_eq!(
            (event.is_fatal, event.recommended_action),
            (fatal, action),
            "{code} {word}"
        );
        assert_eq!(event.entities.len(), 1, "a link of -1 is none");
    }
    let plain = only("NVRM: Xid (PCI:0018:01:00): 149, something").event;
    assert_eq!(
        (plain.is_fatal, plain.error_codes),
        (true, vec!["149".to_owned()])
    );
}

#[test]
fn the_fields_of_an_nvlink5_line() {
    let line = b"NVRM: Xid (PCI:0018:01:00): 149, pid=12, name=a b, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000040 0x0)";
    let xid = parse(line).unwrap();
    assert_eq!((xid.pid, xid.process.as_deref()), (Some(12), Some("a b")));
    let want = Nvlink5 {
        sub_code: "NETIR_LINK_EVT".to_owned(),
        fatal: true,
        link: 9,
        interrupts: 0x0255_25c6,
        status: 0x40,
    };
    assert_eq!(xid.nvlink5, Some(want));
}

#[test]
fn of_154_the_number_counts_and_the_words_only_without_it() {
    use RecommendedAction::{ComponentReset, ContactSupport, None, RestartBm};
    let table = [
        (
            "changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            false,
            ComponentReset,
        ),
        (
            "changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            false,
            RestartBm,
        ),
        (
            "changed from 0x0 (None) to 0x3 (Drain P2P)",
            false,
            ContactSupport,
        ),
        (
            "changed from 0x0 (None) to 0x4 (Drain and Reset)",
            false,
            ComponentReset,
        ),
        (
            "changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            true,
            None,
        ),
        (
            "changed from 0x0 (None) to 0x5 (None)",
            false,
            ContactSupport,
        ),
        (
            "changed from 0x0 (None) to 0x2 (GPU Reset Required)",
            false,
            RestartBm,
        ),
        ("changed from 0x0 (None) to 2 (reworded)", false, RestartBm),
        ("is (Node Reboot Required)", false, RestartBm),
        ("is (Drain and Reset)", false, ComponentReset),
        ("is (None)", true, None),
        ("is )Node Reboot Required(", false, ContactSupport),
        ("is unclear", false, ContactSupport),
    ];
    for (words, healthy, action) in table {
        let line = format!("NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action {words}");
        let event = only(&line).event;
        assert_eq!(event.is_healthy, healthy, "{words}");
        assert_eq!(event.is_fatal, !healthy, "{words}");
        assert_eq!(event.recommended_action, action, "{words}");
        assert_eq!(event.error_codes, ["154"], "{words}");
        assert_eq!(event.entities.len(), 1, "{words}");
    }
    let nowhere = "NVRM: Xid (PCI:?): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)";
    assert_eq!(
        findings(&[nowhere]),
        [],
        "it would close the fault of every GPU"
    );
}

#[test]
fn codes_without_an_action_of_their_own_ask_for_a_person_and_are_not_fatal() {
    for code in [0, 162, 171, 173, 999, 999_999_999] {
        let event = only(&format!("NVRM: Xid (PCI:0000:66:00): {code}, x")).event;
        assert_eq!(
            (event.is_fatal, event.recommended_action),
            (false, RecommendedAction::ContactSupport),
            "{code}"
        );
    }
}

#[test]
fn every_code_of_the_catalogue_is_judged_by_its_row_and_explained() {
    for entry in entries().iter().filter(|e| e.code != 154) {
        let finding = only(&format!("NVRM: Xid (PCI:0000:66:00): {}, x", entry.code));
        let event = &finding.event;
        assert_eq!(
            (event.is_fatal, event.recommended_action),
            (entry.fatal, entry.action)
        );
        assert!(
            finding.explain().starts_with(entry.description),
            "{entry:?}"
        );
    }
}

#[test]
fn a_uuid_once_seen_is_named_until_64_others_were() {
    let map = |bus: usize| format!("NVRM: GPU at PCI:0000:{bus:02x}:00: GPU-{bus:08x}-1");
    let mut lines: Vec<String> = (0..64).map(map).collect();
    let xid = "NVRM: Xid (PCI:00000000:00:00.0): 79, x".to_owned();
    lines.push(xid.clone());
    lines.push("NVRM: GPU at PCI:0000:00:00: GPU-0000aaaa-1".to_owned());
    lines.push(map(64));
    lines.push(xid.clone());
    lines.push("NVRM: Xid (PCI:0000:01:00.0): 79, x".to_owned());
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let uuids: Vec<Option<String>> = findings(&lines)
        .into_iter()
        .map(|f| {
            Device::new(f.event.entities)
                .value("GPU_UUID")
                .map(str::to_owned)
        })
        .collect();
    let want = [
        Some("GPU-00000000-1".to_owned()),
        Some("GPU-0000aaaa-1".to_owned()),
        None,
    ];
    assert_eq!(uuids, want);
}

#[test]
fn a_record_of_a_user_is_believed_only_on_demand_and_then_says_so() {
    let forged = b"11,5,6,-;NVRM: Xid (PCI:0000:66:00): 79, x\n";
    let kernel = b"3,5,6,-;NVRM: Xid (PCI:0000:66:00): 79, x\n";
    for (accept_user_records, bytes, origin) in [
        (false, &forged[..], None),
        (false, &kernel[..], Some(None)),
        (true, &forged[..], Some(Some("user"))),
        (true, &kernel[..], Some(None)),
    ] {
        let mut log = KernelLog::new(KernelLogConfig {
            accept_user_records,
        });
        let mut findings = Vec::new();
        log.observe(&Record::parse(bytes).unwrap(), &mut findings);
        let said: Option<Option<&str>> = findings.first().map(|f| {
            f.event
                .metadata
                .get("warden.dev/origin")
                .map(String::as_str)
        });
        assert_eq!(said, origin);
    }
}

#[test]
fn a_forged_uuid_line_is_not_believed_either() {
    let mut log = KernelLog::new(KernelLogConfig::default());
    let mut findings = Vec::new();
    for bytes in [
        &b"11,5,6,-;NVRM: GPU at PCI:0000:66:00: GPU-1-2\n"[..],
        b"3,6,7,-;NVRM: Xid (PCI:0000:66:00): 79, x\n",
    ] {
        log.observe(&Record::parse(bytes).unwrap(), &mut findings);
    }
    assert_eq!(findings[0].event.entities.len(), 1);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        head in prop_oneof![
            Just("NVRM: Xid (PCI:0000:66:00): 13"),
            Just("NVRM: Xid (PCI:0000:66:00): 74"),
            Just("NVRM: Xid (PCI:0000:66:00): 145"),
            Just("NVRM: Xid (PCI:0000:66:00): 154"),
            Just("NVRM: Xid ("),
            Just("NVRM: GPU at "),
            Just(""),
        ],
        tail in proptest::collection::vec(any::<u8>(), 0..200),
        words in "[ ,()xX0-9a-fGPCTSMLinkFatlo'<>=-]{0,80}",
    ) {
        let mut bytes = head.as_bytes().to_vec();
        bytes.extend(words.as_bytes());
        bytes.extend(tail);
        let mut log = KernelLog::new(KernelLogConfig::default());
        let mut findings = Vec::new();
        log.observe(&Record::printed(&bytes), &mut findings);
        for finding in findings {
            prop_assert!(finding.event.message.len() <= 16 * 1024);
            prop_assert!(finding.event.entities.len() <= 16);
            prop_assert!(!finding.explain().is_empty());
        }
    }
}
