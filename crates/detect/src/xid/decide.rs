//! From what a line states to the event that it is.

use health_event::{Entity, HealthEvent, RecommendedAction, checks, keys};

use super::grammar::{self, Recovery, Xid};
use super::{MAX_GPUS, MAX_STATEMENTS, catalog};
use crate::finding::{Finding, Kind};

/// Longest message of an event, as on the wire.
const MAX_MESSAGE: usize = 16 * 1024;
/// What a cut message ends with.
const CUT: &str = " [cut]";

/// The XIDs whose NVLink 5 lines carry a sub-code.
const SUB_CODED: std::ops::RangeInclusive<u32> = 144..=150;
/// The catalogue's bucket of these: it only tells to decode the line, so it does not judge it.
const DECODE_BUCKET: &str = "WORKFLOW_NVLINK5_ERR";

/// Which GPU sits at which address, as the driver's own lines tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct XidState {
    /// (PCI in its compared form, UUID), the one heard of last at the end.
    uuids: Vec<(String, String)>,
}

impl XidState {
    /// Remembers the UUIDs that a record names.
    pub fn learn_uuid(&mut self, text: &[u8]) {
        for line in text.split(|b| *b == b'\n') {
            let Some((pci, uuid)) = grammar::parse_uuid(line) else {
                continue;
            };
            self.uuids.retain(|(known, _)| *known != pci);
            if self.uuids.len() == MAX_GPUS {
                self.uuids.remove(0);
            }
            self.uuids.push((pci, uuid));
        }
    }

    /// Adds an event for each line of the record that states an XID, up to [`MAX_STATEMENTS`];
    /// each carries the whole record as its message.
    pub fn observe(&self, text: &[u8], findings: &mut Vec<Finding>) {
        let lines = text.split(|b| *b == b'\n');
        for xid in lines.filter_map(grammar::parse).take(MAX_STATEMENTS) {
            if let Some(event) = self.event(&xid, text) {
                let kind = Kind::Xid(xid.code);
                findings.push(Finding { kind, event });
            }
        }
    }

    fn uuid(&self, pci: &str) -> Option<&str> {
        let pci = health_event::pci::normalise(pci);
        let known = self.uuids.iter().find(|(known, _)| *known == pci);
        known.map(|(_, uuid)| uuid.as_str())
    }

    fn event(&self, xid: &Xid, text: &[u8]) -> Option<HealthEvent> {
        let verdict = verdict(xid);
        if verdict.healthy && xid.pci.is_none() {
            // Without a device it would close the fault of every GPU.
            return None;
        }
        let detector = (keys::DETECTOR.to_owned(), "kernel-log".to_owned());
        Some(HealthEvent {
            version: 1,
            agent: checks::SYSLOG_AGENT.to_owned(),
            component_class: "GPU".to_owned(),
            check_name: checks::XID.to_owned(),
            is_fatal: verdict.fatal,
            is_healthy: verdict.healthy,
            message: message(text),
            recommended_action: verdict.action,
            error_codes: vec![error_code(xid)],
            entities: self.entities(xid),
            metadata: [detector].into(),
            ..HealthEvent::default()
        })
    }

    /// In the order of the reference: PCI, GPU_UUID, then where in the GPU.
    fn entities(&self, xid: &Xid) -> Vec<Entity> {
        let mut entities = Vec::new();
        if let Some(pci) = &xid.pci {
            entities.push(Entity::new("PCI", pci));
            if let Some(uuid) = self.uuid(pci) {
                entities.push(Entity::new("GPU_UUID", uuid));
            }
        }
        if let Some(place) = xid.place {
            for (kind, value) in [("GPC", place.gpc), ("TPC", place.tpc), ("SM", place.sm)] {
                entities.push(Entity::new(kind, &value.to_string()));
            }
        }
        if let Some(registers) = xid.registers {
            entities.push(Entity::new("NVLINK", &registers.link.to_string()));
            for (index, value) in registers.values.iter().enumerate() {
                entities.push(Entity::new(
                    &format!("REG{index}"),
                    &format!("{value:032b}"),
                ));
            }
        }
        if let Some(nvlink5) = xid.nvlink5.as_ref().filter(|n| n.link >= 0) {
            entities.push(Entity::new("NVLINK", &nvlink5.link.to_string()));
        }
        entities
    }
}

struct Verdict {
    healthy: bool,
    fatal: bool,
    action: RecommendedAction,
}

fn verdict(xid: &Xid) -> Verdict {
    let unhealthy = |fatal, action| Verdict {
        healthy: false,
        fatal,
        action,
    };
    if let Some(recovery) = xid.recovery {
        return match recovery {
            Recovery::None => Verdict {
                healthy: true,
                fatal: false,
                action: RecommendedAction::None,
            },
            Recovery::Reset | Recovery::DrainAndReset => {
                unhealthy(true, RecommendedAction::ComponentReset)
            }
            Recovery::Reboot => unhealthy(true, RecommendedAction::RestartBm),
            Recovery::DrainP2p | Recovery::Other => {
                unhealthy(true, RecommendedAction::ContactSupport)
            }
        };
    }
    let row = catalog::find(xid.code);
    let action = row.map_or(RecommendedAction::ContactSupport, |row| row.action);
    let fatal = row.is_some_and(|row| row.fatal);
    match &xid.nvlink5 {
        Some(line) if line.fatal && action == RecommendedAction::None => {
            unhealthy(true, RecommendedAction::ContactSupport)
        }
        Some(line) if line.fatal => unhealthy(true, action),
        Some(_) if row.is_some_and(|row| row.bucket == DECODE_BUCKET) => unhealthy(false, action),
        _ => unhealthy(fatal, action),
    }
}

/// `79`, or `145.RLW_REMAP` where the line has a sub-code.
fn error_code(xid: &Xid) -> String {
    match &xid.nvlink5 {
        Some(line) if SUB_CODED.contains(&xid.code) => format!("{}.{}", xid.code, line.sub_code),
        _ => xid.code.to_string(),
    }
}

/// The record as it was written, cut at [`MAX_MESSAGE`] bytes.
fn message(text: &[u8]) -> String {
    let mut message = String::from_utf8_lossy(text).into_owned();
    if message.len() > MAX_MESSAGE {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE - CUT.len()));
        message.push_str(CUT);
    }
    message
}

/// What the XID means and what to do next.
pub fn explain(code: u32, event: &HealthEvent) -> String {
    let row = catalog::find(code);
    let what = row.map_or("An error number that this version does not know", |row| {
        row.description
    });
    if event.is_healthy {
        return format!("{what}: the driver says that the GPU needs no recovery any more.");
    }
    format!("{what}. {}", next_step(row, event))
}

fn next_step(row: Option<&catalog::Entry>, event: &HealthEvent) -> &'static str {
    match (event.recommended_action, row.map(|row| row.bucket)) {
        (RecommendedAction::None, Some("IGNORE")) => {
            "Nothing to do, unless it comes again and again."
        }
        (RecommendedAction::None, _) => {
            "Most often a fault of the program: restart it; if other programs meet it on the same GPU, have the GPU looked at."
        }
        (RecommendedAction::ComponentReset, _) => "Take the work off this GPU and reset it.",
        (RecommendedAction::RestartBm, _) => {
            "Take the work off this machine and reboot it; if it comes again, have the GPU looked at."
        }
        (RecommendedAction::RestartVm, _) => "Restart the machine that owns this GPU.",
        (_, Some("WORKFLOW_XID_45")) => {
            "Follow the other XIDs of this GPU; alone it is mostly an aborted program."
        }
        (_, Some("CHECK_MECHANICALS")) => "Check the GPU's seating and its power cables.",
        (_, Some("UPDATE_SWFW")) => "Update driver and firmware so that guest and host fit.",
        (_, Some("WORKFLOW_NVLINK_ERR" | DECODE_BUCKET)) => {
            "A link between GPUs failed: reset the GPU; if it comes again, have link and GPU looked at."
        }
        _ => "Have the GPU looked at: no automatic repair is known for this.",
    }
}
