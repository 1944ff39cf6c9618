//! Agent and controller of neighbouring versions, both ways (wire-agent 1): what a newer peer adds
//! is passed over, what an older one does not know yet is absent and means what it meant before.
//! `proto/numbers.txt`, which `xtask check` holds against the .proto files, says which messages and
//! fields there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use health_event::{HealthEvent, ProcessingStrategy, RecommendedAction};
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, encode_key, encode_varint, skip_field};

use crate::datamodels::{BehaviourOverrides, Entity, HealthEvent as Event, HealthEvents};
use crate::provider::{
    IsNodeReadyRequest, IsNodeReadyResponse, SendRebootSignalRequest, SendRebootSignalResponse,
    SendTerminateSignalRequest, SendTerminateSignalResponse,
};
use crate::warden::v1::{Asserted, Detector, ReportReply, ReportRequest, Spool};

const NUMBERS: &str = include_str!("../proto/numbers.txt");

/// A number that no field has.
const UNKNOWN: u32 = 12_345;

fn event() -> Event {
    Event {
        version: 1,
        agent: "gpu-health-monitor".to_owned(),
        component_class: "GPU".to_owned(),
        check_name: "GpuMemWatch".to_owned(),
        is_fatal: true,
        is_healthy: true,
        message: "text".to_owned(),
        recommended_action: 24,
        error_code: vec!["48".to_owned()],
        entities_impacted: vec![entity()],
        metadata: BTreeMap::from([("key".to_owned(), "value".to_owned())]),
        generated_timestamp: Some(time()),
        node_name: "gpu-1".to_owned(),
        quarantine_overrides: Some(overrides()),
        drain_overrides: Some(overrides()),
        processing_strategy: 1,
        id: "1".to_owned(),
        custom_recommended_action: "call".to_owned(),
    }
}

fn time() -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: 1_800_000_000,
        nanos: 1,
    }
}

fn entity() -> Entity {
    Entity {
        entity_type: "GPU".to_owned(),
        entity_value: "0".to_owned(),
    }
}

fn overrides() -> BehaviourOverrides {
    BehaviourOverrides {
        force: true,
        skip: true,
    }
}

fn detector() -> Detector {
    Detector {
        name: "kernel-log".to_owned(),
        state: 2,
        why: "why".to_owned(),
    }
}

fn spool() -> Spool {
    Spool {
        oldest: Some(time()),
        bytes: 1,
        dropped: 2,
    }
}

fn asserted() -> Asserted {
    Asserted {
        hash_version: 1,
        count: 1,
        hash: vec![1; 32],
    }
}

fn request() -> ReportRequest {
    ReportRequest {
        node_name: "gpu-1".to_owned(),
        boot_id: "boot".to_owned(),
        machine_id: "machine".to_owned(),
        agent_version: "0.1.0".to_owned(),
        spool_id: "spool".to_owned(),
        process_id: "process".to_owned(),
        detectors: vec![detector()],
        spool: Some(spool()),
        last_number: 7,
        asserted: Some(asserted()),
        has_list: true,
        asserted_events: vec![event()],
        started_from_nothing: true,
    }
}

fn reply() -> ReportReply {
    ReportReply {
        next_interval_seconds: 60,
        want_list: true,
        adopt: vec![event()],
    }
}

/// One field as it stands in the bytes.
struct Piece {
    number: u32,
    bytes: Vec<u8>,
}

fn pieces(bytes: &[u8]) -> Vec<Piece> {
    let mut rest = bytes;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let before = rest;
        let (number, kind) = decode_key(&mut rest).unwrap();
        skip_field(kind, number, &mut rest, DecodeContext::default()).unwrap();
        let length = before.len() - rest.len();
        pieces.push(Piece {
            number,
            bytes: before[..length].to_vec(),
        });
    }
    pieces
}

/// Fields that no version of ours knows, one of each form that bytes can have.
fn unknown_fields() -> Vec<u8> {
    let mut bytes = Vec::new();
    let key = |kind, bytes: &mut Vec<u8>| encode_key(UNKNOWN, kind, bytes);
    key(WireType::Varint, &mut bytes);
    encode_varint(u64::MAX, &mut bytes);
    key(WireType::SixtyFourBit, &mut bytes);
    bytes.extend([1; 8]);
    key(WireType::ThirtyTwoBit, &mut bytes);
    bytes.extend([1; 4]);
    key(WireType::LengthDelimited, &mut bytes);
    encode_varint(3, &mut bytes);
    bytes.extend(b"new");
    key(WireType::StartGroup, &mut bytes);
    key(WireType::EndGroup, &mut bytes);
    bytes
}

/// The message's numbers in the list.
fn numbers_of(name: &str) -> BTreeSet<u32> {
    let lines = NUMBERS.lines();
    let of = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    of.map(|line| line.split(' ').next().unwrap().parse().unwrap())
        .collect()
}

/// `sample` has every field set.
fn holds<M: Message + Default + PartialEq + Debug>(name: &'static str, sample: &M) -> &'static str {
    let bytes = sample.encode_to_vec();
    let pieces = pieces(&bytes);
    let set: BTreeSet<u32> = pieces.iter().map(|piece| piece.number).collect();
    assert_eq!(set, numbers_of(name), "{name}: the sample sets each field");

    // From a newer peer: what we do not know, before, between and after what we do.
    let mut newer = unknown_fields();
    for piece in &pieces {
        newer.extend(&piece.bytes);
        newer.extend(unknown_fields());
    }
    assert_eq!(&M::decode(&newer[..]).unwrap(), sample, "{name}");

    // From an older peer: without any one field the others stand as they are, and nothing is made
    // up in its place.
    for number in set {
        let older: Vec<u8> = pieces
            .iter()
            .filter(|piece| piece.number != number)
            .flat_map(|piece| piece.bytes.clone())
            .collect();
        let read = M::decode(&older[..]).unwrap();
        assert_eq!(read.encode_to_vec(), older, "{name} without {number}");
    }
    assert_eq!(M::decode(&[][..]).unwrap(), M::default(), "{name}");
    name
}

#[test]
fn every_message_of_a_neighbouring_version_is_read() {
    let batch = HealthEvents {
        version: 1,
        events: vec![event()],
    };
    let tried = [
        holds("datamodels.HealthEvents", &batch),
        holds("datamodels.HealthEvent", &event()),
        holds("datamodels.Entity", &entity()),
        holds("datamodels.BehaviourOverrides", &overrides()),
        holds("warden.v1.ReportRequest", &request()),
        holds("warden.v1.Detector", &detector()),
        holds("warden.v1.Spool", &spool()),
        holds("warden.v1.Asserted", &asserted()),
        holds("warden.v1.ReportReply", &reply()),
    ];
    let tried = tried.into_iter().chain(of_the_provider());
    // A field has a type before its name, a value of an enum has not; maps are fields here.
    let fields = NUMBERS.lines().filter(|line| !line.starts_with('#'));
    let messages: BTreeSet<&str> = fields
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .filter(|words| words.len() > 3)
        .map(|words| words[0])
        .filter(|name| !name.ends_with("Entry"))
        .collect();
    let tried: BTreeSet<&str> = tried.collect();
    assert_eq!(tried, messages, "each message is tried");
}

/// The messages of the provider, of whatever version it is.
fn of_the_provider() -> [&'static str; 6] {
    let (node_name, request_id) = ("gpu-1".to_owned(), "op-1".to_owned());
    let reboot = SendRebootSignalRequest {
        node_name: node_name.clone(),
    };
    let rebooted = SendRebootSignalResponse {
        request_id: request_id.clone(),
    };
    let is_ready = IsNodeReadyRequest {
        node_name: node_name.clone(),
        request_id: request_id.clone(),
    };
    let ready = IsNodeReadyResponse { is_ready: true };
    let terminate = SendTerminateSignalRequest { node_name };
    let terminated = SendTerminateSignalResponse { request_id };
    [
        holds(
            "nvidia.nvsentinel.janitor.v1alpha1.SendRebootSignalRequest",
            &reboot,
        ),
        holds(
            "nvidia.nvsentinel.janitor.v1alpha1.SendRebootSignalResponse",
            &rebooted,
        ),
        holds(
            "nvidia.nvsentinel.janitor.v1alpha1.IsNodeReadyRequest",
            &is_ready,
        ),
        holds(
            "nvidia.nvsentinel.janitor.v1alpha1.IsNodeReadyResponse",
            &ready,
        ),
        holds(
            "nvidia.nvsentinel.janitor.v1alpha1.SendTerminateSignalRequest",
            &terminate,
        ),
        holds(
            "nvidia.nvsentinel.janitor.v1alpha1.SendTerminateSignalResponse",
            &terminated,
        ),
    ]
}

#[test]
fn a_number_that_an_enum_has_not_yet_is_kept_and_means_the_careful_thing() {
    let newer = Event {
        recommended_action: 1_234,
        processing_strategy: 77,
        ..event()
    };
    let bytes = newer.encode_to_vec();
    assert_eq!(Event::decode(&bytes[..]).unwrap(), newer, "kept");
    let read = HealthEvent::try_from(newer).unwrap();
    assert_eq!(
        read.recommended_action,
        RecommendedAction::Unrecognised(1_234)
    );
    assert_eq!(
        read.recommended_action.strength(),
        RecommendedAction::ContactSupport.strength()
    );
    assert_eq!(read.strategy, ProcessingStrategy::StoreOnly);
    assert_eq!(Event::from(read).recommended_action, 1_234, "passed on");

    let newer = Detector {
        state: 9,
        ..detector()
    };
    let bytes = newer.encode_to_vec();
    assert_eq!(Detector::decode(&bytes[..]).unwrap(), newer, "kept");
}

/// Written by hand, not by our encoder: what version 0.1.0 puts on the wire.
#[test]
fn bytes_of_the_first_version_are_read_as_they_were_meant() {
    let mut bytes = b"\x0a\x05gpu-1\x12\x04boot\x3a\x0e\x0a\x0akernel-log\x10\x02".to_vec();
    bytes.extend(b"\x48\x07\x52\x04\x08\x01\x10\x02\x68\x01");
    let read = ReportRequest::decode(&bytes[..]).unwrap();
    let expected = ReportRequest {
        node_name: "gpu-1".to_owned(),
        boot_id: "boot".to_owned(),
        detectors: vec![Detector {
            why: String::new(),
            ..detector()
        }],
        last_number: 7,
        asserted: Some(Asserted {
            hash_version: 1,
            count: 2,
            hash: Vec::new(),
        }),
        started_from_nothing: true,
        ..ReportRequest::default()
    };
    assert_eq!(read, expected);

    let read = ReportReply::decode(&b"\x08\x3c\x10\x01"[..]).unwrap();
    let expected = ReportReply {
        next_interval_seconds: 60,
        want_list: true,
        adopt: Vec::new(),
    };
    assert_eq!(read, expected);

    let bytes =
        b"\x08\x01\x12\x14\x12\x01m\x22\x01c\x28\x01\x40\x18\x4a\x0248\x6a\x01n\x80\x01\x02";
    let read = HealthEvents::decode(&bytes[..]).unwrap();
    let expected = Event {
        agent: "m".to_owned(),
        check_name: "c".to_owned(),
        is_fatal: true,
        recommended_action: 24,
        error_code: vec!["48".to_owned()],
        node_name: "n".to_owned(),
        processing_strategy: 2,
        ..Event::default()
    };
    assert_eq!((read.version, &read.events[..]), (1, &[expected][..]));
}
