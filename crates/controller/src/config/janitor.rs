//! `[janitor]`

use toml::Value;

use super::Profile;
use super::reader::Section;

/// `[janitor]`
#[derive(Debug, Clone)]
pub struct JanitorConfig {
    /// Whether the module runs.
    pub enabled: bool,
}

impl JanitorConfig {
    pub(super) fn read(mut s: Section<'_>, profile: Profile) -> Self {
        let acts = profile >= Profile::Remediate;
        let enabled = s.flag(
            "enabled",
            acts,
            "Whether the module carries repairs out; off below profile remediate",
        );
        if enabled && !acts {
            s.problem(
                "enabled",
                &Value::from(true),
                "false below profile remediate",
            );
        }
        Self { enabled }
    }
}
