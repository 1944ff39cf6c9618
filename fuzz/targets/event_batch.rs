//! Any bytes as a batch of the event service, as a stored body, and as an agent's report.
#![no_main]

use health_event::{NodeName, devices_of};
use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use prost::Message;
use wire::validate::{MAX_CODES, MAX_DEVICES, MAX_ENTITIES, MAX_MESSAGE_BYTES, MAX_NAME_BYTES};
use wire::{accept, datamodels, decode_body, encode_body, warden};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(event) = decode_body(bytes) {
        let body = encode_body(&event);
        assert_eq!(
            encode_body(&decode_body(&body).expect("our own body")),
            body
        );
    }
    let _ = warden::v1::ReportRequest::decode(bytes);
    let now = Timestamp::UNIX_EPOCH;
    let own = NodeName::new("gpu-1").expect("a DNS subdomain");
    let Ok(batch) = datamodels::HealthEvents::decode(bytes) else {
        return;
    };
    let count = batch.events.len();
    let refused = |batch| match accept(batch, Some(&own), now) {
        Ok(accepted) => Ok(accepted),
        Err(refusal) => {
            assert!(!refusal.fault.is_empty() && !refusal.allowed.is_empty());
            assert!(refusal.index.is_none_or(|index| index < count));
            assert!(refusal.to_string().len() <= 1_024);
            Err(())
        }
    };
    let Ok(accepted) = refused(batch) else {
        return;
    };
    assert_eq!(accepted.len(), count);
    for taken in accepted {
        let event = taken.event;
        assert!(event.message.len() <= MAX_MESSAGE_BYTES);
        assert!(event.error_codes.len() <= MAX_CODES);
        assert!(event.entities.len() <= MAX_ENTITIES);
        assert!(devices_of(&event.entities).len() <= MAX_DEVICES);
        assert!((1..=MAX_NAME_BYTES).contains(&event.check_name.len()));
        assert!(NodeName::new(&event.node_name).is_ok());
        assert!(event.generated_at.is_some());
        let stored = decode_body(&encode_body(&event)).expect("our own body");
        assert_eq!(stored, event);
        let again = datamodels::HealthEvents {
            version: 1,
            events: vec![event.clone().into()],
        };
        let again = accept(again, None, now).expect("taken once, taken again");
        assert_eq!(again[0].event, event);
    }
});
