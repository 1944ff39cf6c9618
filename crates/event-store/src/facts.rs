//! What the store knows of a fault beyond the fold: positions, counts, the newest event.

use health_event::{
    BehaviourOverrides, BootId, CloseCause, HealthEvent, Order, RecommendedAction, Sender,
    SentIdentity, Stamp,
};
use jiff::Timestamp;

use crate::codec::{Decoded, Decoder, Encoder};
use crate::encode::{put_action, put_overrides, take_action, take_overrides};

const VERSION: u8 = 1;

/// What makes an event a mere repeat of the one before (the strategy is the fault's own).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) fatal: bool,
    pub(crate) action: RecommendedAction,
    pub(crate) custom: String,
    pub(crate) quarantine: Option<BehaviourOverrides>,
    pub(crate) drain: Option<BehaviourOverrides>,
}

impl Word {
    pub(crate) fn of(event: &HealthEvent) -> Self {
        Self {
            fatal: event.is_fatal,
            action: event.recommended_action,
            custom: event.custom_recommended_action.clone(),
            quarantine: event.quarantine_overrides,
            drain: event.drain_overrides,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    pub(crate) opened_seq: u64,
    pub(crate) opened_at: Option<Timestamp>,
    pub(crate) count: u64,
    pub(crate) repeats: u64,
    pub(crate) first_at: Timestamp,
    pub(crate) last_at: Timestamp,
    /// When an event that named it was stored last, for the bound on stored repeats.
    pub(crate) stored_at: Timestamp,
    pub(crate) machine: String,
    pub(crate) sent: SentIdentity,
    pub(crate) sender: Sender,
    pub(crate) stamp: Stamp,
    pub(crate) word: Word,
    /// Newest word of the node's agent about it, for `asserted`.
    pub(crate) agent_stamp: Option<Stamp>,
    pub(crate) closed_at: Option<Timestamp>,
    pub(crate) cause: Option<CloseCause>,
}

impl Facts {
    pub(crate) fn order(&self) -> Option<&Order> {
        self.stamp.order.as_ref()
    }

    pub(crate) fn boot(&self) -> BootId {
        self.order().map(|o| o.boot.clone()).unwrap_or_default()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new(VERSION);
        for number in [
            self.first_seq,
            self.last_seq,
            self.opened_seq,
            self.count,
            self.repeats,
        ] {
            e.number(number);
        }
        e.option(self.opened_at.as_ref(), Encoder::time);
        e.time(&self.first_at);
        e.time(&self.last_at);
        e.time(&self.stored_at);
        e.text(&self.machine);
        e.raw(&self.sent.0);
        e.text(self.sender.as_str());
        e.stamp(&self.stamp);
        e.flag(self.word.fatal);
        put_action(&mut e, self.word.action);
        e.text(&self.word.custom);
        put_overrides(&mut e, self.word.quarantine);
        put_overrides(&mut e, self.word.drain);
        e.option(self.agent_stamp.as_ref(), Encoder::stamp);
        e.option(self.closed_at.as_ref(), Encoder::time);
        e.option(self.cause.as_ref(), |e, cause| e.text(cause.as_str()));
        e.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Decoded<Self> {
        let d = &mut Decoder::new("facts of a fault", bytes, VERSION)?;
        let (first_seq, last_seq, opened_seq) = (d.number()?, d.number()?, d.number()?);
        let (count, repeats) = (d.number()?, d.number()?);
        Ok(Self {
            first_seq,
            last_seq,
            opened_seq,
            count,
            repeats,
            opened_at: d.option(Decoder::time)?,
            first_at: d.time()?,
            last_at: d.time()?,
            stored_at: d.time()?,
            machine: d.string()?,
            sent: SentIdentity(d.raw(16)?.try_into().map_err(|_| d.damaged())?),
            sender: d.sender()?,
            stamp: d.stamp()?,
            word: Word {
                fatal: d.flag()?,
                action: take_action(d)?,
                custom: d.string()?,
                quarantine: take_overrides(d)?,
                drain: take_overrides(d)?,
            },
            agent_stamp: d.option(Decoder::stamp)?,
            closed_at: d.option(Decoder::time)?,
            cause: d.option(Decoder::text)?.and_then(CloseCause::from_stored),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_their_binary_form() {
        let stamp = Stamp {
            order: "b/s/7".parse().ok(),
            at: Timestamp::MAX,
        };
        let facts = Facts {
            first_seq: 1,
            last_seq: 2,
            opened_seq: 3,
            opened_at: Some(Timestamp::MIN),
            count: 4,
            repeats: 5,
            first_at: Timestamp::UNIX_EPOCH,
            last_at: Timestamp::MAX,
            stored_at: Timestamp::UNIX_EPOCH,
            machine: "m".into(),
            sent: SentIdentity([7; 16]),
            sender: Sender::agent("n"),
            stamp: stamp.clone(),
            word: Word::of(&HealthEvent {
                is_fatal: true,
                custom_recommended_action: "x".into(),
                drain_overrides: Some(BehaviourOverrides::default()),
                ..HealthEvent::default()
            }),
            agent_stamp: Some(stamp),
            closed_at: Some(Timestamp::MAX),
            cause: Some(CloseCause::Person),
        };
        assert_eq!(Facts::decode(&facts.encode()).unwrap(), facts);
        // Each prefix of a row, and each row with one byte changed, is read or refused.
        let bytes = facts.encode();
        for at in 0..bytes.len() {
            assert!(Facts::decode(&bytes[..at]).is_err(), "{at} bytes");
            for byte in [0, 0x7f, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = byte;
                drop(Facts::decode(&damaged));
            }
        }
    }
}
