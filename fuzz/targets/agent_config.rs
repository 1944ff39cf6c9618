//! Any text as the agent's configuration file, and any value as one of its flags.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The module alone: linking the agent would build SQLite.
#[allow(dead_code, reason = "the target calls only the parser")]
#[path = "../../crates/agent/src/config.rs"]
mod config;

use config::{ConfigError, Given, KEYS, load};

fuzz_target!(|text: &str| {
    check(load(text, &[given("node_name", "gpu-1")]), text);
    let (first, value) = text.split_at_checked(1).unwrap_or(("", text));
    let index = usize::from(first.as_bytes().first().copied().unwrap_or_default());
    let (key, _) = KEYS[index % KEYS.len()];
    check(load("", &[given(key, value)]), value);
});

fn given(key: &'static str, value: &str) -> Given {
    let value = value.to_owned();
    Given {
        key,
        name: "--flag",
        value,
    }
}

fn check(read: Result<config::Config, ConfigError>, text: &str) {
    match read {
        Ok(config) => {
            assert!(config.socket.is_none_or(|path| path.is_absolute()));
            assert!(config.state_dir.is_absolute() && config.boot_id_file.is_absolute());
            assert!((1 << 20..=1 << 40).contains(&config.spool_bytes));
        }
        Err(ConfigError(faults)) => {
            assert!(!faults.is_empty());
            for fault in &faults {
                assert!(!fault.key.is_empty() && !fault.allowed.is_empty());
                let shown = fault.value.as_ref().map_or(0, String::len);
                assert!(shown <= 1_024, "{shown} bytes of {} in a message", text.len());
            }
        }
    }
}
