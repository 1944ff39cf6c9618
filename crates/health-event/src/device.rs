//! Which devices an event speaks of.
//!
//! The wire lists entities flat (`GPU 0, PCI a, GPU 1, PCI b`). [`devices_of`] groups them;
//! [`Device::key`] gives each its identity and [`Device::agrees`] says whether two descriptions
//! can mean the same part.

use std::collections::BTreeSet;
use std::fmt;

use crate::event::Entity;
use crate::pci;

/// Entity types that describe a place or a reading inside a device and never tell two devices
/// apart. `REG0`…`REG6` belong to them too.
const ATTRIBUTES: [&str; 6] = ["GPC", "TPC", "SM", "NVLINK", "PCI_ID", "REG"];

/// Entity types that name a device, from the strongest.
const KEY_KINDS: [&str; 5] = ["PCI", "GPU_UUID", "NVSWITCH", "NIC", "GPU"];

/// The parts of one device, as (type, value) in the order in which they were first said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Device {
    entities: Vec<Entity>,
}

/// The identity of a device within its check: the first that is present of PCI, GPU_UUID,
/// NVSWITCH, NIC with NICPort, GPU; else all its entities, sorted. Empty means the whole check.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DeviceKey {
    /// The type that gave the key; empty for the whole check and for the fallback.
    kind: &'static str,
    text: String,
}

impl DeviceKey {
    /// From the stored type and text of a key.
    pub fn from_stored(kind: &str, text: &str) -> Self {
        let kind = KEY_KINDS.iter().find(|k| **k == kind);
        Self {
            kind: kind.copied().unwrap_or_default(),
            text: text.to_owned(),
        }
    }

    /// The key as text, for example `PCI=0000:17:00`; empty for the whole check.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Which entity type gave the key.
    pub fn kind(&self) -> &'static str {
        self.kind
    }
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Device {
    /// A device from its entities. Exact repeats are dropped.
    pub fn new(entities: impl IntoIterator<Item = Entity>) -> Self {
        let mut device = Self::default();
        for entity in entities {
            if !device.entities.contains(&entity) {
                device.entities.push(entity);
            }
        }
        device
    }

    /// Whether no device is named: the statement is about the whole check.
    pub fn is_whole_check(&self) -> bool {
        self.entities.is_empty()
    }

    /// What is known of the device, in the form in which it was sent.
    pub fn entities(&self) -> &[Entity] {
        &self.entities
    }

    /// The first value of a type, as sent.
    pub fn value(&self, kind: &str) -> Option<&str> {
        self.entities
            .iter()
            .find(|e| e.kind == kind)
            .map(|e| e.value.as_str())
    }

    /// The device's identity.
    pub fn key(&self) -> DeviceKey {
        for kind in KEY_KINDS {
            let Some(value) = self.value(kind) else {
                continue;
            };
            let mut text = format!("{kind}={}", normal(kind, value));
            if kind == "NIC" {
                match self.value("NICPort") {
                    Some(port) => text = format!("{text}/NICPort={}", normal("NICPort", port)),
                    None if self.value("GPU").is_some() => continue,
                    None => {}
                }
            }
            return DeviceKey { kind, text };
        }
        let all: BTreeSet<String> = self
            .entities
            .iter()
            .map(|e| format!("{}={}", e.kind, normal(&e.kind, &e.value)))
            .collect();
        DeviceKey {
            kind: "",
            text: all.into_iter().collect::<Vec<_>>().join("/"),
        }
    }

    /// Whether two descriptions can mean one device: they share at least one entity type and
    /// agree in every type that both carry. Attributes count only where one of the two has
    /// nothing else.
    pub fn agrees(&self, other: &Self) -> bool {
        let attributes_count = self.only_attributes() || other.only_attributes();
        let mut shared = false;
        for kind in self
            .kinds()
            .filter(|k| attributes_count || !is_attribute(k))
        {
            let theirs = other.values(kind);
            if theirs.is_empty() {
                continue;
            }
            if self.values(kind).is_disjoint(&theirs) {
                return false;
            }
            shared = true;
        }
        shared
    }

    /// Adds what another description of the same device knows beyond this one. Where both carry a
    /// type with other values, `newer` says whether the other one replaces ours.
    pub fn complete(&mut self, other: &Self, newer: bool) {
        for kind in other.kinds() {
            let theirs = other.values(kind);
            let ours = self.values(kind);
            if ours == theirs || (!ours.is_empty() && !newer) {
                continue;
            }
            self.entities.retain(|e| e.kind != kind);
            self.entities
                .extend(other.entities.iter().filter(|e| e.kind == kind).cloned());
        }
    }

    fn kinds(&self) -> impl Iterator<Item = &str> {
        let mut seen = BTreeSet::new();
        self.entities
            .iter()
            .map(|e| e.kind.as_str())
            .filter(move |kind| seen.insert(*kind))
    }

    fn values(&self, kind: &str) -> BTreeSet<String> {
        self.entities
            .iter()
            .filter(|e| e.kind == kind)
            .map(|e| normal(kind, &e.value))
            .collect()
    }

    fn only_attributes(&self) -> bool {
        self.entities.iter().all(|e| is_attribute(&e.kind))
    }
}

fn is_attribute(kind: &str) -> bool {
    let register = kind
        .strip_prefix("REG")
        .is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    register || ATTRIBUTES.contains(&kind)
}

/// The form in which a value is compared.
fn normal(kind: &str, value: &str) -> String {
    if kind == "PCI" {
        pci::normalise(value)
    } else {
        value.trim().to_owned()
    }
}

/// Groups the entities of an event into devices, by the first rule that fits:
/// 1. types whose counts are all equal n > 1 and that stand in blocks pair by position;
/// 2. one entity of a type and n of another: the one belongs to each of the n;
/// 3. else a repeated type starts the next device;
/// 4. what has no partner is a device of its own.
///
/// No entity gives one device: the whole check. Descriptions with one key are one device.
pub fn devices_of(entities: &[Entity]) -> Vec<Device> {
    if entities.is_empty() {
        return vec![Device::default()];
    }
    let groups = by_blocks(entities).unwrap_or_else(|| by_repeats(entities));
    let mut devices: Vec<Device> = Vec::with_capacity(groups.len());
    for device in groups.into_iter().map(Device::new) {
        let key = device.key();
        match devices.iter_mut().find(|d| d.key() == key) {
            Some(known) => {
                known.entities.extend(device.entities);
                *known = Device::new(std::mem::take(&mut known.entities));
            }
            None => devices.push(device),
        }
    }
    devices
}

/// Rules 1 and 2: every type stands in one block, and each block has either one entity or n.
fn by_blocks(entities: &[Entity]) -> Option<Vec<Vec<Entity>>> {
    let blocks: Vec<&[Entity]> = entities.chunk_by(|a, b| a.kind == b.kind).collect();
    let kinds: BTreeSet<&str> = blocks.iter().map(|b| b[0].kind.as_str()).collect();
    let n = blocks.iter().map(|b| b.len()).max()?;
    let fits = blocks.iter().all(|b| b.len() == n || b.len() == 1);
    if kinds.len() != blocks.len() || n == 1 || !fits {
        return None;
    }
    let device = |i: usize| {
        blocks
            .iter()
            .map(|b| b[if b.len() == 1 { 0 } else { i }].clone())
            .collect::<Vec<_>>()
    };
    let devices: Vec<Vec<Entity>> = (0..n).map(device).collect();
    // One part can't be two devices: a lone identity beside n others is a device of its own (4).
    let lone_identity = blocks
        .iter()
        .any(|b| b.len() == 1 && is_identity(&b[0].kind));
    let others_identify = blocks
        .iter()
        .any(|b| b.len() == n && is_identity(&b[0].kind));
    if lone_identity && others_identify {
        return Some(entities.iter().map(|e| vec![e.clone()]).collect());
    }
    Some(devices)
}

/// Types of which one value names exactly one device.
fn is_identity(kind: &str) -> bool {
    matches!(kind, "PCI" | "GPU_UUID" | "GPU")
}

/// Rule 3.
fn by_repeats(entities: &[Entity]) -> Vec<Vec<Entity>> {
    let mut devices: Vec<Vec<Entity>> = vec![Vec::new()];
    for entity in entities {
        let current = devices
            .last_mut()
            .filter(|d| d.iter().all(|e| e.kind != entity.kind));
        match current {
            Some(device) => device.push(entity.clone()),
            None => devices.push(vec![entity.clone()]),
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `"GPU 0, PCI a"` as entities.
    fn entities(text: &str) -> Vec<Entity> {
        text.split(", ")
            .filter(|part| !part.is_empty())
            .map(|part| part.split_once(' ').unwrap())
            .map(|(kind, value)| Entity::new(kind, value))
            .collect()
    }

    fn device(text: &str) -> Device {
        Device::new(entities(text))
    }

    #[test]
    fn twelve_groupings() {
        let table: [(&str, &[&str]); 12] = [
            ("", &[""]),
            ("GPU 0", &["GPU 0"]),
            ("GPU 0, GPU 1, GPU 2", &["GPU 0", "GPU 1", "GPU 2"]),
            (
                "GPU 0, GPU 1, PCI a, PCI b",
                &["GPU 0, PCI a", "GPU 1, PCI b"],
            ),
            (
                "GPU 0, PCI a, GPU 1, PCI b",
                &["GPU 0, PCI a", "GPU 1, PCI b"],
            ),
            (
                "NIC m, NICPort 1, NICPort 2",
                &["NIC m, NICPort 1", "NIC m, NICPort 2"],
            ),
            ("NIC mlx5_0, NICPort 1", &["NIC mlx5_0, NICPort 1"]),
            (
                "NIC a, NICPort 1, NIC b, NICPort 2",
                &["NIC a, NICPort 1", "NIC b, NICPort 2"],
            ),
            ("GPU 0, GPU 1, PCI a", &["GPU 0", "GPU 1", "PCI a"]),
            (
                "PCI a, GPU_UUID u, GPC 1, TPC 2, SM 3",
                &["PCI a, GPU_UUID u, GPC 1, TPC 2, SM 3"],
            ),
            ("PCI a, NVLINK 1, NVLINK 2", &["PCI a, NVLINK 1, NVLINK 2"]),
            ("GPU 0, PCI a, GPU 1", &["GPU 0, PCI a", "GPU 1"]),
        ];
        for (sent, want) in table {
            let want: Vec<Device> = want.iter().map(|text| device(text)).collect();
            assert_eq!(devices_of(&entities(sent)), want, "{sent}");
        }
    }

    #[test]
    fn the_key_is_the_strongest_name_present() {
        let table = [
            ("", ""),
            ("GPU 0, GPU_UUID GPU-1, PCI 0000:17:00.0", "PCI=0000:17:00"),
            ("GPU 0, GPU_UUID GPU-1", "GPU_UUID=GPU-1"),
            ("NVSWITCH 3, NVLINK 4", "NVSWITCH=3"),
            ("NIC mlx5_0, NICPort 1", "NIC=mlx5_0/NICPort=1"),
            ("NIC mlx5_0", "NIC=mlx5_0"),
            ("GPU 0", "GPU=0"),
            ("Pod b, Disk a", "Disk=a/Pod=b"),
            ("PCI 00000000:17:00.0", "PCI=0000:17:00"),
            ("PCI 17:00.0", "PCI=0000:17:00"),
        ];
        for (text, key) in table {
            let of_device = device(text).key();
            assert_eq!(of_device.as_str(), key, "{text}");
            let stored = DeviceKey::from_stored(of_device.kind(), of_device.as_str());
            assert_eq!(stored, of_device);
        }
    }

    #[test]
    fn devices_agree_only_without_contradiction() {
        let table = [
            ("GPU 0", "GPU 0, PCI a", true),
            ("GPU 0, PCI b", "GPU 0, PCI a", false),
            ("PCI a, GPU_UUID u1", "PCI a, GPU_UUID u2", false),
            ("PCI a, GPU_UUID u", "PCI b, GPU_UUID u", false),
            ("GPU_UUID u", "PCI a, GPU_UUID u", true),
            ("NIC m, NICPort 1", "NIC m, NICPort 2", false),
            ("NIC m", "NIC m, NICPort 2", true),
            ("NIC n, NICPort 1", "NIC m, NICPort 1", false),
            ("PCI a", "GPU 0", false),
            ("PCI a, NVLINK 1", "PCI a, NVLINK 2", true),
            ("NVLINK 1", "PCI a, NVLINK 2", false),
            ("NVLINK 2", "PCI a, NVLINK 2", true),
            ("PCI 0000:17:00.0", "PCI 00000000:17:00", true),
        ];
        for (a, b, want) in table {
            assert_eq!(device(a).agrees(&device(b)), want, "{a} / {b}");
            assert_eq!(device(b).agrees(&device(a)), want, "{b} / {a}");
        }
    }

    #[test]
    fn completing_adds_and_a_newer_value_replaces() {
        let mut known = device("GPU 0");
        known.complete(&device("GPU 0, PCI a"), false);
        assert_eq!(known, device("GPU 0, PCI a"));
        known.complete(&device("PCI a, GPU_UUID u1"), false);
        known.complete(&device("GPU_UUID u2"), false);
        assert_eq!(known.value("GPU_UUID"), Some("u1"));
        known.complete(&device("GPU_UUID u2"), true);
        assert_eq!(known.value("GPU_UUID"), Some("u2"));
    }
}
