//! How messages are read from a connection: as the library's codec does, but for the answer to
//! bytes that are none.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::{Code, Status};
use tonic_prost::ProstEncoder;

use crate::datamodels::HealthEvents;
use crate::provider;
use crate::warden::v1::{ReportReply, ReportRequest};

/// Who sends a message, and so whose fault it is if it can't be decoded.
pub trait Undecodable {
    /// The code that says so.
    const CODE: Code;
    /// What the bytes should have been.
    const WANTED: &'static str;
}

impl Undecodable for HealthEvents {
    const CODE: Code = Code::InvalidArgument;
    const WANTED: &'static str = "datamodels.HealthEvents of health_event.proto";
}

impl Undecodable for ReportRequest {
    const CODE: Code = Code::InvalidArgument;
    const WANTED: &'static str = "warden.v1.ReportRequest of agent.proto";
}

/// An answer, which is read by the caller: what it sent is no worse for it.
impl Undecodable for () {
    const CODE: Code = Code::Internal;
    const WANTED: &'static str = "google.protobuf.Empty";
}

impl Undecodable for ReportReply {
    const CODE: Code = Code::Internal;
    const WANTED: &'static str = "warden.v1.ReportReply of agent.proto";
}

macro_rules! of_provider {
    ($($message:ident $code:ident,)+) => {$(
        impl Undecodable for provider::$message {
            const CODE: Code = Code::$code;
            const WANTED: &'static str = concat!(
                "nvidia.nvsentinel.janitor.v1alpha1.", stringify!($message), " of csp_provider.proto"
            );
        }
    )+};
}

of_provider! {
    SendRebootSignalRequest InvalidArgument,
    SendRebootSignalResponse Internal,
    IsNodeReadyRequest InvalidArgument,
    IsNodeReadyResponse Internal,
    SendTerminateSignalRequest InvalidArgument,
    SendTerminateSignalResponse Internal,
}

/// The codec of all services here; `build.rs` names it.
#[derive(Debug, Clone)]
pub struct MessageCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for MessageCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for MessageCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Undecodable + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = MessageDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        MessageDecoder(PhantomData)
    }
}

/// Reads one kind of message.
#[derive(Debug, Clone)]
pub struct MessageDecoder<U>(PhantomData<U>);

impl<U: Message + Default + Undecodable> Decoder for MessageDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::decode(bytes).map(Some).map_err(|error| {
            // The library's text names message, field and fault; all of it is constant.
            Status::new(U::CODE, format!("{error}; allowed: {}", U::WANTED))
        })
    }
}
