//! How a line states an XID. Patterns are searched, not anchored: whatever a logger put in front
//! does not matter.

use std::sync::OnceLock;

use regex::bytes::{Captures, Regex};

use crate::pattern::compiled;

/// What one line states.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Xid {
    /// The number.
    pub code: u32,
    /// The GPU's PCI address as printed, without the function; nothing if the line has no address
    /// in its place.
    pub pci: Option<String>,
    /// The process, where the driver knew it.
    pub pid: Option<u32>,
    /// Its name, where the driver knew it; at most 64 bytes.
    pub process: Option<String>,
    /// The further fields of NVLink 5 lines.
    pub nvlink5: Option<Nvlink5>,
    /// Of 13: where in the GPU.
    pub place: Option<Place>,
    /// Of 74: the link and its error registers.
    pub registers: Option<Registers>,
    /// Of 154: the recovery that is needed now.
    pub recovery: Option<Recovery>,
}

/// `145, RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082 0x00000040 …)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvlink5 {
    /// `RLW_REMAP`.
    pub sub_code: String,
    /// The severity word is `Fatal`.
    pub fatal: bool,
    /// The link; negative where the error belongs to none.
    pub link: i32,
    /// First hexadecimal word: interrupt bits.
    pub interrupts: u32,
    /// Second hexadecimal word: error status.
    pub status: u32,
}

/// `(GPC 1, TPC 3, SM 0)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Graphics processing cluster.
    pub gpc: u32,
    /// Texture processing cluster.
    pub tpc: u32,
    /// Streaming multiprocessor.
    pub sm: u32,
}

/// `link 3(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    /// The link.
    pub link: u32,
    /// The seven registers, in the order of the line.
    pub values: [u32; 7],
}

/// `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// 0: the GPU needs nothing any more.
    None,
    /// 1: reset of this GPU.
    Reset,
    /// 2: reboot of the machine.
    Reboot,
    /// 3: stop peer-to-peer traffic.
    DrainP2p,
    /// 4: take the work off, then reset.
    DrainAndReset,
    /// A number or words that this version does not know.
    Other,
}

/// The XID that a line states, if it does.
pub fn parse(line: &[u8]) -> Option<Xid> {
    static HEAD: OnceLock<Regex> = OnceLock::new();
    // The parentheses hold the address and, where the GPU is partitioned, ` GPU-I:05`.
    let head = compiled(
        &HEAD,
        r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]*)([^)\n]{0,64})\): *([0-9]{1,9})\b",
    );
    let captures = head.captures(line)?;
    let code = text(&captures, 3)?.parse().ok()?;
    let rest = &line[captures.get(0)?.end()..];
    let address = text(&captures, 1)?;
    let address = address.split('.').next().unwrap_or_default();
    let mut xid = Xid {
        code,
        pci: health_event::pci::parse(address).map(|_| address.to_owned()),
        nvlink5: nvlink5(rest),
        ..Xid::default()
    };
    (xid.pid, xid.process) = process(rest);
    match code {
        13 => xid.place = place(rest),
        74 => xid.registers = registers(rest),
        154 => xid.recovery = Some(recovery(rest)),
        _ => {}
    }
    Some(xid)
}

/// The address and UUID that a line ties together, if it does.
pub fn parse_uuid(line: &[u8]) -> Option<(String, String)> {
    static UUID: OnceLock<Regex> = OnceLock::new();
    let captures = compiled(
        &UUID,
        r"NVRM: GPU at (?:PCI:)?([0-9A-Fa-f:.]{4,24}): (GPU-[0-9A-Fa-f-]{1,64})",
    )
    .captures(line)?;
    let pci = health_event::pci::parse(&text(&captures, 1)?)?;
    Some((pci, text(&captures, 2)?))
}

fn nvlink5(rest: &[u8]) -> Option<Nvlink5> {
    static NVLINK5: OnceLock<Regex> = OnceLock::new();
    let captures = compiled(
        &NVLINK5,
        concat!(
            r", *([0-9A-Za-z_]{1,64}) +([0-9A-Za-z-]+) +[0-9A-Za-z]+ +[0-9A-Za-z]+ +",
            r"Link +(-?[0-9]{1,6}) +\(0x([0-9A-Fa-f]{1,8}) +0x([0-9A-Fa-f]{1,8})\b"
        ),
    )
    .captures(rest)?;
    Some(Nvlink5 {
        sub_code: text(&captures, 1)?,
        fatal: text(&captures, 2)?.eq_ignore_ascii_case("fatal"),
        link: text(&captures, 3)?.parse().ok()?,
        interrupts: hex(&captures, 4)?,
        status: hex(&captures, 5)?,
    })
}

fn process(rest: &[u8]) -> (Option<u32>, Option<String>) {
    static PROCESS: OnceLock<Regex> = OnceLock::new();
    let captures = compiled(
        &PROCESS,
        r"^, *pid=(?:([0-9]{1,10})|'?<[^>]*>'?)(?:, *name=([^,\n]{1,64}))?",
    )
    .captures(rest);
    let Some(captures) = captures else {
        return (None, None);
    };
    let pid = text(&captures, 1).and_then(|pid| pid.parse().ok());
    let name = text(&captures, 2).filter(|name| name != "<unknown>");
    (pid, name)
}

fn place(rest: &[u8]) -> Option<Place> {
    static PLACE: OnceLock<Regex> = OnceLock::new();
    let captures = compiled(
        &PLACE,
        r"\(GPC ([0-9]{1,4}), TPC ([0-9]{1,4}), SM ([0-9]{1,4})\)",
    )
    .captures(rest)?;
    let number = |group| text(&captures, group)?.parse().ok();
    Some(Place {
        gpc: number(1)?,
        tpc: number(2)?,
        sm: number(3)?,
    })
}

fn registers(rest: &[u8]) -> Option<Registers> {
    static REGISTERS: OnceLock<Regex> = OnceLock::new();
    let captures = compiled(
        &REGISTERS,
        concat!(
            r"link ([0-9]{1,6}) *\(0x([0-9A-Fa-f]{1,8}), *0x([0-9A-Fa-f]{1,8}), *",
            r"0x([0-9A-Fa-f]{1,8}), *0x([0-9A-Fa-f]{1,8}), *0x([0-9A-Fa-f]{1,8}), *",
            r"0x([0-9A-Fa-f]{1,8}), *0x([0-9A-Fa-f]{1,8})\)"
        ),
    )
    .captures(rest)?;
    let mut values = [0; 7];
    for (group, value) in (2..).zip(&mut values) {
        *value = hex(&captures, group)?;
    }
    Some(Registers {
        link: text(&captures, 1)?.parse().ok()?,
        values,
    })
}

/// Numbers: `nvmlDeviceGpuRecoveryAction_t` of `nvml.h`.
fn recovery(rest: &[u8]) -> Recovery {
    static NUMBER: OnceLock<Regex> = OnceLock::new();
    let captures = compiled(&NUMBER, r"\bto +(?:0x)?([0-9A-Fa-f]{1,8}) *\(").captures(rest);
    if let Some(number) = captures.and_then(|c| hex(&c, 1)) {
        return match number {
            0 => Recovery::None,
            1 => Recovery::Reset,
            2 => Recovery::Reboot,
            3 => Recovery::DrainP2p,
            4 => Recovery::DrainAndReset,
            _ => Recovery::Other,
        };
    }
    match last_parentheses(rest) {
        Some(b"None") => Recovery::None,
        Some(b"GPU Reset Required") => Recovery::Reset,
        Some(b"Node Reboot Required") => Recovery::Reboot,
        Some(b"Drain P2P") => Recovery::DrainP2p,
        Some(b"Drain and Reset") => Recovery::DrainAndReset,
        _ => Recovery::Other,
    }
}

fn last_parentheses(rest: &[u8]) -> Option<&[u8]> {
    let open = rest.iter().rposition(|b| *b == b'(')?;
    let close = rest.iter().rposition(|b| *b == b')')?;
    rest.get(open + 1..close)
}

fn text(captures: &Captures<'_>, group: usize) -> Option<String> {
    let bytes = captures.get(group)?.as_bytes();
    Some(String::from_utf8_lossy(bytes).into_owned())
}

fn hex(captures: &Captures<'_>, group: usize) -> Option<u32> {
    u32::from_str_radix(&text(captures, group)?, 16).ok()
}
