//! Any text as the controller's configuration file.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The module alone: linking the controller would build the whole Kubernetes client.
#[allow(dead_code, unused_imports, reason = "the target calls only the parser")]
#[path = "../../crates/controller/src/config/mod.rs"]
mod config;

use config::{Config, ConfigError};

fuzz_target!(|text: &str| {
    match Config::parse(text) {
        Ok(config) => {
            let effective = config.effective();
            assert!(effective.len() <= 64 * 1024 + 8 * text.len());
            for key in config.keys() {
                assert!(!key.allowed.is_empty() && !key.help.is_empty());
            }
        }
        Err(ConfigError::TooLarge) => assert!(text.len() > config::LARGEST),
        Err(ConfigError::Syntax(why)) => assert!(!why.is_empty()),
        Err(ConfigError::Problems(problems)) => {
            assert!(!problems.is_empty());
            for problem in problems {
                assert!(!problem.key.is_empty() && !problem.allowed.is_empty());
                assert!(problem.value.len() <= 400, "a value is cut in a message");
            }
        }
    }
});
