//! One reader feeds all rules: literals find the records worth a second look, and only then does
//! the rule's own grammar (a regular expression compiled at its first hit) run.
//!
//! Contiguous NFA: a tenth of the memory of a DFA or a set of regular expressions at half their
//! speed, which is still a third of a microsecond a line (build-notes 2).

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind};
use health_event::keys;

use crate::finding::Finding;
use crate::kmsg::{Origin, Record};
use crate::xid::{self, XidState};

/// Who looks at a record that contains a literal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Detector {
    /// The map of GPU addresses to UUIDs.
    GpuUuid,
    /// GPU driver errors.
    Xid,
}

/// The literal that every line of a detector contains, in the order in which they look: the UUIDs
/// first, so that a record's XID knows the record's UUID. A new detector is a line here, a variant
/// above and an arm in [`KernelLog::look`].
const LITERALS: [(&str, Detector); 2] = [
    (xid::UUID_LITERAL, Detector::GpuUuid),
    (xid::LITERAL, Detector::Xid),
];

/// What a person may choose about the kernel log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelLogConfig {
    /// Believe records that user processes wrote too: for demos and tests. Each event that comes
    /// of one says `warden.dev/origin=user`.
    pub accept_user_records: bool,
}

/// All detectors of the kernel log of one boot, with their state.
#[derive(Debug)]
pub struct KernelLog {
    config: KernelLogConfig,
    prefilter: AhoCorasick,
    xid: XidState,
}

impl KernelLog {
    /// Detectors that have seen nothing yet.
    pub fn new(config: KernelLogConfig) -> Self {
        Self {
            config,
            prefilter: prefilter(),
            xid: XidState::default(),
        }
    }

    /// Looks at the next record and adds what it states to `findings`, in the order of the text.
    /// A record that matches nothing costs one pass and no allocation.
    pub fn observe(&mut self, record: &Record<'_>, findings: &mut Vec<Finding>) {
        let mut hits = self.prefilter.find_overlapping_iter(record.raw());
        let Some(first) = hits.next() else {
            return;
        };
        let user = record.origin == Origin::User;
        if user && !self.config.accept_user_records {
            return;
        }
        let mut hit = [false; LITERALS.len()];
        for found in std::iter::once(first).chain(hits) {
            hit[found.pattern().as_usize()] = true;
        }
        let text = record.text();
        let before = findings.len();
        for ((_, detector), _) in LITERALS.iter().zip(hit).filter(|(_, hit)| *hit) {
            self.look(*detector, &text, findings);
        }
        if user {
            for finding in &mut findings[before..] {
                let metadata = &mut finding.event.metadata;
                metadata.insert(keys::ORIGIN.to_owned(), "user".to_owned());
            }
        }
    }

    fn look(&mut self, detector: Detector, text: &[u8], findings: &mut Vec<Finding>) {
        match detector {
            Detector::GpuUuid => self.xid.learn_uuid(text),
            Detector::Xid => self.xid.observe(text, findings),
        }
    }
}

fn prefilter() -> AhoCorasick {
    AhoCorasickBuilder::new()
        .kind(Some(AhoCorasickKind::ContiguousNFA))
        .build(LITERALS.iter().map(|(literal, _)| literal))
        .expect("a handful of short literals fits any automaton")
}
