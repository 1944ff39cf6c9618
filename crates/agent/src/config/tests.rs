use super::*;

fn flags(list: &[(&'static str, &str)]) -> Vec<Given> {
    let given = |(key, value): &(&'static str, &str)| Given {
        key,
        name: "--flag",
        value: (*value).to_owned(),
    };
    list.iter().map(given).collect()
}

#[test]
fn defaults_are_complete_but_for_the_node() {
    let config = load("", &flags(&[("node_name", "gpu-1")])).unwrap();
    assert_eq!(config.socket, Some(PathBuf::from(DEFAULT_SOCKET)));
    assert_eq!(config.kernel_log.source, Source::Kmsg);
    assert_eq!(config.controller, None);
    assert_eq!(config.admin, None);
}

#[test]
fn everything_wrong_is_told_at_once() {
    let file = "
        nodename = 'gpu-1'
        state_dir = 'relative'
        [kernel_log]
        start = 'begin'
        [controller]
        url = 'http://10.0.0.1:80'
        [spool]
        max_bytes = 5
    ";
    let error = load(file, &flags(&[("kernel_log.source", "journal")])).unwrap_err();
    let mut keys: Vec<&str> = error.0.iter().map(|f| f.key.as_str()).collect();
    keys.sort_unstable();
    let want = [
        "--flag",
        "controller.url",
        "kernel_log.start",
        "node_name (--node-name, NODE_NAME)",
        "nodename",
        "spool.max_bytes",
        "state_dir",
    ];
    assert_eq!(keys, want);
    let text = error.to_string();
    assert!(
        text.contains("kernel_log.start = \"begin\"; allowed: auto, end or a sequence number"),
        "{text}"
    );
}

#[test]
fn a_fault_is_named_as_it_was_given() {
    let keys = |file: &str, given: &[(&'static str, &str)]| {
        let error = load(file, &flags(given)).unwrap_err();
        error.0.into_iter().map(|f| f.key).collect::<Vec<_>>()
    };
    let url = "http://10.0.0.1:1";
    let node = ("node_name", "gpu-1");
    assert_eq!(keys("", &[node, ("controller.url", url)]), ["--flag"]);
    let file = format!("[controller]\nurl = '{url}'");
    assert_eq!(keys(&file, &[node]), ["controller.url"]);
    // A bad name is no missing one.
    assert_eq!(keys("", &[("node_name", "a b")]), ["--flag"]);
    assert_eq!(keys("node_name = ''", &[]), ["node_name"]);
    assert_eq!(keys("", &[]), ["node_name (--node-name, NODE_NAME)"]);
}

#[test]
fn every_place_that_is_no_toml_is_told_with_its_line() {
    let file = "state_dir = '/a'\nstate_dir = '/b'\n[socket]\nuids = [1]\nuids = [2]\n";
    let error = load(file, &flags(&[("node_name", "n")])).unwrap_err();
    let keys: Vec<&str> = error.0.iter().map(|f| f.key.as_str()).collect();
    let want = [
        "line 2, column 1 of the file",
        "line 5, column 1 of the file",
    ];
    assert_eq!(keys, want);
    let text = error.to_string();
    assert!(
        text.starts_with("the configuration has 2 faults:\n"),
        "{text}"
    );
    assert!(
        text.contains("uids = [2]") && text.contains("duplicate key"),
        "{text}"
    );
    let one = load("", &[]).unwrap_err().to_string();
    assert!(one.starts_with("the configuration has 1 fault:\n"), "{one}");
}

#[test]
fn a_key_of_which_nothing_is_to_be_seen_is_named() {
    let error = load("'' = 1\n\"\\u200b\" = 2", &flags(&[("node_name", "gpu-1")])).unwrap_err();
    let keys: Vec<&str> = error.0.iter().map(|fault| fault.key.as_str()).collect();
    assert_eq!(keys, ["\"\"", "\"\\u{200b}\""]);
}

#[test]
fn what_an_error_shows_is_bounded_and_harmless() {
    let long = "x".repeat(100_000);
    let keys: Vec<String> = (0..1_000).map(|n| format!("key{n} = {n}")).collect();
    let keys = keys.join("\n");
    let file = format!(
        "{long} = \"{long}\"\nstate_dir = \"\\u001b[2Jhere\"\n{keys}\n[controller]\nurl = \
         \"http://h/{long}\"\n"
    );
    let flags = flags(&[("node_name", &long), ("log.filter", &long)]);
    let error = load(&file, &flags).unwrap_err();
    for fault in &error.0 {
        let value = fault.value.as_deref().unwrap_or_default();
        let most = MOST_CHARS + '…'.len_utf8();
        assert!(fault.key.len() <= most && value.len() <= most, "{fault}");
    }
    let text = error.to_string();
    assert!(text.len() < 50_000, "{}", text.len());
    assert!(text.ends_with("and 954 more"), "{text}");
    assert!(error.0.iter().any(|f| f.value.as_deref() == Some("here")));
}

#[test]
fn plaintext_goes_to_loopback_only_and_only_when_asked_for() {
    let table = [
        ("https://warden.warden.svc:443", "false", true),
        ("http://127.0.0.1:5000", "true", true),
        ("http://[::1]:5000", "true", true),
        ("http://localhost:5000", "true", true),
        ("http://127.0.0.1:5000", "false", false),
        ("http://10.0.0.1:5000", "true", false),
        ("http://localhost.evil:5000", "true", false),
        ("ftp://127.0.0.1", "true", false),
    ];
    for (url, insecure, good) in table {
        let flags = flags(&[
            ("node_name", "n"),
            ("controller.url", url),
            ("controller.insecure_local", insecure),
        ]);
        assert_eq!(load("", &flags).is_ok(), good, "{url} {insecure}");
    }
}

#[test]
fn every_value_form_is_read() {
    let file = "
        node_name = 'gpu-1'
        machine_id = 'm'
        [kernel_log]
        source = 'pipe:/run/k'
        start = 17
        accept_user_records = true
        first_start_lookback_seconds = 0
        [socket]
        path = 'off'
        uids = [0, 1000]
        [admin]
        listen = '127.0.0.1:9400'
    ";
    let config = load(file, &flags(&[("kernel_log.start", "end")])).unwrap();
    assert_eq!(config.kernel_log.source, Source::Pipe("/run/k".into()));
    assert_eq!(
        config.kernel_log.start,
        Start::End,
        "flags stand above the file"
    );
    assert_eq!(config.socket_uids, [0, 1000]);
    assert_eq!(config.socket, None);
    assert!(config.admin.is_some());
}

/// TOML by its form, and no table for who reads it: all of it was left out.
#[test]
fn an_integer_that_overflows_is_a_fault_and_not_a_file_without_content() {
    let big = "99999999999999999999";
    let table = [
        (
            format!("state_dir = '/x'\n[spool]\nmax_bytes = {big}\n"),
            "spool.max_bytes (line 3 of the file)",
            "bytes, 1048576 to 1099511627776",
        ),
        (
            format!("socket.uids = [1, -{big}]"),
            "socket.uids (line 1 of the file)",
            "user ids, parted by commas; empty = all",
        ),
        (
            format!("\nother = [{{ deep = {big} }}]"),
            "other.deep (line 2 of the file)",
            "an integer of 64 bits",
        ),
        (
            "spool = { max_bytes = 0xffff_ffff_ffff_ffff_f }".to_owned(),
            "spool.max_bytes (line 1 of the file)",
            "bytes, 1048576 to 1099511627776",
        ),
    ];
    for (file, key, allowed) in table {
        let error = load(&file, &flags(&[("node_name", "gpu-1")])).unwrap_err();
        let told: Vec<_> = error.0.iter().map(|f| (&*f.key, &*f.allowed)).collect();
        assert_eq!(told, [(key, allowed)], "{file}");
    }
}
