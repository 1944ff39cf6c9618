//! `warden scan`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const XID_79: &str =
    "[   12.5] NVRM: Xid (PCI:0000:CB:00.0): 79, pid=1234, name=train, GPU has fallen off the bus.";
const XID_154: &str = "[   13.5] NVRM: Xid (PCI:0000:CB:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)";
const XID_154_REBOOT: &str = "[   14.5] NVRM: Xid (PCI:0000:CB:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)";
const XID_154_OVER: &str = "[   15.5] NVRM: Xid (PCI:0000:CB:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)";
const BENIGN: &str = "[   11.0] usb 1-1: new high-speed USB device number 2 using xhci_hcd";

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn ran(output: &Output) -> Ran {
    Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout.clone()).unwrap(),
        err: String::from_utf8(output.stderr.clone()).unwrap(),
    }
}

/// Runs `warden` with `input` on standard input.
fn warden(arguments: &[&str], input: &[u8]) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_warden"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(input);
    ran(&child.wait_with_output().unwrap())
}

fn objects(out: &str) -> Vec<Value> {
    out.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn log(folder: &Path, name: &str, lines: &[&str]) -> String {
    let path = folder.join(name);
    std::fs::write(&path, lines.join("\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn json_is_one_object_a_statement_in_the_form_of_the_contract() {
    let input = [BENIGN, XID_79, BENIGN, XID_79].join("\n");
    let ran = warden(&["scan", "--format", "json", "-"], input.as_bytes());
    assert_eq!((ran.code, ran.err.as_str()), (Some(1), ""));
    let explain = "GPU has fallen off the bus. Take the work off this machine and reboot it; if it comes again, have the GPU looked at.";
    let want = |line: u64, repeat_of: Value| {
        json!({
            "line": line, "fault": "xid:79", "pci": "0000:cb:00", "severity": "fatal",
            "action": "RESTART_BM", "check": "SysLogsXIDError", "codes": ["79"],
            "entities": [{"type": "PCI", "value": "0000:CB:00"}],
            "message": XID_79, "explain": explain, "repeat_of": repeat_of
        })
    };
    assert_eq!(objects(&ran.out), [want(2, Value::Null), want(4, json!(2))]);
    let fields = r#"{"line":2,"fault":"xid:79","pci":"0000:cb:00","severity":"fatal","action":"RESTART_BM","check":"SysLogsXIDError","codes":["79"],"entities":[{"type":"PCI","value":"0000:CB:00"}],"message":"#;
    assert!(ran.out.starts_with(fields), "{}", ran.out);
}

#[test]
fn every_printed_form_of_a_line_is_read() {
    let text = "NVRM: Xid (PCI:0000:66:00): 48, pid=1, name=a, DBE";
    let forms = [
        format!("[   12.345678] {text}"),
        format!("[Wed Dec 11 13:23:01 2024] {text}"),
        format!("kern  :err   : [   12.345678] {text}"),
        format!("<3>[   12.345678] {text}"),
        format!("2024-12-11T13:23:01,123456+00:00 {text}"),
        format!("2024-12-11T13:23:01+0000 gpu-1 kernel: {text}"),
        format!("Dec 11 13:23:01 gpu-1 kernel: [   12.345678] {text}"),
        format!("<3>1 2024-12-11T13:23:01Z gpu-1 kernel - - - {text}"),
        format!("3,1204,12345678,-;{text}"),
        format!("11,1204,12345678,-,caller=T1;{text}"),
        text.to_owned(),
    ];
    let ran = warden(
        &["scan", "--format", "json", "-"],
        forms.join("\r\n").as_bytes(),
    );
    let lines: Vec<u64> = objects(&ran.out)
        .iter()
        .map(|object| {
            assert_eq!(object["fault"], "xid:48");
            object["line"].as_u64().unwrap()
        })
        .collect();
    assert_eq!(lines, (1..=11).collect::<Vec<u64>>());
}

#[test]
fn a_healthy_statement_says_so_and_what_follows_is_no_repeat() {
    let input = [
        XID_154,
        XID_154_REBOOT,
        XID_154_REBOOT,
        XID_154_OVER,
        XID_154,
    ]
    .join("\n");
    let ran = warden(&["scan", "--format", "json", "-"], input.as_bytes());
    let told: Vec<Value> = objects(&ran.out)
        .iter()
        .map(|o| json!([o["action"], o["severity"], o["healthy"], o["repeat_of"]]))
        .collect();
    let want = [
        json!(["COMPONENT_RESET", "fatal", null, null]),
        json!(["RESTART_BM", "fatal", null, null]),
        json!(["RESTART_BM", "fatal", null, 1]),
        json!(["NONE", "info", true, null]),
        json!(["COMPONENT_RESET", "fatal", null, null]),
    ];
    assert_eq!(told, want);
    let only = warden(&["scan", "--format", "json", "-"], XID_154_OVER.as_bytes());
    assert_eq!(only.code, Some(0), "a healthy statement is no fault");
}

#[test]
fn grouped_json_is_one_object_a_fault() {
    let input = [
        XID_79,
        XID_154,
        BENIGN,
        XID_79,
        XID_154_REBOOT,
        XID_154_OVER,
    ]
    .join("\n");
    let ran = warden(
        &["scan", "--format", "json", "--group", "-"],
        input.as_bytes(),
    );
    assert_eq!(ran.code, Some(1));
    let told: Vec<Value> = objects(&ran.out)
        .iter()
        .map(|o| {
            json!([
                o["fault"],
                o["action"],
                o["count"],
                o["first"],
                o["last"],
                o["first_time"],
                o["last_time"],
                o["closed"]
            ])
        })
        .collect();
    let want = [
        json!(["xid:79", "RESTART_BM", 2, 1, 4, "12.5", "12.5", null]),
        json!(["xid:154", "RESTART_BM", 2, 2, 5, "13.5", "14.5", 6]),
    ];
    assert_eq!(told, want);
}

#[test]
fn text_is_a_table_with_the_next_step() {
    let map = "NVRM: GPU at PCI:0000:cb:00: GPU-1234-5";
    let link =
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x0)";
    let input = [map, XID_79, link, XID_154, XID_154_OVER, XID_79].join("\n");
    let ran = warden(&["scan", "-"], input.as_bytes());
    assert_eq!((ran.code, ran.err.as_str()), (Some(1), ""));
    let want = "\
standard input: 6 lines read, 3 faults on 2 devices

DEVICE                 FAULT                   SEVERITY  COUNT  FIRST          LAST           ACTION
0000:cb:00 GPU-1234-5  xid:79                  fatal     2      12.5 (line 2)  12.5 (line 6)  RESTART_BM
  GPU has fallen off the bus. Take the work off this machine and reboot it; if it comes again, have the GPU looked at.
                       xid:154                 fatal     1      13.5 (line 4)  13.5 (line 4)  COMPONENT_RESET
  GPU Recovery Action Changed. Take the work off this GPU and reset it. Over since line 5.
0018:01:00             xid:149 NETIR_LINK_EVT  fatal     1      line 3         line 3         CONTACT_SUPPORT
  NVLINK: NETIR Error. A link between GPUs failed: reset the GPU; if it comes again, have link and GPU looked at.
";
    assert_eq!(ran.out, want);
    let coloured = warden(&["scan", "--color", "always", "-"], input.as_bytes());
    assert!(coloured.out.contains("\u{1b}[1m"), "{}", coloured.out);
}

#[test]
fn nothing_found_ends_with_0() {
    let ran = warden(&["scan", "-"], BENIGN.as_bytes());
    assert_eq!(ran.code, Some(0));
    let want =
        "standard input: 1 line read, no faults found (looked for: XIDs of NVIDIA's driver)\n";
    assert_eq!(ran.out, want);
    let ran = warden(&["scan", "--format", "json", "-"], BENIGN.as_bytes());
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""));
}

#[test]
fn what_steers_a_terminal_does_not_pass() {
    let line = "NVRM: Xid (PCI:0000:66:00): 79, name=\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}x";
    for format in ["text", "json"] {
        let ran = warden(&["scan", "--format", format, "-"], line.as_bytes());
        assert_eq!(ran.code, Some(1));
        let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!ran.out.contains(bad), "{:?}", ran.out);
        assert!(!ran.out.contains("\\u001b"), "{}", ran.out);
    }
}

#[test]
fn several_files_are_named_and_each_counts_its_own_lines() {
    let folder = tempfile::tempdir().unwrap();
    let one = log(folder.path(), "one.log", &[BENIGN, XID_79]);
    let two = log(folder.path(), "two.log", &[XID_79]);
    let ran = warden(&["scan", "--format", "json", &one, &two], b"");
    let told: Vec<Value> = objects(&ran.out)
        .iter()
        .map(|o| json!([o["file"], o["line"], o["repeat_of"]]))
        .collect();
    assert_eq!(told, [json!([one, 2, null]), json!([two, 1, null])]);
}

#[test]
fn a_file_that_is_not_there_is_named_and_the_others_are_still_read() {
    let folder = tempfile::tempdir().unwrap();
    let one = log(folder.path(), "one.log", &[XID_79]);
    let missing = folder.path().join("missing.log");
    let ran = warden(
        &["scan", "--format", "json", missing.to_str().unwrap(), &one],
        b"",
    );
    assert_eq!(ran.code, Some(2));
    assert_eq!(objects(&ran.out).len(), 1);
    let want = format!("error: can't open {}: No such file", missing.display());
    assert!(ran.err.starts_with(&want), "{}", ran.err);
}

#[test]
fn wrong_usage_ends_with_2() {
    for arguments in [
        &["scan"][..],
        &["scan", "--dmesg", "-"],
        &["scan", "--format", "xml", "-"],
        &[],
    ] {
        let ran = warden(arguments, b"");
        assert_eq!(ran.code, Some(2), "{arguments:?}");
        assert!(ran.err.contains("--help"), "{}", ran.err);
    }
}

#[test]
fn bytes_that_are_no_text_and_lines_without_end_are_read() {
    let mut input = vec![0xff; 3 * 1024 * 1024];
    input.extend(b"\nNVRM: Xid (PCI:0000:66:00): 79, \xff\xfe\n");
    input.extend(std::iter::repeat_n(0, 100_000));
    let ran = warden(&["scan", "--format", "json", "-"], &input);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert_eq!(objects(&ran.out)[0]["line"], 2);
}

#[test]
fn faults_beyond_the_bound_are_counted_not_kept() {
    let mut input = String::new();
    for number in 0..6_000_u32 {
        let (high, low) = (number / 256, number % 256);
        writeln!(input, "NVRM: Xid (PCI:{high:04x}:{low:02x}:00): 79, x").unwrap();
    }
    let ran = warden(
        &["scan", "--format", "json", "--group", "-"],
        input.as_bytes(),
    );
    assert_eq!(objects(&ran.out).len(), 4096);
    assert!(
        ran.err.contains("1904 further lines are not grouped"),
        "{}",
        ran.err
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let input = format!("{XID_79}\n").repeat(20_000);
    let mut child = Command::new(env!("CARGO_BIN_EXE_warden"))
        .args(["scan", "--format", "json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let ran = ran(&child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.err.as_str()), (Some(1), ""));
}

#[test]
fn this_machines_log_is_read_without_waiting_or_the_way_to_do_so_is_named() {
    let ran = warden(&["scan", "--dmesg", "--format", "json"], b"");
    if std::fs::File::open("/dev/kmsg").is_ok() {
        assert!(matches!(ran.code, Some(0 | 1)), "{}", ran.err);
        objects(&ran.out);
    } else {
        assert_eq!(ran.code, Some(2));
        assert!(ran.err.contains("dmesg | warden scan -"), "{}", ran.err);
    }
}

#[test]
fn completions_are_printed_for_a_shell() {
    let ran = warden(&["completions", "bash"], b"");
    assert_eq!(ran.code, Some(0));
    assert!(ran.out.contains("_warden()"), "{}", ran.out);
}
