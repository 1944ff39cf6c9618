//! `make testbed`: the commands that it prints work as they are printed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use e2e::programs::program;

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A printed command, with the built program for what builds and runs it.
fn shell(line: &str) -> Command {
    let (before, rest) = line.trim().split_once("cargo run -q --bin ").unwrap();
    let (name, arguments) = rest.split_once(" -- ").unwrap();
    let program = program(name).unwrap();
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("{before}exec {} {arguments}", program.display()))
        .env_remove("KUBECONFIG")
        .env_remove("NODE_NAME")
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < Duration::from_secs(60), "no {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_commands_that_make_testbed_prints_work() {
    let mut testbed = Command::new(program("testbed").unwrap());
    testbed.args(["--nodes", "1"]).stdout(Stdio::piped());
    let mut testbed = Running(testbed.spawn().unwrap());
    let output = BufReader::new(testbed.0.stdout.take().unwrap());
    let mut said = Vec::new();
    for line in output.lines().map(Result::unwrap) {
        said.push(line.clone());
        if line.starts_with("Ctrl-C") {
            break;
        }
    }
    let command = |part: &str| {
        let line = said.iter().find(|line| line.contains(part));
        shell(line.unwrap_or_else(|| panic!("{part} is not in {said:#?}")))
    };
    assert!(said.iter().any(|line| line.contains("export KUBECONFIG=/")));
    let start = |part: &str| Running(command(part).stdout(Stdio::null()).spawn().unwrap());
    let _controller = start("--bin warden-controller");
    let _agent = start("--bin warden-agent");
    let tells = |words: &str| {
        let explained = command(" explain ").output().unwrap();
        String::from_utf8(explained.stdout).unwrap().contains(words)
    };
    until("settled agent", || tells("agent settled"));
    assert!(command("--fatal").output().unwrap().status.success());
    until("node that is out", || tells("is out of service"));
    assert!(command("--healthy").output().unwrap().status.success());
    until("node that is back", || {
        tells("no fault is open, no incident")
    });
}
