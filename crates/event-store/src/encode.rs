//! Binary forms of events, fault states and remembered healthy statements.

use std::collections::BTreeMap;

use health_event::{
    BehaviourOverrides, Clear, FaultState, HealthEvent, ProcessingStrategy, Raise,
    RecommendedAction,
};
use sha2::{Digest, Sha256};

use crate::codec::{Decoded, Decoder, Encoder};

const VERSION: u8 = 1;

pub(crate) fn put_action(e: &mut Encoder, action: RecommendedAction) {
    e.signed(i64::from(action.number()));
}

pub(crate) fn take_action(d: &mut Decoder<'_>) -> Decoded<RecommendedAction> {
    let number = i32::try_from(d.signed()?).map_err(|_| d.damaged())?;
    Ok(RecommendedAction::from_number(number))
}

pub(crate) fn put_strategy(e: &mut Encoder, strategy: ProcessingStrategy) {
    e.signed(i64::from(strategy.number()));
}

pub(crate) fn take_strategy(d: &mut Decoder<'_>) -> Decoded<ProcessingStrategy> {
    let number = i32::try_from(d.signed()?).map_err(|_| d.damaged())?;
    Ok(ProcessingStrategy::from_number(number))
}

pub(crate) fn put_overrides(e: &mut Encoder, overrides: Option<BehaviourOverrides>) {
    e.option(overrides.as_ref(), |e, o| {
        e.flag(o.force);
        e.flag(o.skip);
    });
}

pub(crate) fn take_overrides(d: &mut Decoder<'_>) -> Decoded<Option<BehaviourOverrides>> {
    d.option(|d| {
        Ok(BehaviourOverrides {
            force: d.flag()?,
            skip: d.flag()?,
        })
    })
}

/// An event, its message cut to at most `message_max` bytes.
pub(crate) fn event(event: &HealthEvent, message_max: usize) -> Vec<u8> {
    let mut e = Encoder::new(VERSION);
    e.text(&event.id);
    e.number(u64::from(event.version));
    e.text(&event.agent);
    e.text(&event.component_class);
    e.text(&event.check_name);
    e.flag(event.is_fatal);
    e.flag(event.is_healthy);
    let cut = event.message.floor_char_boundary(message_max);
    e.text(&event.message[..cut]);
    put_action(&mut e, event.recommended_action);
    e.text(&event.custom_recommended_action);
    e.list(event.error_codes.iter(), |e, code| e.text(code));
    e.list(event.entities.iter(), Encoder::entity);
    e.number(event.metadata.len() as u64);
    for (key, value) in &event.metadata {
        e.text(key);
        e.text(value);
    }
    e.option(event.generated_at.as_ref(), Encoder::time);
    e.text(&event.node_name);
    put_overrides(&mut e, event.quarantine_overrides);
    put_overrides(&mut e, event.drain_overrides);
    put_strategy(&mut e, event.strategy);
    e.into_bytes()
}

pub(crate) fn decode_event(bytes: &[u8]) -> Decoded<HealthEvent> {
    let d = &mut Decoder::new("event", bytes, VERSION)?;
    Ok(HealthEvent {
        id: d.string()?,
        version: u32::try_from(d.number()?).map_err(|_| d.damaged())?,
        agent: d.string()?,
        component_class: d.string()?,
        check_name: d.string()?,
        is_fatal: d.flag()?,
        is_healthy: d.flag()?,
        message: d.string()?,
        recommended_action: take_action(d)?,
        custom_recommended_action: d.string()?,
        error_codes: d.list(Decoder::string)?,
        entities: d.list(Decoder::entity)?,
        metadata: d
            .list(|d| Ok((d.string()?, d.string()?)))?
            .into_iter()
            .collect(),
        generated_at: d.option(Decoder::time)?,
        node_name: d.string()?,
        quarantine_overrides: take_overrides(d)?,
        drain_overrides: take_overrides(d)?,
        strategy: take_strategy(d)?,
    })
}

/// The state of a fault without its row number, which is the row's own.
pub(crate) fn fault(fault: &FaultState) -> Vec<u8> {
    let mut e = Encoder::new(VERSION);
    put_strategy(&mut e, fault.space);
    e.device(&fault.device);
    e.time(&fault.described);
    e.text(&fault.code);
    e.number(fault.raised.len() as u64);
    for (sender, stack) in &fault.raised {
        e.text(sender.as_str());
        e.list(stack.iter(), |e, raise| {
            e.stamp(&raise.stamp);
            e.flag(raise.fatal);
            put_action(e, raise.action);
        });
    }
    e.flag(fault.open);
    e.flag(fault.fatal);
    put_action(&mut e, fault.action);
    e.list(fault.closings.iter(), Encoder::time);
    e.option(fault.held_until.as_ref(), Encoder::time);
    e.into_bytes()
}

pub(crate) fn decode_fault(bytes: &[u8], row: u64) -> Decoded<FaultState> {
    let d = &mut Decoder::new("fault", bytes, VERSION)?;
    Ok(FaultState {
        space: take_strategy(d)?,
        device: d.device()?,
        described: d.time()?,
        code: d.string()?,
        raised: d
            .list(|d| {
                let sender = d.sender()?;
                let stack = d.list(|d| {
                    Ok(Raise {
                        stamp: d.stamp()?,
                        fatal: d.flag()?,
                        action: take_action(d)?,
                    })
                })?;
                Ok((sender, stack))
            })?
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        open: d.flag()?,
        fatal: d.flag()?,
        action: take_action(d)?,
        closings: d.list(Decoder::time)?,
        held_until: d.option(Decoder::time)?,
        row,
    })
}

pub(crate) fn clear(clear: &Clear) -> Vec<u8> {
    let mut e = Encoder::new(VERSION);
    e.text(clear.sender.as_str());
    put_strategy(&mut e, clear.space);
    e.device(&clear.device);
    e.text(&clear.code);
    e.stamp(&clear.stamp);
    e.flag(clear.inclusive);
    e.time(&clear.received_at);
    e.into_bytes()
}

pub(crate) fn decode_clear(bytes: &[u8]) -> Decoded<Clear> {
    let d = &mut Decoder::new("healthy statement", bytes, VERSION)?;
    Ok(Clear {
        sender: d.sender()?,
        space: take_strategy(d)?,
        device: d.device()?,
        code: d.string()?,
        stamp: d.stamp()?,
        inclusive: d.flag()?,
        received_at: d.time()?,
    })
}

/// Which row of a scope's healthy statements: sixteen bytes over sender, space, device, code
/// and kind.
pub(crate) fn clear_key(clear: &Clear) -> [u8; 16] {
    let mut e = Encoder::new(VERSION);
    e.text(clear.sender.as_str());
    put_strategy(&mut e, clear.space);
    e.device(&clear.device);
    e.text(&clear.code);
    e.flag(clear.inclusive);
    let mut cut = [0; 16];
    cut.copy_from_slice(&Sha256::digest(e.into_bytes())[..16]);
    cut
}

#[cfg(test)]
mod tests {
    use health_event::{BootId, Device, Entity, Order, Sender, Stamp};
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;

    fn stamp(number: u64) -> Stamp {
        Stamp {
            order: Some(Order {
                boot: BootId::new("b"),
                spool: "s".into(),
                number,
            }),
            at: Timestamp::new(-5, -7).unwrap(),
        }
    }

    fn full_event() -> HealthEvent {
        HealthEvent {
            id: "i".into(),
            version: 1,
            agent: "a".into(),
            component_class: "GPU".into(),
            check_name: "c".into(),
            is_fatal: true,
            is_healthy: true,
            message: "äöü".into(),
            recommended_action: RecommendedAction::Unrecognised(-77),
            custom_recommended_action: "x".into(),
            error_codes: vec!["79".into(), String::new()],
            entities: vec![Entity::new("GPU", "0")],
            metadata: [("k".to_owned(), "v".to_owned())].into(),
            generated_at: Some(Timestamp::MAX),
            node_name: "n".into(),
            quarantine_overrides: Some(BehaviourOverrides {
                force: true,
                skip: false,
            }),
            drain_overrides: Some(BehaviourOverrides {
                force: false,
                skip: true,
            }),
            strategy: ProcessingStrategy::StoreOnly,
        }
    }

    #[test]
    fn rows_survive_their_binary_form() {
        for sent in [HealthEvent::default(), full_event()] {
            assert_eq!(decode_event(&event(&sent, 1 << 20)).unwrap(), sent);
        }
        let state = full_state();
        assert_eq!(decode_fault(&fault(&state), 9).unwrap(), state);
        let healthy = full_clear();
        assert_eq!(decode_clear(&clear(&healthy)).unwrap(), healthy);
    }

    fn full_state() -> FaultState {
        FaultState {
            space: ProcessingStrategy::StoreAndAnalyse,
            device: Device::new([Entity::new("PCI", "0000:17:00"), Entity::new("GPU", "1")]),
            described: Timestamp::MIN,
            code: "79".into(),
            raised: [(
                Sender::agent("n"),
                vec![Raise {
                    stamp: stamp(3),
                    fatal: true,
                    action: RecommendedAction::RestartBm,
                }],
            )]
            .into(),
            open: true,
            fatal: true,
            action: RecommendedAction::RestartBm,
            closings: vec![Timestamp::UNIX_EPOCH],
            held_until: Some(Timestamp::MAX),
            row: 9,
        }
    }

    fn full_clear() -> Clear {
        Clear {
            sender: Sender::controller(),
            space: ProcessingStrategy::ExecuteRemediation,
            device: Device::default(),
            code: String::new(),
            stamp: stamp(u64::MAX),
            inclusive: true,
            received_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let cut = decode_event(&event(&full_event(), 3)).unwrap();
        assert_eq!(cut.message, "ä");
    }

    type Texts = Vec<(String, String)>;

    fn any_event() -> impl Strategy<Value = HealthEvent> {
        let texts = || prop::collection::vec((".{0,9}", ".{0,9}"), 0..4);
        let words = (".{0,9}", ".{0,9}", ".{0,40}", texts(), texts());
        let rest = (any::<[bool; 4]>(), any::<[i32; 3]>(), any::<i64>());
        (words, rest).prop_map(
            |((id, name, message, codes, pairs), (flags, numbers, at))| {
                let pair = |(key, value): (String, String)| Entity::new(&key, &value);
                let entities = |texts: &Texts| texts.iter().cloned().map(pair).collect();
                HealthEvent {
                    id,
                    version: numbers[0].unsigned_abs(),
                    agent: name.clone(),
                    component_class: name.clone(),
                    check_name: name,
                    is_fatal: flags[0],
                    is_healthy: flags[1],
                    message,
                    recommended_action: RecommendedAction::from_number(numbers[1]),
                    entities: entities(&pairs),
                    error_codes: codes.iter().map(|(code, _)| code.clone()).collect(),
                    metadata: pairs.into_iter().collect(),
                    generated_at: Timestamp::from_microsecond(at).ok(),
                    drain_overrides: flags[2].then_some(BehaviourOverrides {
                        force: flags[3],
                        skip: !flags[3],
                    }),
                    strategy: ProcessingStrategy::from_number(numbers[2]),
                    ..full_event()
                }
            },
        )
    }

    /// Valid rows of each kind.
    fn rows() -> [Vec<u8>; 3] {
        [
            event(&full_event(), 100),
            fault(&full_state()),
            clear(&full_clear()),
        ]
    }

    proptest! {
        #[test]
        fn any_event_survives_its_binary_form(sent in any_event()) {
            prop_assert_eq!(decode_event(&event(&sent, 1 << 20)), Ok(sent));
        }

        #[test]
        fn damaged_rows_are_errors_not_panics(
            kind in 0..3_usize,
            start in any::<prop::sample::Index>(),
            cut in any::<prop::sample::Index>(),
            with in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            // A stretch of a valid row is replaced, left out, or the row ends there.
            let row = &rows()[kind];
            let from = start.index(row.len());
            let to = from + cut.index(row.len() - from + 1);
            for end in [&row[to..], &[]] {
                let bytes = [&row[..from], &with, end].concat();
                drop((decode_event(&bytes), decode_fault(&bytes, 0), decode_clear(&bytes)));
                drop(crate::facts::Facts::decode(&bytes));
                let text = String::from_utf8_lossy(&bytes);
                drop((crate::records::decode_incident(&text), crate::records::decode_holds(&text)));
            }
        }

        #[test]
        fn numbers_survive(number: u64, signed: i64) {
            let mut e = Encoder::new(0);
            e.number(number);
            e.signed(signed);
            let bytes = e.into_bytes();
            let mut d = Decoder::new("numbers", &bytes, 0).unwrap();
            prop_assert_eq!((d.number(), d.signed()), (Ok(number), Ok(signed)));
        }
    }
}
