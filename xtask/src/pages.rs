//! Reference pages, written from the code that they describe.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;

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
         `warden config check FILE` says the same without starting anything.\n\n## warden-controller\n\n\
         | key | default | allowed | meaning |\n|---|---|---|---|\n"
    );
    let config = controller::config::Config::default();
    for key in config.keys() {
        row(
            &mut page,
            &[
                &key.key,
                &format!("`{}`", key.default),
                key.allowed,
                key.help,
            ],
        );
    }
    page.push_str(
        "\nRule sets (`[[quarantine.rule-sets]]`) have the reference's form; the names that their \
         expressions may use are in [cel.md](cel.md).\n\n## warden-agent\n\nEach key has a flag, \
         which wins; `warden-agent --help` says the defaults.\n\n| key | allowed |\n|---|---|\n",
    );
    for (key, allowed) in agent::config::KEYS {
        row(&mut page, &[key, allowed]);
    }
    page
}

fn metrics() -> String {
    let mut page = format!(
        "# Metrics\n\n{GENERATED}\n\n## warden-controller\n\nServed at `/metrics` of `api.listen`. Names that \
         the reference has mean the same here.\n\n| name | type | meaning |\n|---|---|---|\n"
    );
    for metric in telemetry::metrics::ControllerMetrics::new().described() {
        let help = format!("{}.", metric.help);
        row(
            &mut page,
            &[&format!("`{}`", metric.name), &metric.kind, &help],
        );
    }
    page.push_str(
        "\n## warden-agent\n\nServed at `/metrics` of `admin.listen`.\n\n| name | type | meaning |\n\
         |---|---|---|\n",
    );
    let (settled, help) = agent::admin::DETECTOR_SETTLED;
    let numbers = agent::admin::METRICS.map(|metric| (metric.name, metric.kind, metric.help));
    for (name, kind, help) in numbers.into_iter().chain([(settled, "gauge", help)]) {
        row(
            &mut page,
            &[&format!("`{name}`"), kind, &format!("{help}.")],
        );
    }
    page
}

fn row(page: &mut String, cells: &[&str]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    // Writing to a string can't fail.
    writeln!(page, "| {} |", cells.join(" | ")).ok();
}
