use http_body_util::Full;
use prost::Message as _;
use tonic::codegen::Bytes;
use tonic::codegen::http::HeaderValue;
use tower::limit::{ConcurrencyLimit, GlobalConcurrencyLimitLayer};

use super::*;
use crate::datamodels::platform_connector_server::{PlatformConnector, PlatformConnectorServer};
use crate::datamodels::{HealthEvent, HealthEvents};

const LONGEST: Duration = Duration::from_millis(50);

/// Answers batches that hold an event, and never one that is empty.
struct Handler;

#[tonic::async_trait]
impl PlatformConnector for Handler {
    async fn health_event_occurred_v1(
        &self,
        request: tonic::Request<HealthEvents>,
    ) -> Result<tonic::Response<()>, Status> {
        if request.get_ref().events.is_empty() {
            std::future::pending::<()>().await;
        }
        Ok(tonic::Response::new(()))
    }
}

type Server = Answers<ConcurrencyLimit<PlatformConnectorServer<Handler>>>;

fn server() -> Server {
    let service = PlatformConnectorServer::new(Handler).max_decoding_message_size(RECEIVE_LIMIT);
    AnswersLayer::new(LONGEST).layer(GlobalConcurrencyLimitLayer::new(1).layer(service))
}

/// A call with these bytes as its one message.
fn request(message: &[u8]) -> Request<Body> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let framed = [&[0], length.as_slice(), message].concat();
    let body = Body::new(Full::new(Bytes::from(framed)));
    Request::post("/datamodels.PlatformConnector/HealthEventOccurredV1")
        .header("content-type", "application/grpc")
        .body(body)
        .unwrap()
}

fn with_timeout(mut request: Request<Body>, text: &'static str) -> Request<Body> {
    let value = HeaderValue::from_static(text);
    request.headers_mut().insert("grpc-timeout", value);
    request
}

async fn status(server: &Server, request: Request<Body>) -> Status {
    let answer = server.clone().oneshot(request).await.unwrap();
    Status::from_header_map(answer.headers()).unwrap_or_else(|| Status::ok("a message"))
}

fn one_event() -> Vec<u8> {
    let events = vec![HealthEvent::default()];
    HealthEvents { version: 1, events }.encode_to_vec()
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_unavailable_with_a_hint() {
    let server = server();
    // (the caller's deadline, the one that counts)
    let table = [
        (None, "50ms"),
        (Some("2000u"), "2ms"),
        (Some("9S"), "50ms"),
        (Some("99999999H"), "50ms"),
        (Some("tomorrow"), "50ms"),
        (Some("S"), "50ms"),
    ];
    for (own, counts) in table {
        let call = request(&[]);
        let call = own.map_or_else(|| request(&[]), |own| with_timeout(call, own));
        let got = status(&server, call).await;
        assert_eq!(got.code(), Code::Unavailable, "{own:?}");
        let want = format!("the call was not done within {counts}; send the same again");
        assert_eq!(got.message(), want, "{own:?}");
        assert_eq!(got.metadata().get(RETRY_HINT).unwrap(), "1000");
    }
}

#[tokio::test]
async fn the_answer_is_ready_before_the_callers_own_deadline_however_late_the_call_is_looked_at() {
    for (own, before) in [("40m", Duration::from_millis(2)), ("1000u", Duration::ZERO)] {
        let call = with_timeout(request(&[]), own);
        let deadline = deadline_of(call.headers()).unwrap();
        let mut answer = std::pin::pin!(server().call(call));
        tokio::time::sleep(deadline.saturating_sub(before)).await;
        let mut context = Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(answer) = answer.as_mut().poll(&mut context) else {
            panic!("{own}: the library's answer would be first");
        };
        let got = Status::from_header_map(answer.unwrap().headers()).unwrap();
        assert_eq!(got.code(), Code::Unavailable, "{own}");
    }
}

#[tokio::test]
async fn waiting_for_a_turn_is_part_of_the_calls_time() {
    let server = server();
    let (first, second) = tokio::join!(
        status(&server, request(&[])),
        status(&server, with_timeout(request(&one_event()), "10m")),
    );
    assert_eq!(first.code(), Code::Unavailable);
    assert_eq!(second.code(), Code::Unavailable, "it got no turn in time");
    let third = status(&server, request(&one_event())).await;
    assert_eq!(third.code(), Code::Ok, "the turn is given back");
}

#[tokio::test]
async fn bytes_that_are_no_batch_are_the_senders_fault_and_told_as_such() {
    let mut not_text = one_event();
    // Field 3 (componentClass) of the event, one byte that is no UTF-8.
    not_text.splice(.., [0x12, 3, 0x1a, 1, 0xff]);
    let table: [(&[u8], &str); 3] = [
        (b"\x12\x7f", "HealthEvents.events"),
        (&not_text, "HealthEvent.component_class"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "varint"),
    ];
    for (bytes, named) in table {
        let got = status(&server(), request(bytes)).await;
        assert_eq!(got.code(), Code::InvalidArgument, "{got:?}");
        assert!(got.message().contains(named), "{got:?}");
        assert!(got.message().ends_with("health_event.proto"), "{got:?}");
    }
}

#[tokio::test]
async fn a_message_beyond_the_receive_limit_is_told_the_allowed_form() {
    let got = status(&server(), request(&vec![0; RECEIVE_LIMIT + 1])).await;
    assert_eq!(got.code(), Code::InvalidArgument);
    assert_eq!(
        got.message(),
        "batch: events takes more than 5242880 bytes; allowed: at most 4 MiB (4194304 bytes) a \
         batch"
    );
}
