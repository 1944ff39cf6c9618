//! Files of the agent that go from their place while it runs.

use std::path::Path;

use crate::kit::{Controller, Setup, until};
use crate::socket::{event, send};

fn coded(code: &str) -> wire::datamodels::HealthEvent {
    let mut event = event(code);
    event.error_code = vec![code.into()];
    event
}

/// The codes of the events that the controller has, once each.
fn codes(controller: &Controller) -> Vec<String> {
    controller.see(|r| {
        let events = r.of_check("Custom");
        let mut codes: Vec<String> = events.iter().flat_map(|e| e.error_codes.clone()).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    })
}

#[tokio::test]
async fn what_was_acknowledged_outlives_the_spools_files() {
    type Act = fn(&Path);
    let table: [(&str, Act); 6] = [
        ("the folder removed", |state| {
            std::fs::remove_dir_all(state).unwrap();
        }),
        ("the folder replaced", |state| {
            std::fs::rename(state, state.with_extension("old")).unwrap();
            std::fs::create_dir(state).unwrap();
        }),
        ("the database removed", |state| {
            std::fs::remove_file(state.join("spool.db")).unwrap();
        }),
        ("its log removed", |state| {
            std::fs::remove_file(state.join("spool.db-wal")).unwrap();
        }),
        ("another file in its place", |state| {
            std::fs::remove_file(state.join("spool.db")).unwrap();
            std::fs::write(state.join("spool.db"), [7; 9_000]).unwrap();
        }),
        ("the lock removed", |state| {
            std::fs::remove_file(state.join("lock")).unwrap();
        }),
    ];
    for (name, act) in table {
        let mut controller = Controller::absent();
        let setup = Setup::new();
        let agent = setup.start(&controller.url());
        send(&setup, vec![coded("before")]).await.unwrap();
        act(&setup.state);
        send(&setup, vec![coded("after")]).await.unwrap();
        assert!(setup.logged().contains("written anew there"), "{name}");
        // A second agent is still kept out.
        let lock = std::fs::File::open(setup.state.join("lock")).unwrap();
        assert!(lock.try_lock().is_err(), "{name}");
        send(&setup, vec![coded("later")]).await.unwrap();
        agent.kill();
        let agent = setup.start(&controller.url());
        controller.up();
        until(name, || (codes(&controller).len() == 3).then_some(())).await;
        let lost = controller.see(|r| r.of_check("EventsLost").len());
        assert_eq!(lost, 0, "{name}");
        let numbers = controller.see(|r| r.numbers());
        assert!(numbers.is_sorted_by(|a, b| a < b), "{name}: {numbers:?}");
        assert!(agent.stop().success());
    }
}

/// Die wherever what the files held is written anew. Until that is whole it is in no file that a
/// start finds, and the loss is told; from then on nothing is lost.
#[tokio::test]
async fn dying_while_the_spool_is_written_anew_loses_nothing_from_the_moment_that_it_is_whole() {
    let places = agent::crash::POINTS.into_iter();
    let places = places.filter(|place| place.starts_with("spool.copy"));
    for (place, replaced) in places.flat_map(|place| [(place, false), (place, true)]) {
        let name = format!("{place}, replaced: {replaced}");
        let mut controller = Controller::absent();
        let mut setup = Setup::new();
        let flags = setup.flags.clone();
        setup.flag("--crash-at", place);
        let mut agent = setup.start(&controller.url());
        send(&setup, vec![coded("before")]).await.unwrap();
        for file in ["spool.db", "spool.db-wal", "spool.db-shm"] {
            std::fs::remove_file(setup.state.join(file)).unwrap();
        }
        if replaced {
            std::fs::write(setup.state.join("spool.db"), [7; 9_000]).unwrap();
        }
        assert!(send(&setup, vec![coded("after")]).await.is_err(), "{name}");
        until(&name, || (!agent.is_running()).then_some(())).await;
        // That of the dead one answers nobody.
        std::fs::remove_file(setup.socket()).unwrap();
        setup.flags = flags;
        let agent = setup.start(&controller.url());
        send(&setup, vec![coded("after")]).await.unwrap();
        controller.up();
        let is_whole = !place.ends_with("before");
        let (want, lost): (&[&str], usize) = if is_whole {
            (&["after", "before"], 0)
        } else {
            (&["after"], 1)
        };
        until(&name, || (codes(&controller) == want).then_some(())).await;
        controller.settled().await;
        let told = controller.see(|r| r.of_check("EventsLost").len());
        assert_eq!(told, lost, "{name}: {}", setup.logged());
        assert!(agent.stop().success());
        let left = ["spool.whole", "spool.new"].map(|file| setup.state.join(file).exists());
        assert_eq!(left, [false; 2], "{name}");
    }
}

#[tokio::test]
async fn a_spool_that_vanished_is_missed_also_while_nothing_is_written() {
    let mut controller = Controller::absent();
    let setup = Setup::new();
    let agent = setup.start(&controller.url());
    send(&setup, vec![coded("before")]).await.unwrap();
    std::fs::remove_dir_all(&setup.state).unwrap();
    until("it is there again", || {
        setup.logged().contains("written anew there").then_some(())
    })
    .await;
    agent.kill();
    let _agent = setup.start(&controller.url());
    controller.up();
    until("the event", || {
        (codes(&controller) == ["before"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn nothing_is_acknowledged_while_the_spool_can_not_be_written_in_its_place() {
    let mut controller = Controller::absent();
    let mut setup = Setup::new();
    setup.flag("--admin-listen", "127.0.0.1:0");
    let agent = setup.start(&controller.url());
    send(&setup, vec![coded("before")]).await.unwrap();
    std::fs::remove_dir_all(&setup.state).unwrap();
    std::fs::write(&setup.state, "in the way").unwrap();
    let refused = send(&setup, vec![coded("meanwhile")]).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    let page = setup.page("/healthz").await;
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    assert!(page.contains("can't be written"), "{page}");
    std::fs::remove_file(&setup.state).unwrap();
    until("it is written there again", || {
        let logged = setup.logged();
        logged.contains("spool can be written again").then_some(())
    })
    .await;
    let page = setup.page("/healthz").await;
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    agent.kill();
    let _agent = setup.start(&controller.url());
    controller.up();
    until("both events", || {
        (codes(&controller).len() == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_socket_that_was_removed_is_there_again_for_everybody() {
    type Act = fn(&Path);
    let table: [(&str, Act); 4] = [
        ("removed", |socket| std::fs::remove_file(socket).unwrap()),
        ("its folder removed", |socket| {
            std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
        }),
        ("another socket in its place", |socket| {
            std::fs::remove_file(socket).unwrap();
            drop(std::os::unix::net::UnixListener::bind(socket).unwrap());
        }),
        ("its lock removed", |socket| {
            std::fs::remove_file(socket.with_extension("sock.lock")).unwrap();
        }),
    ];
    let controller = Controller::absent();
    for (name, act) in table {
        let setup = Setup::new();
        let socket = setup.socket();
        let agent = setup.start(&controller.url());
        until("the socket", || socket.exists().then_some(())).await;
        act(&socket);
        let lock = socket.with_extension("sock.lock");
        until(name, || {
            let lock = std::fs::File::open(&lock).ok()?;
            let held = lock.try_lock().is_err();
            let open = std::os::unix::net::UnixStream::connect(&socket).is_ok();
            (held && open).then_some(())
        })
        .await;
        let mode = std::fs::metadata(&socket).unwrap().permissions();
        let mode = std::os::unix::fs::PermissionsExt::mode(&mode);
        assert_eq!(mode & 0o777, 0o666, "{name}");
        let said = || setup.logged().contains("went from its place");
        if name == "its lock removed" {
            assert!(!said(), "{name}");
        } else {
            // It says so once the socket is there.
            until(name, || said().then_some(())).await;
        }
        assert!(agent.stop().success());
        assert!(!socket.exists(), "{name}: removed at the end");
    }
}

#[tokio::test]
async fn callers_that_say_nothing_keep_healthz_from_nobody() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    setup.flag("--admin-listen", "127.0.0.1:0");
    let _agent = setup.start(&controller.url());
    let address = setup.pages().await;
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(tokio::net::TcpStream::connect(&address).await.unwrap());
    }
    // One after the other they would take minutes.
    let page = setup.page("/healthz");
    let page = tokio::time::timeout(std::time::Duration::from_secs(30), page).await;
    assert!(page.unwrap().starts_with("HTTP/1.1 200"));
    drop(idle);
}

#[tokio::test]
async fn healthz_says_that_nobody_can_connect_to_the_socket() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    setup.flag("--admin-listen", "127.0.0.1:0");
    let _agent = setup.start(&controller.url());
    let socket = setup.socket();
    until("the socket", || socket.exists().then_some(())).await;
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "in the way").unwrap();
    until("it is missed", || {
        setup.logged().contains("socket not served").then_some(())
    })
    .await;
    let page = setup.page("/healthz").await;
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    assert!(
        page.contains("which is no socket, is in the way; remove it"),
        "{page}"
    );
    std::fs::remove_file(&socket).unwrap();
    until("it is there again", || socket.exists().then_some(())).await;
    send(&setup, vec![coded("x")]).await.unwrap();
    let page = setup.page("/healthz").await;
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
}
