//! The way to the controller, and everything that can be wrong with it.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;

use crate::kit::{self, Ran, Server, pool, program, text, tls_server, warden};

fn breaker(url: &str, flags: &[&str]) -> Ran {
    let mut command = program();
    command.args(["breaker", "--server", url]).args(flags);
    command.output().unwrap().into()
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn known() -> [(&'static str, u16, String); 1] {
    [("GET /api/v1/breaker", 200, text(&[pool()]))]
}

#[track_caller]
fn fails(ran: &Ran, words: &[&str]) {
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{ran:?}");
    for word in words {
        assert!(ran.err.contains(word), "{word:?} is not in {}", ran.err);
    }
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
}

#[test]
fn the_token_of_the_file_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let token = file(folder.path(), "token", "secret-token\n");
    let server = Server::start(&known());
    assert_eq!(
        breaker(&server.url(), &["--token-file", &token]).code,
        Some(0)
    );
    assert_eq!(breaker(&server.url(), &[]).code, Some(0));
    let tokens = server
        .called()
        .into_iter()
        .map(|called| called.authorization);
    let want = [Some("Bearer secret-token".to_owned()), None];
    assert!(tokens.eq(want));
}

#[test]
fn an_empty_variable_counts_as_not_set_and_an_empty_flag_is_refused() {
    let server = Server::start(&known());
    let run = |flags: &[&str]| {
        let mut command = program();
        command
            .env("WARDEN_SERVER", "")
            .env("WARDEN_TOKEN_FILE", "")
            .env("WARDEN_CA_FILE", "")
            .arg("breaker")
            .args(flags);
        Ran::from(command.output().unwrap())
    };
    let ran = run(&["--server", &server.url()]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert_eq!(server.called()[0].authorization, None);
    let ran = run(&["--server", &server.url(), "--token-file", ""]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("'--token-file <FILE>'"), "{}", ran.err);
    // The default, where nobody need be.
    let ran = run(&["--token-file", "/nowhere"]);
    assert!(ran.err.contains("token file /nowhere"), "{}", ran.err);
    assert_eq!(run(&["--help"]).code, Some(0));
}

#[test]
fn nobody_there_tells_how_to_get_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let ran = breaker(&url, &[]);
    fails(
        &ran,
        &[
            &url,
            "refused",
            "kubectl -n warden port-forward deployment/warden-controller",
        ],
    );
}

#[test]
fn a_refusal_says_what_the_controller_said_and_what_to_do() {
    let problem = |text: &str, code: &str| format!(r#"{{"error":"{text}","code":"{code}"}}"#);
    let table = [
        (
            401,
            problem("the call has no bearer token", "no_token"),
            vec!["no_token", "--token-file"],
        ),
        (
            403,
            problem("bob may not get /x; a ClusterRole would", "not_allowed"),
            vec!["ClusterRole", "not_allowed"],
        ),
        (
            403,
            "<html>".into(),
            vec!["403 Forbidden: <html>", "token's user may not"],
        ),
        (
            404,
            problem(
                "nothing is known of node x; see `kubectl get nodes`",
                "no_node",
            ),
            vec!["kubectl get nodes", "no_node"],
        ),
        (404, String::new(), vec!["no such page", "http_404"]),
        (
            409,
            problem("there is nothing to end", "request_refused"),
            vec!["nothing to end"],
        ),
        (
            503,
            "not leading: see /readyz\n".into(),
            vec!["not leading", "ask again in a moment"],
        ),
        (
            503,
            problem("the quarantine module does not run here", "quarantine_off"),
            vec!["quarantine_off"],
        ),
        (
            500,
            "\u{1b}[2Jevil".into(),
            vec!["500 Internal Server Error: evil"],
        ),
    ];
    for (status, body, words) in table {
        let server = Server::start(&[("GET /api/v1/breaker", status, body)]);
        let ran = breaker(&server.url(), &[]);
        fails(&ran, &words);
        fails(&ran, &[&format!("GET /api/v1/breaker on {}", server.url())]);
    }
}

#[test]
fn an_answer_that_is_not_the_apis_is_an_error() {
    for body in ["", "<html>", "{}", r#"[{"pool":1}]"#, "[] trailing"] {
        let server = Server::start(&[("GET /api/v1/breaker", 200, body.to_owned())]);
        fails(
            &breaker(&server.url(), &[]),
            &["something else than its API promises"],
        );
    }
}

#[test]
fn fields_of_a_newer_controller_are_passed_over() {
    let body =
        r#"[{"pool":"gpu","nodes":1,"out":0,"withheld":[],"tripped":false,"trip":null,"new":1}]"#;
    let server = Server::start(&[("GET /api/v1/breaker", 200, body.to_owned())]);
    assert_eq!(breaker(&server.url(), &[]).code, Some(0));
    let json = breaker(&server.url(), &["--format", "json"]);
    assert_eq!(json.out, format!("{body}\n"));
}

#[test]
fn a_port_that_speaks_something_else_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 16];
        stream.read_exact(&mut request).unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH\r\n").unwrap();
    });
    fails(
        &breaker(&url, &[]),
        &["got no answer", "the controller's API port?"],
    );
    other.join().unwrap();
}

#[test]
fn tls_believes_the_given_authority_only() {
    let folder = tempfile::tempdir().unwrap();
    let (ca, other) = (
        folder.path().join("ca.pem"),
        folder.path().join("other.pem"),
    );
    let server = tls_server(&known(), &ca);
    let _other = tls_server(&known(), &other);
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let ran = breaker(&server.url(), &["--ca-file", &path(&ca)]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    let ran = breaker(&server.url(), &["--ca-file", &path(&other)]);
    fails(&ran, &["TLS with https://localhost", "--ca-file"]);
    let by_address = server.url().replace("localhost", "127.0.0.1");
    fails(
        &breaker(&by_address, &["--ca-file", &path(&ca)]),
        &["TLS with", "host name"],
    );
    let none = file(folder.path(), "none.pem", "no certificate");
    fails(
        &breaker(&server.url(), &["--ca-file", &none]),
        &["holds no certificate"],
    );
}

#[test]
fn files_that_can_not_be_read_are_named() {
    fails(
        &warden(&["breaker", "--token-file", "/nowhere"]),
        &["token file /nowhere", "kubectl create token"],
    );
    let flags = [
        "breaker",
        "--server",
        "https://localhost:1",
        "--ca-file",
        "/nowhere",
    ];
    fails(&warden(&flags), &["CA file /nowhere"]);
}

#[test]
fn a_token_is_not_sent_in_clear_over_a_network() {
    let ran = warden(&["status", "--server", "http://10.0.0.1:9441"]);
    fails(&ran, &["in clear", "port-forward"]);
    assert_eq!(kit::warden(&["nonsense"]).code, Some(2));
}
