//! What a scan prints.

use std::io::{self, Write};

use detect::{Finding, Severity};
use serde::Serialize;

use super::group::{Group, Groups, Place};
use crate::output::{BOLD, Cell, DIM, GREEN, PLAIN, RED, Table, YELLOW};
use crate::output::{counted, harmless, json_line};

/// What is looked for: a log without it may tell of other faults.
const KNOWN: &str = "looked for: XIDs of NVIDIA's driver";

/// One statement of one line; the fields and their order are a contract.
#[derive(Serialize)]
struct Statement<'a> {
    line: u64,
    #[serde(flatten)]
    what: What<'a>,
    repeat_of: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
}

/// One fault of all its lines.
#[derive(Serialize)]
struct Fault<'a> {
    #[serde(flatten)]
    what: What<'a>,
    count: u64,
    first: u64,
    last: u64,
    first_time: Option<&'a str>,
    last_time: Option<&'a str>,
    /// The line that said that all is well again.
    closed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
}

#[derive(Serialize)]
struct What<'a> {
    fault: String,
    pci: Option<String>,
    severity: &'static str,
    action: &'static str,
    check: &'a str,
    codes: &'a [String],
    entities: Vec<JsonEntity<'a>>,
    message: std::borrow::Cow<'a, str>,
    explain: String,
}

#[derive(Serialize)]
struct JsonEntity<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    value: &'a str,
}

fn what(finding: &Finding) -> What<'_> {
    let event = &finding.event;
    let entities = event.entities.iter();
    What {
        fault: finding.kind.to_string(),
        pci: finding.pci(),
        severity: finding.severity().as_str(),
        action: event.recommended_action.name(),
        check: &event.check_name,
        codes: &event.error_codes,
        entities: entities
            .map(|e| JsonEntity {
                kind: &e.kind,
                value: &e.value,
            })
            .collect(),
        message: harmless(&event.message),
        explain: finding.explain(),
    }
}

/// Prints one line's statement as JSON.
pub(super) fn finding(
    out: &mut impl Write,
    finding: &Finding,
    line: u64,
    repeat_of: Option<u64>,
    file: Option<&str>,
) -> io::Result<()> {
    let statement = Statement {
        line,
        what: what(finding),
        repeat_of,
        healthy: finding.event.is_healthy,
        file,
    };
    json(out, &statement)
}

/// Prints each fault as JSON.
pub(super) fn groups(out: &mut impl Write, groups: &Groups, file: Option<&str>) -> io::Result<()> {
    for group in groups.all() {
        let fault = Fault {
            what: what(&group.finding),
            count: group.count,
            first: group.first.line,
            last: group.last.line,
            first_time: group.first.stamp.as_deref(),
            last_time: group.last.stamp.as_deref(),
            closed: group.closed.as_ref().map(|place| place.line),
            file,
        };
        json(out, &fault)?;
    }
    Ok(())
}

fn json(out: &mut impl Write, object: &impl Serialize) -> io::Result<()> {
    json_line(out, &serde_json::to_string(object)?)
}

/// Prints the faults for people, device by device, the worst first.
pub(super) fn table(
    out: &mut impl Write,
    groups: &Groups,
    source: &str,
    lines: u64,
    is_whole: bool,
) -> io::Result<()> {
    let source = harmless(source);
    let rest = if is_whole {
        ""
    } else {
        ", the rest could not be"
    };
    let read = format!("{} read{rest}", counted(lines, "line"));
    if groups.all().is_empty() {
        let (found, style) = if is_whole {
            ("no faults found", GREEN)
        } else {
            ("no faults found in these", YELLOW)
        };
        return writeln!(
            out,
            "{BOLD}{source}{BOLD:#}: {read}, {style}{found}{style:#} {DIM}({KNOWN}){DIM:#}"
        );
    }
    let mut sorted: Vec<(String, &Group)> = groups.all().iter().map(|g| (device(g), g)).collect();
    sorted.sort_by(|(a, x), (b, y)| {
        let worst_first = y.severity().cmp(&x.severity());
        a.cmp(b)
            .then(worst_first)
            .then(x.first.line.cmp(&y.first.line))
    });
    let mut devices: Vec<&str> = sorted.iter().map(|(device, _)| device.as_str()).collect();
    devices.dedup();
    writeln!(
        out,
        "{BOLD}{source}{BOLD:#}: {read}, {} on {}\n",
        counted(sorted.len() as u64, "fault"),
        counted(devices.len() as u64, "device")
    )?;
    let mut table = Table::new(&[
        "DEVICE", "FAULT", "SEVERITY", "COUNT", "FIRST", "LAST", "ACTION",
    ]);
    let mut shown = "";
    for (device, group) in &sorted {
        let name = if device == shown { "" } else { device };
        shown = device;
        table.row(cells(name, group), &note(group));
    }
    table.print(out)
}

/// The address, and the UUID where the log tells it.
fn device(group: &Group) -> String {
    let entities = &group.finding.event.entities;
    let uuid = entities.iter().find(|e| e.kind == "GPU_UUID");
    match (group.finding.pci(), uuid) {
        (Some(pci), Some(uuid)) => format!("{pci} {}", uuid.value),
        (Some(pci), None) => pci,
        (None, _) => "(no device named)".to_owned(),
    }
}

fn cells(device: &str, group: &Group) -> Vec<Cell> {
    let severity = group.severity();
    let style = match severity {
        _ if group.closed.is_some() => DIM,
        Severity::Fatal => RED,
        Severity::Error | Severity::Warning => YELLOW,
        Severity::Info => PLAIN,
    };
    let event = &group.finding.event;
    vec![
        Cell::new(device, BOLD),
        Cell::new(fault(group), PLAIN),
        Cell::new(severity.as_str(), style),
        Cell::new(group.count.to_string(), PLAIN),
        Cell::new(place(&group.first), PLAIN),
        Cell::new(place(&group.last), PLAIN),
        Cell::new(event.recommended_action.name(), style),
    ]
}

/// `xid:79`, and the sub-code where the line has one.
fn fault(group: &Group) -> String {
    let code = group.finding.event.error_codes.first();
    let sub_code = code.and_then(|code| code.split_once('.'));
    match sub_code {
        Some((_, sub_code)) => format!("{} {sub_code}", group.finding.kind),
        None => group.finding.kind.to_string(),
    }
}

fn place(place: &Place) -> String {
    match &place.stamp {
        Some(stamp) => format!("{stamp} (line {})", place.line),
        None => format!("line {}", place.line),
    }
}

fn note(group: &Group) -> String {
    let explain = group.finding.explain();
    match &group.closed {
        Some(closed) => format!("{explain} Over since line {}.", closed.line),
        None => explain,
    }
}
