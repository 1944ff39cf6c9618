//! Reference pages, written from the code that they describe.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;

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
         `warden config check FILE` says the same without starting anything.\n\n## warden-controller\n\n\
         | key | default | allowed | meaning |\n|---|---|---|---|\n"
    );
    let config = controller::config::Config::default();
    for key in config.keys() {
        let default = format!("`{}`", key.default);
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
