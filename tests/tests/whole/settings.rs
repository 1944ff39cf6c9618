//! How the controller and the provider of a loop are set.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use testbed::{Behaviour, SimProvider};

/// Everything at once, and short waits for what takes minutes in a real cluster: section, key, value.
const AT_ONCE: [(&str, &str, &str); 11] = [
    ("lease", "duration", "'10s'"),
    ("quarantine", "first_action_delay", "'0s'"),
    ("quarantine.circuitBreaker", "enabled", "false"),
    ("drain", "first_action_delay", "'0s'"),
    (
        "drain",
        "userNamespaces",
        "[{ name = 'at-once', mode = 'Immediate' }, { name = 'kept-*', mode = 'Immediate' }, \
         { name = 'may-finish', mode = 'AllowCompletion' }]",
    ),
    ("remediation", "first_action_delay", "'0s'"),
    ("janitor", "cspProviderInsecure", "true"),
    ("janitor", "cspProviderTokenPath", "''"),
    ("janitor", "ask_interval", "'200ms'"),
    ("janitor", "no_reboot_after", "'1s'"),
    ("janitor", "timeout", "'90s'"),
];

/// How a loop differs from the usual one.
#[derive(Default)]
pub(super) struct Settings {
    /// What the provider does at first.
    pub(super) behaviour: Behaviour,
    /// Section, key and value of what is configured otherwise.
    pub(super) set: Vec<(&'static str, &'static str, &'static str)>,
    /// More flags of the controller.
    pub(super) flags: Vec<String>,
    /// As which user it calls the API server, where the audit log has to tell its calls from others'.
    pub(super) user: Option<&'static str>,
    /// Whether a proxy stands before the controller's API server.
    pub(super) proxied: bool,
}

impl Settings {
    /// The controller's configuration.
    pub(super) fn text(&self, provider: &SimProvider) -> String {
        let host = format!("'{}'", provider.address());
        let mut sections: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
        let host = ("janitor", "cspProviderHost", host.as_str());
        for (section, key, value) in AT_ONCE.into_iter().chain([host]).chain(self.set.clone()) {
            sections.entry(section).or_default().insert(key, value);
        }
        let mut text = String::new();
        for (section, keys) in sections {
            writeln!(text, "[{section}]").unwrap();
            for (key, value) in keys {
                writeln!(text, "{key} = {value}").unwrap();
            }
        }
        text
    }
}

/// A provider whose machines are down for a while.
pub(super) fn slow() -> Behaviour {
    Behaviour {
        down_for: Duration::from_secs(2),
        ..Behaviour::default()
    }
}
