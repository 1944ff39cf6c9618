//! `[drain]`

use toml::Value;

use super::Profile;
use super::reader::Section;

/// `[drain]`
#[derive(Debug, Clone)]
pub struct DrainConfig {
    /// Whether the module runs.
    pub enabled: bool,
    /// Decides and shows, but moves no pod.
    pub dry_run: bool,
}

impl DrainConfig {
    pub(super) fn read(mut s: Section<'_>, profile: Profile) -> Self {
        let acts = profile >= Profile::Drain;
        let enabled = s.flag(
            "enabled",
            acts,
            "Whether the module runs; off below profile drain",
        );
        let dry_run = s.flag(
            "dry_run",
            !acts,
            "Whether it only decides and shows; so below profile drain",
        );
        if !dry_run && !acts {
            s.problem("dry_run", &Value::from(false), "true below profile drain");
        }
        Self { enabled, dry_run }
    }
}
