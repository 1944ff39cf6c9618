//! What the socket answers in place of its handler.

use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::Request;
use tonic::{Code, Status};
use wire::datamodels::HealthEvents;

use crate::kit::{Controller, Setup, until};
use crate::socket::event;

/// A call with these bytes as its message, by a client that does not look at the deadline itself.
async fn call(setup: &Setup, message: &[u8], deadline: Option<&str>) -> Status {
    let path = setup.socket();
    until("the socket", || path.exists().then_some(())).await;
    let stream = tokio::net::UnixStream::connect(path).await.unwrap();
    let io = TokioIo::new(stream);
    let executor = TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let framed = [&[0], length.as_slice(), message].concat();
    let url = "http://agent/datamodels.PlatformConnector/HealthEventOccurredV1";
    let request = Request::post(url)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let request = match deadline {
        Some(deadline) => request.header("grpc-timeout", deadline),
        None => request,
    };
    let body = Body::new(Full::new(Bytes::from(framed)));
    let answer = sender
        .send_request(request.body(body).unwrap())
        .await
        .unwrap();
    connection.abort();
    Status::from_header_map(answer.headers()).unwrap_or_else(|| Status::ok("a message"))
}

#[tokio::test]
async fn a_call_whose_deadline_passes_is_told_to_come_again() {
    let controller = Controller::absent();
    let mut setup = Setup::new();
    setup.flag("--admin-listen", "127.0.0.1:0");
    let _agent = setup.start(&controller.url());
    until("the socket", || setup.socket().exists().then_some(())).await;
    // Whoever holds the database's write lock holds up the spool as a hanging disk would.
    let disk = rusqlite::Connection::open(setup.state.join("spool.db")).unwrap();
    disk.execute_batch("BEGIN IMMEDIATE").unwrap();
    let events = vec![event("late")];
    let batch = HealthEvents { version: 1, events }.encode_to_vec();
    let answer = call(&setup, &batch, Some("300m")).await;
    assert_eq!(answer.code(), Code::Unavailable, "{answer:?}");
    let want = "the call was not done within 300ms; send the same again";
    assert_eq!(answer.message(), want);
    let hint = answer.metadata().get(wire::answers::RETRY_HINT);
    assert_eq!(hint.unwrap(), "1000");
    let given_up = setup.metric("warden_agent_socket_calls_given_up_total ");
    assert_eq!(given_up.await, 1);
    disk.execute_batch("ROLLBACK").unwrap();
    let answer = call(&setup, &batch, None).await;
    assert_eq!(answer.code(), Code::Ok, "{answer:?}");
}

#[tokio::test]
async fn bytes_that_are_no_batch_are_refused_with_what_is_wrong() {
    let controller = Controller::start();
    let setup = Setup::new();
    let _agent = setup.start(&controller.url());
    let too_large = vec![0; wire::validate::RECEIVE_LIMIT + 1];
    // Field 4 (checkName) of the one event is a byte that is no UTF-8.
    let no_text: &[u8] = &[0x12, 3, 0x22, 1, 0xff];
    let table: [(&[u8], &str); 3] = [
        (no_text, "HealthEvent.check_name"),
        (b"\x12\x7f", "HealthEvents.events"),
        (&too_large, "at most 4 MiB (4194304 bytes) a batch"),
    ];
    for (bytes, text) in table {
        let answer = call(&setup, bytes, None).await;
        assert_eq!(answer.code(), Code::InvalidArgument, "{answer:?}");
        assert!(answer.message().contains(text), "{answer:?}");
        assert!(answer.message().contains("allowed: "), "{answer:?}");
    }
}
