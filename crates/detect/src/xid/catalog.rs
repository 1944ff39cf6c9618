//! What is known of each XID: number, name, what NVIDIA's catalogue recommends and the action that
//! the reference makes of it.
//!
//! Source: NVIDIA's published XID catalogue (workbook of October 2025) and the reference's map
//! from its buckets to actions; `data/xid.csv` holds one row a code.
//!
//! Severity and action of a code are pinned: each row names the version of Warden that brought
//! them, and `data/xid-pinned.csv` keeps what every version brought (tests below). To change a row,
//! change it with its `since`, and add a line there; nothing that stands there is edited.

use std::sync::OnceLock;

use health_event::RecommendedAction;

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The XID.
    pub code: u32,
    /// The driver's name of it.
    pub mnemonic: &'static str,
    /// What happened, in a few words.
    pub description: &'static str,
    /// The catalogue's immediate recommendation; empty where it has none.
    pub bucket: &'static str,
    /// What the bucket means for us.
    pub action: RecommendedAction,
    /// Whether work on the GPU can't go on.
    pub fatal: bool,
    /// The version of Warden that brought this action and severity.
    pub since: &'static str,
}

static CSV: &str = include_str!("../../data/xid.csv");

/// All rows, by rising code.
pub fn entries() -> &'static [Entry] {
    static ENTRIES: OnceLock<Vec<Entry>> = OnceLock::new();
    ENTRIES.get_or_init(|| CSV.lines().skip(1).filter_map(row).collect())
}

/// The row of a code.
pub fn find(code: u32) -> Option<&'static Entry> {
    let entries = entries();
    let index = entries.binary_search_by_key(&code, |e| e.code).ok()?;
    entries.get(index)
}

fn row(line: &'static str) -> Option<Entry> {
    let mut cells = line.split(',');
    let entry = Entry {
        code: cells.next()?.parse().ok()?,
        mnemonic: cells.next()?,
        description: cells.next()?,
        bucket: cells.next()?,
        action: RecommendedAction::from_name(cells.next()?)?,
        fatal: cells.next()?.parse().ok()?,
        since: cells.next()?,
    };
    cells.next().is_none().then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_read_and_the_codes_rise() {
        assert_eq!(entries().len(), CSV.lines().count() - 1);
        assert_eq!(entries().len(), 172);
        assert!(entries().is_sorted_by(|a, b| a.code < b.code));
    }

    #[test]
    fn a_row_is_fatal_if_its_bucket_asks_for_an_action() {
        for entry in entries() {
            let asks = entry.action != RecommendedAction::None && !entry.bucket.is_empty();
            assert_eq!(entry.fatal, asks, "{entry:?}");
            assert!(!entry.mnemonic.is_empty() && !entry.description.is_empty());
        }
    }

    #[test]
    fn totals_are_those_of_the_reference_but_for_rows_without_a_bucket() {
        let count = |action| entries().iter().filter(|e| e.action == action).count();
        assert_eq!(count(RecommendedAction::None), 69);
        assert_eq!(count(RecommendedAction::ComponentReset), 15);
        assert_eq!(count(RecommendedAction::RestartBm), 1);
        assert_eq!(count(RecommendedAction::RestartVm), 1);
        // 85 of the reference and 154, which it reads from the text.
        assert_eq!(count(RecommendedAction::ContactSupport), 86);
        assert_eq!(entries().iter().filter(|e| e.bucket.is_empty()).count(), 11);
    }

    /// A line of `xid-pinned.csv`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Pin {
        version: &'static str,
        code: u32,
        action: RecommendedAction,
        fatal: bool,
    }

    fn pins() -> Vec<Pin> {
        let pin = |line: &'static str| {
            let cells: Vec<&str> = line.split(',').collect();
            let [version, code, action, fatal] = cells[..] else {
                panic!("{line}");
            };
            Pin {
                version,
                code: code.parse().unwrap(),
                action: RecommendedAction::from_name(action).unwrap(),
                fatal: fatal.parse().unwrap(),
            }
        };
        PINNED.lines().skip(1).map(pin).collect()
    }

    static PINNED: &str = include_str!("../../data/xid-pinned.csv");

    /// What each version brought, as a sum over its lines: FNV-1a, 64 bits.
    const SUMS: [(&str, u64); 1] = [("0.1.0", 0x3e57_e8a6_21df_7f16)];

    fn number(version: &str) -> Vec<u32> {
        version.split('.').map(|n| n.parse().unwrap()).collect()
    }

    #[test]
    fn severity_and_action_are_those_of_the_version_that_a_row_names() {
        let pins = pins();
        for entry in entries() {
            let newest = pins.iter().rfind(|pin| pin.code == entry.code);
            let pinned = Pin {
                version: entry.since,
                code: entry.code,
                action: entry.action,
                fatal: entry.fatal,
            };
            assert_eq!(
                newest,
                Some(&pinned),
                "a changed row needs a new `since`, and a line in xid-pinned.csv"
            );
        }
        for pin in pins {
            assert!(find(pin.code).is_some(), "{pin:?}: no row is taken away");
            assert!(
                number(pin.version) <= number(env!("CARGO_PKG_VERSION")),
                "{pin:?}"
            );
        }
    }

    #[test]
    fn what_a_version_brought_is_never_edited() {
        let mut versions: Vec<&str> = pins().iter().map(|pin| pin.version).collect();
        assert!(versions.is_sorted_by_key(|version| number(version)));
        versions.dedup();
        for version in &versions {
            let lines = PINNED
                .lines()
                .filter(|l| l.split(',').next() == Some(version));
            let sum = lines
                .flat_map(str::bytes)
                .fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
                    (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
                });
            let pinned = SUMS.iter().find(|(pinned, _)| pinned == version);
            assert_eq!(pinned, Some(&(*version, sum)), "{sum:#x}");
        }
    }

    /// A code that was unknown is CONTACT_SUPPORT and not fatal.
    #[test]
    fn an_upgrade_never_makes_a_healthy_machine_fatal() {
        let first = SUMS[0].0;
        let pins = pins();
        for (index, pin) in pins
            .iter()
            .enumerate()
            .filter(|(_, pin)| pin.version != first)
        {
            let before = pins[..index]
                .iter()
                .rfind(|earlier| earlier.code == pin.code);
            assert_ne!(
                before.map(|b| (b.action, b.fatal)),
                Some((pin.action, pin.fatal))
            );
            let was_fatal = before.is_some_and(|earlier| earlier.fatal);
            assert!(
                was_fatal || !pin.fatal,
                "{pin:?}: what becomes fatal has to be only stored for a version first"
            );
        }
    }
}
