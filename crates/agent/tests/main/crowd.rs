//! Callers that hang, and those that have to get through all the same.

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::kit::{Agent, Controller, DEADLINE, Setup, until};
use crate::socket::{as_user, event, send, send_as};

/// How soon a call is answered while nothing holds it up: far below the 20 s after which a call
/// that hangs gives its turn back.
const SOON: Duration = Duration::from_secs(5);

/// A frame of HTTP/2 on a stream.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// What opens a connection: the preface and empty settings.
fn greeting() -> Vec<u8> {
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
    ]
    .concat()
}

/// The beginning of a call whose message never comes.
fn half_a_call(stream: u8) -> Vec<u8> {
    let string = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let path = "/datamodels.PlatformConnector/HealthEventOccurredV1";
    // POST, http, then :path, :authority and content-type as literals (RFC 7541).
    let block = [
        vec![0x83, 0x86, 0x44],
        string(path),
        vec![0x41],
        string("agent"),
        vec![0x5f],
        string("application/grpc"),
    ];
    let end_of_headers = 4;
    frame(1, end_of_headers, stream, &block.concat())
}

/// Connections of a user that say `bytes` and nothing more.
fn hold(path: &Path, uid: u32, count: usize, bytes: &[u8]) -> Vec<UnixStream> {
    let (path, bytes) = (path.to_owned(), bytes.to_owned());
    as_user(uid, move || {
        let connect = |_| {
            let mut stream = UnixStream::connect(&path).unwrap();
            // One that is turned away at once may be closed by now.
            let _ = stream.write_all(&bytes);
            stream
        };
        (0..count).map(connect).collect()
    })
}

/// Whether the agent ended the connection; what it said before is passed over.
fn has_ended(stream: &mut UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut said = [0; 1_024];
    loop {
        match stream.read(&mut said) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

/// An agent that every user may reach, with a controller.
async fn agent() -> (Controller, Setup, Agent) {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let folder = setup.path(".");
    std::fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    setup.flag("--admin-listen", "127.0.0.1:0");
    let agent = setup.start(&controller.url());
    until("the socket", || setup.socket().exists().then_some(())).await;
    (controller, setup, agent)
}

#[tokio::test]
async fn a_user_with_calls_on_all_its_connections_keeps_nobody_out() {
    let (_controller, setup, _agent) = agent().await;
    let hanging = [greeting(), half_a_call(1), half_a_call(3)].concat();
    // Its share: a quarter of what is there for all but root.
    let mut held = hold(&setup.socket(), 1_000, 8, &hanging);
    let start = Instant::now();
    send(&setup, vec![event("root's")]).await.unwrap();
    send_as(&setup, 1_001, vec![event("another user's")])
        .await
        .unwrap();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    held.extend(hold(&setup.socket(), 1_000, 60, &hanging));
    until("those beyond the share to be turned away", || {
        let ended = held.iter_mut().filter_map(|s| has_ended(s).then_some(()));
        (ended.count() == 60).then_some(())
    })
    .await;
    let start = Instant::now();
    send(&setup, vec![event("root's next")]).await.unwrap();
    send_as(&setup, 1_001, vec![event("and the other's")])
        .await
        .unwrap();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let away = setup
        .metric("warden_agent_socket_connections_turned_away_total ")
        .await;
    // A call that hung for long enough is given up, and then its connection may give way.
    let ended = setup
        .metric("warden_agent_socket_connections_ended_total ")
        .await;
    assert!(away >= 1 && away + ended == 60, "{away} {ended}");
    let log = setup.logged();
    let line = log
        .lines()
        .find(|line| line.contains("turned away"))
        .unwrap();
    assert!(line.contains("\"uid\":1000"), "{line}");
    assert!(line.to_lowercase().contains("warn"), "{line}");
}

#[tokio::test]
async fn a_stuck_client_of_the_same_user_gives_way() {
    let (_controller, setup, _agent) = agent().await;
    let idle = hold(&setup.socket(), 0, 40, &greeting());
    let hanging = [greeting(), half_a_call(1), half_a_call(3), half_a_call(5)].concat();
    let _stuck = hold(&setup.socket(), 0, 1, &hanging);
    let start = Instant::now();
    send(&setup, vec![event("a monitor's")]).await.unwrap();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let ended = setup.metric("warden_agent_socket_connections_ended_total ");
    assert_eq!(ended.await, 40 + 1 + 1 - 32);
    drop(idle);
}

#[tokio::test]
async fn calls_of_the_same_user_that_hang_on_all_its_turns_give_them_back() {
    let (_controller, setup, _agent) = agent().await;
    let hanging = [greeting(), half_a_call(1), half_a_call(3)].concat();
    let mut stuck = hold(&setup.socket(), 0, 4, &hanging);
    let start = Instant::now();
    send(&setup, vec![event("a monitor's")]).await.unwrap();
    // 5 s for the batch of a call that has its turn.
    assert!(start.elapsed() < 2 * SOON, "{:?}", start.elapsed());
    assert!(
        stuck.iter_mut().all(|s| !has_ended(s)),
        "they may try again"
    );
    let given_up = setup.metric("warden_agent_socket_calls_given_up_total ");
    assert!(given_up.await >= 1);
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_ended() {
    let (_controller, setup, _agent) = agent().await;
    let mut mute = hold(&setup.socket(), 0, 1, b"PRI * HTTP/2.0");
    let mut idle = hold(&setup.socket(), 0, 1, &greeting());
    let start = Instant::now();
    until("its end", || has_ended(&mut mute[0]).then_some(())).await;
    assert!(start.elapsed() < DEADLINE, "{:?}", start.elapsed());
    assert!(!has_ended(&mut idle[0]), "it speaks HTTP/2");
    assert!(setup.logged().contains("that it speaks HTTP/2"));
}
