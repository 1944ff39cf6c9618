//! What is known of each XID: number, name, what NVIDIA's catalogue recommends and the action that
//! the reference makes of it.
//!
//! Source: NVIDIA's published XID catalogue (workbook of October 2025) and the reference's map
//! from its buckets to actions; `data/xid.csv` holds one row a code.

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
}
