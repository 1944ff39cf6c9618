//! Reference pages, written from the code that they describe.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use controller::config::{Config, Profile};

use crate::reference_metrics::{self, Metric};

/// A page and its place.
pub(crate) struct Page {
    path: &'static str,
    text: String,
}

const GENERATED: &str =
    "<!-- Written by `make generate`; `make test` checks that it is current. -->";

/// All pages as they should be.
pub(crate) fn all() -> Vec<Page> {
    vec![
        Page {
            path: "docs/configuration.md",
            text: configuration(),
        },
        Page {
            path: "docs/metrics.md",
            text: metrics(),
        },
    ]
}

/// Writes every page.
pub(crate) fn write(root: &Path) -> anyhow::Result<()> {
    for page in all() {
        let path = root.join(page.path);
        std::fs::write(&path, page.text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// The pages that are not as they should be.
pub(crate) fn stale(root: &Path) -> Vec<String> {
    all()
        .into_iter()
        .filter(|page| {
            let found = std::fs::read_to_string(root.join(page.path)).unwrap_or_default();
            found != page.text
        })
        .map(|page| format!("{}: not current; run make generate", page.path))
        .collect()
}

fn configuration() -> String {
    let mut page = format!(
        "# Configuration\n\n{GENERATED}\n\nBoth programs read one TOML file (`--config FILE`). An \
         unknown key or a bad value keeps them from starting; all of them are reported at once. \
         `warden config check FILE` says the same without starting anything, warns of values that \
         contradict each other, and says in one line what acts with the file.\n\n## warden-controller\n\n\
         A default that depends on `profile` (silent, observe, cordon, drain, remediate: from weak to \
         strong) is told with where it changes.\n\n\
         | key | default | allowed | meaning |\n|---|---|---|---|\n"
    );
    let by_profile = Profile::ALL.map(of_profile);
    let config = Config::default();
    for (index, key) in config.keys().iter().enumerate() {
        let default = default_of(&by_profile, index);
        row(&mut page, &[&key.key, &default, key.allowed, key.help]);
    }
    page.push_str(
        "\nArrays of tables: `[[NAME]]` begins an element, and `NAME[].KEY` is a key of it. A default \
         `\"\"` of a key that must not be empty means that it must be given.\n\n\
         | key | default | allowed | meaning |\n|---|---|---|---|\n",
    );
    for key in config.shapes() {
        // Of an array in words, of a key as it would be written.
        let is_array = key.value.is_empty();
        let default = if is_array {
            key.default.clone()
        } else {
            format!("`{}`", key.default)
        };
        row(&mut page, &[&key.key, &default, key.allowed, key.help]);
    }
    page.push_str(
        "\nRule sets have the reference's form; the names that their expressions may use are in \
         [cel.md](cel.md).\n\n## warden-agent\n\nEach key but \
         `socket.uids` has a flag, which wins; `warden-agent --help` says the defaults.\n\n| key | allowed |\n|---|---|\n",
    );
    for (key, allowed) in agent::config::KEYS {
        row(&mut page, &[key, allowed]);
    }
    page
}

fn of_profile(profile: Profile) -> (Profile, Config) {
    let text = format!("profile = {:?}", profile.as_str());
    let config = Config::parse(&text).expect("a profile alone is a configuration");
    (profile, config)
}

/// The default of a key, where it depends on the profile with where it changes:
/// `` `false`; `true` from profile drain up ``.
fn default_of(by_profile: &[(Profile, Config)], index: usize) -> String {
    let default = |config: &Config| config.keys()[index].default.clone();
    let mut words: Vec<String> = Vec::new();
    let mut before: Option<String> = None;
    for (profile, config) in by_profile {
        let now = default(config);
        if before.as_ref() == Some(&now) {
            continue;
        }
        words.push(match before {
            None => format!("`{now}`"),
            Some(_) => format!("`{now}` from profile {} up", profile.as_str()),
        });
        before = Some(now);
    }
    words.join("; ")
}

fn metrics() -> String {
    let mut page = format!(
        "# Metrics\n\n{GENERATED}\n\n## warden-controller\n\nServed at `/metrics` of `api.listen`.\n\n"
    );
    numbers(&mut page, reference_metrics::controller());
    page.push_str("\n## warden-agent\n\nServed at `/metrics` of `admin.listen`.\n\n");
    numbers(&mut page, reference_metrics::agent());
    page.push_str(
        "\n## Coming from NVSentinel\n\nWhere the meaning is the same, so are name, type and labels. These \
         are the metrics of the components that this version replaces.\n\n\
         | component | metric | here | note |\n|---|---|---|---|\n",
    );
    for metric in reference_metrics::rows() {
        let here = match metric.answer.split_once(' ') {
            Some((_, name)) => format!("`{name}`"),
            None => metric.answer.to_owned(),
        };
        let name = format!("`{}`", metric.metric);
        row(&mut page, &[metric.component, &name, &here, metric.note]);
    }
    page
}

fn numbers(page: &mut String, metrics: Vec<Metric>) {
    page.push_str("| name | type | labels | meaning |\n|---|---|---|---|\n");
    for metric in metrics {
        let labels: Vec<String> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
        let (name, help) = (format!("`{}`", metric.name), format!("{}.", metric.help));
        row(page, &[&name, &metric.kind, &labels.join(", "), &help]);
    }
}

fn row(page: &mut String, cells: &[&str]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    // Writing to a string can't fail.
    writeln!(page, "| {} |", cells.join(" | ")).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_that_depends_on_the_profile_is_told_with_where_it_changes() {
        let page = configuration();
        for row in [
            "| connector.enabled | `false`; `true` from profile observe up |",
            "| quarantine.enabled | `false`; `true` from profile observe up |",
            "| quarantine.dry_run | `true`; `false` from profile cordon up |",
            "| drain.enabled | `false`; `true` from profile drain up |",
            "| drain.dry_run | `true`; `false` from profile drain up |",
            "| remediation.enabled | `false`; `true` from profile remediate up |",
            "| remediation.dry_run | `true`; `false` from profile remediate up |",
            "| janitor.enabled | `false`; `true` from profile remediate up |",
            "| drain.at_deadline | `\"fail\"` |",
        ] {
            assert!(page.contains(row), "{row}");
        }
        // Whatever else depends on it is told so too.
        let changing = page.matches("` from profile ").count();
        assert_eq!(
            changing, 8,
            "a key more depends on the profile, or one less"
        );
    }
}
