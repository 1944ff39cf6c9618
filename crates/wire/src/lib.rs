//! The wire: generated protobuf and gRPC types, their conversion into the domain's nouns, and the
//! rules by which an event is taken in or refused. Protobuf types appear nowhere else than at the
//! two ends of a connection and in stored bodies.
//!
//! # Invariants
//! - Any bytes that decode are either refused with the event, the field and the allowed form, or
//!   give an event within the bounds of [`validate`] (property test there): nothing panics.
//! - The encoding of an event is deterministic (maps in key order), so equal events have equal
//!   bodies.

pub mod answers;
pub mod api;
mod body;
mod codec;
mod convert;
pub mod validate;
#[cfg(test)]
mod versions_tests;

pub use answers::{AnswersLayer, unavailable, with_retry_hint};
pub use body::{decode_body, encode_body, received_bytes, sent_hash};
pub use codec::{MessageCodec, MessageDecoder, Undecodable};
pub use convert::{ConvertError, timestamp_from_wire, timestamp_to_wire};
pub use validate::{Accepted, Refusal, accept};

/// The event service of the reference: `datamodels.PlatformConnector`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::or_fun_call,
    clippy::wildcard_enum_match_arm,
    clippy::allow_attributes_without_reason,
    reason = "generated from proto/health_event.proto"
)]
pub mod datamodels {
    tonic::include_proto!("datamodels");
}

/// The agent's report: `warden.v1.Agent`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::or_fun_call,
    clippy::wildcard_enum_match_arm,
    clippy::allow_attributes_without_reason,
    reason = "generated from proto/warden/v1/agent.proto"
)]
pub mod warden {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("warden.v1");
    }
}

/// Who reboots machines: `nvidia.nvsentinel.janitor.v1alpha1.CSPProviderService`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::or_fun_call,
    clippy::wildcard_enum_match_arm,
    clippy::allow_attributes_without_reason,
    reason = "generated from proto/janitor/csp_provider.proto"
)]
pub mod provider {
    tonic::include_proto!("nvidia.nvsentinel.janitor.v1alpha1");
}

/// Name of the header that carries the bearer token, on the socket as on TCP.
pub const AUTHORIZATION: &str = "authorization";
