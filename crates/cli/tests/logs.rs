//! `warden scan` on what people give it: logs in every form, files that are none, and much at once.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};

use serde_json::{Value, json};

use crate::kit::{Ran, program, warden};

const XID_79: &str =
    "NVRM: Xid (PCI:0000:CB:00): 79, pid=1234, name=train, GPU has fallen off the bus.";
const MIB: usize = 1024 * 1024;

/// A file's bytes, the exit code of its scan, and what it says on both outputs.
type Case<'a> = (&'a str, Vec<u8>, i32, &'a str, &'a str);

#[test]
fn nothing_is_claimed_of_what_could_not_be_read_and_the_rest_is_still_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let good = path("good.log");
    std::fs::write(&good, XID_79).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    std::fs::write(path("log.gz"), b"\x1f\x8b\x08\0\0").unwrap();
    std::fs::write(path("system.journal"), b"LPKSHHRH\0\0").unwrap();
    std::fs::write(path("windows.log"), b"\xff\xfeN\0V\0R\0M\0").unwrap();
    let table = [
        (path("missing.log"), "No such file", "log_unopenable"),
        (path("good.log/below"), "Not a directory", "log_unopenable"),
        (path("folder"), "is a folder", "log_is_folder"),
        (
            path("log.gz"),
            "`zcat FILE | warden scan -`",
            "log_is_no_text",
        ),
        (
            path("system.journal"),
            "`journalctl -k --file FILE | warden scan -`",
            "log_is_no_text",
        ),
        (path("windows.log"), "UTF-16", "log_is_no_text"),
        // Can be opened by anybody, and read by nobody.
        ("/proc/self/mem".to_owned(), "error", "log_unreadable"),
    ];
    for (bad, why, code) in &table {
        for order in [[bad, &good], [&good, bad]] {
            let ran = warden(&["scan", order[0], order[1]]);
            assert_eq!(ran.code, Some(2), "{bad}: {ran:?}");
            assert!(
                !ran.out.contains(bad) && !ran.out.contains("no faults"),
                "{}",
                ran.out
            );
            assert!(
                ran.out.contains(&format!("{good}: 1 line read, 1 fault")),
                "{}",
                ran.out
            );
            assert!(
                ran.err.contains(why) && ran.err.contains(code),
                "{bad}: {}",
                ran.err
            );
            assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
            let json = warden(&["scan", "--format", "json", "--group", order[0], order[1]]);
            assert_eq!(
                (json.code, json.out.lines().count()),
                (Some(2), 1),
                "{json:?}"
            );
        }
        let alone = warden(&["scan", bad]);
        assert_eq!((alone.code, alone.out.as_str()), (Some(2), ""), "{alone:?}");
    }
}

#[test]
fn odd_files_are_read_for_what_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let fault = XID_79.as_bytes();
    let long = |length: usize| {
        let mut line = fault.to_vec();
        line.resize(length, b'x');
        line
    };
    let none = "no faults found (looked for: XIDs of NVIDIA's driver)";
    let cases: [Case<'_>; 9] = [
        ("empty", Vec::new(), 0, &format!("0 lines read, {none}"), ""),
        (
            "blank",
            b"\n\n".to_vec(),
            0,
            &format!("2 lines read, {none}"),
            "",
        ),
        (
            "binary",
            vec![0; 5_000],
            0,
            "1 line read, no faults",
            "does not look like text",
        ),
        // What a crash leaves in a syslog file: text, a block of zeros, text.
        (
            "crash",
            [b"a\n", &vec![0; 50_000][..], b"\n", fault].concat(),
            1,
            "line 3",
            "does not look like text",
        ),
        ("1 MiB", long(MIB), 1, "1 line read, 1 fault", ""),
        (
            "more",
            long(MIB + 1),
            1,
            "1 line read, 1 fault",
            "of 1 line only the first 1 MiB were read",
        ),
        (
            "behind",
            [&vec![b'x'; 3 * MIB], &b"\n"[..], fault].concat(),
            1,
            "line 2",
            "of 1 line only",
        ),
        (
            "utf-8",
            [b"\xff\xfa\n", fault, b" \xf0\x28\x8c\xbc\n\xfe"].concat(),
            1,
            "3 lines read, 1 fault",
            "",
        ),
        (
            "cr",
            [b"a\r\n", fault, b"\r\n"].concat(),
            1,
            "2 lines read, 1 fault",
            "",
        ),
    ];
    for (name, bytes, code, out, err) in cases {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let ran = warden(&["scan", path.to_str().unwrap()]);
        assert_eq!(ran.code, Some(code), "{name}: {}", ran.err);
        assert!(
            ran.out.contains(out),
            "{name}: {out:?} is not in {}",
            ran.out
        );
        assert!(
            ran.err.contains(err) && (err.is_empty() == ran.err.is_empty()),
            "{name}: {}",
            ran.err
        );
    }
}

#[test]
fn a_file_that_is_not_there_is_told_with_its_escapes_taken_out() {
    let ran = warden(&["scan", "none\u{1b}[2J\u{9b}m.log"]);
    assert_eq!(ran.code, Some(2));
    assert!(
        !ran.err.chars().any(|c| c.is_control() && c != '\n'),
        "{:?}",
        ran.err
    );
}

#[test]
fn flags_of_the_design_that_are_still_to_come_say_so() {
    for (flag, want) in [
        ("--journal", "pipe the journal in"),
        ("--npd", "not part of this version"),
        ("--driver-version", "not part of this version"),
    ] {
        let ran = warden(&["scan", flag, "x", "-"]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{flag}");
        assert!(ran.err.contains(want), "{}", ran.err);
    }
}

/// What a line gives: `fault`, first code, severity, action; nothing = the line states none.
type Said = Option<(&'static str, &'static str, &'static str, &'static str)>;

/// The lines of the reference's own test vectors for XIDs (`log-test-vectors.csv`, rows 2 to 28), in
/// order. What Warden says of each and why it differs from the reference is tested in `detect`;
/// here it is the whole way from a file to JSON.
const VECTORS: [(&str, Said); 27] = [
    (
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
        Some(("xid:149", "149.NETIR_LINK_EVT", "fatal", "CONTACT_SUPPORT")),
    ),
    (RLW_82, RLW),
    (RLW_82, RLW),
    (RLW_04, RLW),
    (
        "NVRM: Xid (PCI:0000:b5:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address",
        Some(("xid:13", "13", "warning", "NONE")),
    ),
    (
        "NVRM: Xid (PCI:0000:b5:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: ESR 0x50df30=0x107000e 0x50df34=0x20 0x50df28=0xf81eb60 0x50df2c=0x1174",
        Some(("xid:13", "13", "warning", "NONE")),
    ),
    (
        "NVRM: Xid (PCI:0000:66:00): 32, pid=2280636, name=train.3, Channel ID 0000000d intr0 00040000",
        Some(("xid:32", "32", "warning", "NONE")),
    ),
    (
        "NVRM: Xid (PCI:0000:3f:00): 46",
        Some(("xid:46", "46", "fatal", "COMPONENT_RESET")),
    ),
    (
        "NVRM: Xid (PCI:0001:ab:cd): 69, pid=1310987, name=train.3, Class Error: ChId 0008, Class 0000cbc0, Offset 00000184, Data ffffffff, ErrorCode 00000004",
        Some(("xid:69", "69", "warning", "NONE")),
    ),
    (
        "NVRM: Xid (PCI:0000:66:00): 999, pid=1234, name=test",
        Some(("xid:999", "999", "error", "CONTACT_SUPPORT")),
    ),
    (
        "NVRM: GPU at PCI:0000:66:00: GPU-12345678-1234-5678-9abc-def012345678",
        None,
    ),
    ("Linux version 5.15.0-117-generic", None),
    ("NVRM: Xid : 32, pid=2280636", None),
    ("NVRM: Xid (PCI:0000:66:00): abc, pid=2280636", None),
    (
        "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        Some(("xid:154", "154", "fatal", "COMPONENT_RESET")),
    ),
    (ROW_79, SAID_79),
    (ROW_79, SAID_79),
    (ROW_79, SAID_79),
    ("GPU reset executed: GPU-123, success: false", None),
    ("GPU reset executed: GPU-123, success: true", None),
    ("GPU reset executed: GPU-456, success: true", None),
    ("GPU reset executed:", None),
    (
        "NVRM: Xid (PCI:0002:00:00): 119, pid=1582259, name=nvc:[driver], Timeout after 6s of waiting for RPC response from GPU1 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x8).",
        Some(("xid:119", "119", "fatal", "COMPONENT_RESET")),
    ),
    (
        "NVRM: Xid (PCI:0000:17:00): 94, pid=789012, name=process, Contained ECC error.",
        Some(("xid:94", "94", "warning", "NONE")),
    ),
    (ROW_162, SAID_162),
    (ROW_162, SAID_162),
    (ROW_162, SAID_162),
];
const RLW_82: &str = "NVRM: Xid (PCI:0000:00:08.0): 145, RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082 0x00000040 0x00000000 0x00000000 0x00000000 0x00000000)";
const RLW_04: &str = "NVRM: Xid (PCI:0000:00:08.0): 145, RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000004 0x00000040 0x00000000 0x00000000 0x00000000 0x00000000)";
const RLW: Said = Some(("xid:145", "145.RLW_REMAP", "error", "CONTACT_SUPPORT"));
const ROW_79: &str = "NVRM: Xid (PCI:0000:00:08.0): 79, pid=12345, name=test-process";
const SAID_79: Said = Some(("xid:79", "79", "fatal", "RESTART_BM"));
const ROW_162: &str = "NVRM: Xid (PCI:0000:66:00): 162, x";
const SAID_162: Said = Some(("xid:162", "162", "error", "CONTACT_SUPPORT"));

/// Puts the form's head before a line.
type Form = (&'static str, fn(usize, &str) -> String);

const FORMS: [Form; 7] = [
    ("plain", |_, text| text.to_owned()),
    ("dmesg", |n, text| format!("[  {n:3}.456789] {text}")),
    ("dmesg -T", |n, text| {
        format!("[Wed Dec 11 13:23:{n:02} 2024] {text}")
    }),
    ("dmesg -x", |n, text| {
        format!("kern  :err   : [  {n:3}.456789] {text}")
    }),
    ("journalctl", |n, text| {
        format!("Dec 11 13:23:{n:02} gpu-1 kernel: {text}")
    }),
    ("journalctl -o short-iso", |n, text| {
        format!("2024-12-11T13:23:{n:02}+0000 gpu-1 kernel: {text}")
    }),
    ("/dev/kmsg", |n, text| {
        format!("3,{n},{n}456789,-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:cb:00.0")
    }),
];

#[test]
fn all_xid_rows_are_found_in_every_form_with_the_right_line() {
    let folder = tempfile::tempdir().unwrap();
    for (form, head) in FORMS {
        let (mut log, mut want, mut lines) = (String::new(), Vec::new(), 0);
        for (n, (text, said)) in VECTORS.into_iter().enumerate() {
            let printed = head(n, text);
            writeln!(log, "{printed}").unwrap();
            if let Some((fault, code, severity, action)) = said {
                want.push(json!([lines + 1, fault, code, severity, action]));
            }
            lines += printed.lines().count();
        }
        let path = folder.path().join("log");
        std::fs::write(&path, log).unwrap();
        let ran = warden(&["scan", "--format", "json", path.to_str().unwrap()]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(1), ""), "{form}");
        let told: Vec<Value> = ran.out.lines().map(told).collect();
        assert_eq!(told, want, "{form}");
    }
}

fn told(line: &str) -> Value {
    let object: Value = serde_json::from_str(line).unwrap();
    json!([
        object["line"],
        object["fault"],
        object["codes"][0],
        object["severity"],
        object["action"]
    ])
}

/// A log of that size: mostly lines without a fault, some with, of a few GPUs.
fn feed(input: &mut ChildStdin, bytes: usize) -> (u64, u64) {
    let mut block = String::new();
    let (mut lines, mut faults) = (0, 0);
    while block.len() < MIB {
        for n in 0..100 {
            let text = match n {
                7 => "NVRM: Xid (PCI:0000:17:00): 79, pid=1, name=a, GPU has fallen off the bus.",
                _ => "nvme nvme0: I/O tag 12 (1000) opcode 0x2 (Read) QID 4, QPS 200, done in time",
            };
            writeln!(block, "[{lines:8}.123456] {text}").unwrap();
            lines += 1;
            faults += u64::from(n == 7);
        }
    }
    let blocks = bytes.div_ceil(block.len());
    for _ in 0..blocks {
        input.write_all(block.as_bytes()).unwrap();
    }
    (lines * blocks as u64, faults * blocks as u64)
}

/// The most memory that it ever had, in KiB.
fn high_water(child: &Child) -> u64 {
    let path = format!("/proc/{}/status", child.id());
    let status = std::fs::read_to_string(Path::new(&path)).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn memory_stays_flat_however_long_the_log_is() {
    let mut command = program();
    command.args(["scan", "--format", "json", "--group", "-"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // All but what the pipe holds (64 KiB) has been read when a write returns.
    let first = feed(&mut input, 2 * MIB);
    let early = high_water(&child);
    let second = feed(&mut input, 50 * MIB);
    let late = high_water(&child);
    drop(input);
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.out.lines().count()), (Some(1), 1));
    let fault: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(fault["count"], first.1 + second.1);
    assert!(
        late <= early + 1024,
        "{early} KiB after 2 MiB, {late} KiB after 50 MiB more"
    );
}
