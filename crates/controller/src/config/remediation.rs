//! `[remediation]`

use toml::Value;

use super::Profile;
use super::reader::Section;

/// `[remediation]`
#[derive(Debug, Clone)]
pub struct RemediationConfig {
    /// Whether the module runs.
    pub enabled: bool,
    /// Decides and shows, but orders no repair.
    pub dry_run: bool,
}

impl RemediationConfig {
    pub(super) fn read(mut s: Section<'_>, profile: Profile) -> Self {
        let acts = profile >= Profile::Remediate;
        let enabled = s.flag(
            "enabled",
            acts,
            "Whether the module runs; off below profile remediate",
        );
        let dry_run = s.flag(
            "dry_run",
            !acts,
            "Whether it only decides and shows; so below profile remediate",
        );
        if !dry_run && !acts {
            s.problem(
                "dry_run",
                &Value::from(false),
                "true below profile remediate",
            );
        }
        Self { enabled, dry_run }
    }
}
