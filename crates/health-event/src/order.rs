//! Who said something and when: the order in which statements are judged.
//!
//! The truth about a fault is what was said last, not what arrived last. Statements that passed a
//! node's agent carry an [`Order`] (boot, spool, number), which no clock can disturb; others are
//! ordered by the time that they claim.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;

/// A kernel's boot id. Empty means unknown, which proves nothing and stops nothing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BootId(Arc<str>);

impl BootId {
    /// Takes over a boot id: trimmed, cut to 64 bytes, `/` and control characters replaced by `-`.
    pub fn new(text: &str) -> Self {
        let clean: String = text
            .trim()
            .chars()
            .map(|c| {
                if c.is_ascii_graphic() && c != '/' {
                    c
                } else {
                    '-'
                }
            })
            .take(64)
            .collect();
        Self(Arc::from(clean))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether nothing is known.
    pub fn is_unknown(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootId({})", &*self.0)
    }
}

/// The boots of one machine in the order in which they were seen; at most [`Boots::KEPT`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Boots(Vec<BootId>);

impl Boots {
    /// How many boot ids a machine keeps.
    pub const KEPT: usize = 16;

    /// From a list, oldest first; of a longer one the newest stay.
    pub fn new(boots: Vec<BootId>) -> Self {
        let skip = boots.len().saturating_sub(Self::KEPT);
        Self(boots.into_iter().skip(skip).collect())
    }

    /// The present boot: the newest seen.
    pub fn present(&self) -> Option<&BootId> {
        self.0.last()
    }

    /// Whether this boot is known and no longer the present one.
    pub fn is_past(&self, boot: &BootId) -> bool {
        self.rank(boot).is_some_and(|rank| rank + 1 < self.0.len())
    }

    /// Notes a boot that the agent's report or the node's status brought in. A boot that is known
    /// already, and an unknown (empty) one, change nothing. Answers whether it was new.
    pub fn observe(&mut self, boot: &BootId) -> bool {
        if boot.is_unknown() || self.rank(boot).is_some() {
            return false;
        }
        self.0.push(boot.clone());
        if self.0.len() > Self::KEPT {
            self.0.remove(0);
        }
        true
    }

    /// Notes the boot that the agent's own report carries. It runs in that boot now, so this is
    /// the present one, also where another was taken for it: a node's status may be read from a
    /// cache that lags behind. Answers whether anything changed.
    pub fn report(&mut self, boot: &BootId) -> bool {
        if boot.is_unknown() || self.present() == Some(boot) {
            return false;
        }
        self.0.retain(|known| known != boot);
        self.observe(boot)
    }

    /// The boots, oldest first.
    pub fn as_slice(&self) -> &[BootId] {
        &self.0
    }

    fn rank(&self, boot: &BootId) -> Option<usize> {
        self.0.iter().position(|b| b == boot)
    }

    /// A boot that was never reported stands after all that were.
    fn rank_or_last(&self, boot: &BootId) -> usize {
        self.rank(boot).unwrap_or(usize::MAX)
    }
}

/// Where an event stands among all that passed one node's agent: `boot/spool/number`. The number
/// rises by one for each event and belongs to the spool; a spool id is a ULID, so that a later
/// spool has the greater id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Order {
    /// Boot in which the event was observed.
    pub boot: BootId,
    /// The agent's spool (a ULID).
    pub spool: Arc<str>,
    /// Number within the spool, from 1.
    pub number: u64,
}

/// Why a text is no [`Order`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an order: want BOOT/SPOOL/NUMBER")]
pub struct OrderError(String);

impl Order {
    /// Later boot, then later spool, then higher number.
    pub fn compare(&self, other: &Self, boots: &Boots) -> Ordering {
        let rank = |order: &Self| boots.rank_or_last(&order.boot);
        rank(self)
            .cmp(&rank(other))
            .then_with(|| self.spool.cmp(&other.spool))
            .then_with(|| self.number.cmp(&other.number))
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.boot, self.spool, self.number)
    }
}

impl FromStr for Order {
    type Err = OrderError;

    fn from_str(text: &str) -> Result<Self, OrderError> {
        let error = || OrderError(text.chars().take(160).collect());
        let mut parts = text.split('/');
        let (Some(boot), Some(spool), Some(number), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(error());
        };
        if boot.len() > 64 || spool.is_empty() || spool.len() > 64 || !spool.is_ascii() {
            return Err(error());
        }
        let number = number.parse().map_err(|_| error())?;
        Ok(Self {
            boot: BootId::new(boot),
            spool: Arc::from(spool),
            number,
        })
    }
}

/// An authenticated sender: `agent:NODE` for all that passed a node's agent,
/// `serviceaccount:NAMESPACE/NAME` for a direct caller, `controller` for our own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sender(Arc<str>);

impl Sender {
    /// The agent of a node.
    pub fn agent(node: &str) -> Self {
        Self(Arc::from(format!("agent:{node}")))
    }

    /// A service account that calls the controller itself.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self(Arc::from(format!("serviceaccount:{namespace}/{name}")))
    }

    /// The controller.
    pub fn controller() -> Self {
        Self(Arc::from("controller"))
    }

    /// From stored text.
    pub fn from_stored(text: &str) -> Self {
        Self(Arc::from(text))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// When something was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// The order, if the statement passed an agent.
    pub order: Option<Order>,
    /// The time that the sender claims; the time of receipt where none was claimed or it lay more
    /// than ten minutes ahead.
    pub at: Timestamp,
}

impl Stamp {
    /// Which of two statements *of one sender* is the later. Where only one has an order, that
    /// one is: a sender that gained an agent keeps it.
    pub fn compare(&self, other: &Self, boots: &Boots) -> Ordering {
        match (&self.order, &other.order) {
            (Some(a), Some(b)) => a.compare(b, boots),
            (Some(_), None) => Ordering::Greater,
            (None, Some(_)) => Ordering::Less,
            (None, None) => self.at.cmp(&other.at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(text: &str) -> Order {
        text.parse().unwrap()
    }

    #[test]
    fn what_passed_an_agent_counts_by_its_order_whatever_time_it_claims() {
        let now: Timestamp = "2026-09-12T01:20:30Z".parse().unwrap();
        let month_ago = now - jiff::SignedDuration::from_hours(30 * 24);
        let stamp = |number: Option<&str>, at| Stamp {
            order: number.map(|number| order(&format!("b/s/{number}"))),
            at,
        };
        let boots = Boots::default();
        let said = |first: Stamp, second: Stamp| second.compare(&first, &boots);
        let through_an_agent = said(stamp(Some("1"), now), stamp(Some("2"), month_ago));
        assert_eq!(through_an_agent, Ordering::Greater);
        let by_itself = said(stamp(None, now), stamp(None, month_ago));
        assert_eq!(by_itself, Ordering::Less);
    }

    #[test]
    fn order_survives_its_text_form() {
        for text in ["b1/01ARZ3NDEKTSV4RRFFQ69G5FAV/17", "/s/0"] {
            assert_eq!(order(text).to_string(), text);
        }
        for bad in [
            "",
            "a/b",
            "a/b/c",
            "a/b/1/2",
            "a//1",
            "a/b/-1",
            "a/b/99999999999999999999",
        ] {
            assert!(bad.parse::<Order>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn boot_decides_then_spool_then_number() {
        let boots = Boots::new(vec![BootId::new("old"), BootId::new("new")]);
        let rising = [
            "old/z/9",
            "new/a/1",
            "new/a/2",
            "new/b/1",
            "unseen/a/1",
            "unseen/a/2",
        ];
        for pair in rising.windows(2) {
            let (a, b) = (order(pair[0]), order(pair[1]));
            assert_eq!(a.compare(&b, &boots), Ordering::Less, "{a} {b}");
            assert_eq!(b.compare(&a, &boots), Ordering::Greater, "{a} {b}");
        }
    }

    #[test]
    fn sixteen_boots_are_kept_and_an_old_one_never_becomes_present_again() {
        let mut boots = Boots::default();
        assert!(!boots.observe(&BootId::default()));
        for n in 0..20 {
            assert!(boots.observe(&BootId::new(&format!("b{n}"))));
        }
        assert_eq!(boots.as_slice().len(), Boots::KEPT);
        assert!(!boots.observe(&BootId::new("b5")));
        assert_eq!(boots.present(), Some(&BootId::new("b19")));
        assert!(boots.is_past(&BootId::new("b18")));
        assert!(!boots.is_past(&BootId::new("b19")));
        assert!(!boots.is_past(&BootId::new("never seen")));
    }

    #[test]
    fn the_boot_that_the_agent_reports_is_the_present_one() {
        let mut boots = Boots::default();
        assert!(boots.report(&BootId::new("b1")));
        assert!(
            boots.observe(&BootId::new("b0")),
            "from a node's status that lags behind"
        );
        assert!(boots.report(&BootId::new("b1")));
        assert_eq!(boots.as_slice(), [BootId::new("b0"), BootId::new("b1")]);
        assert!(!boots.report(&BootId::new("b1")));
        assert!(!boots.report(&BootId::default()));
    }

    #[test]
    fn a_boot_id_is_bounded_and_can_not_break_the_order_text() {
        let boot = BootId::new(&format!(" a/b\u{7}{} ", "x".repeat(100)));
        assert_eq!(boot.as_str().len(), 64);
        assert!(boot.as_str().starts_with("a-b-x"));
    }
}
