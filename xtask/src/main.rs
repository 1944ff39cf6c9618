//! Generators and checks of the repository: `cargo run -p xtask -- check`.

mod literals;
mod names;
mod options;
mod pages;
mod reference_metrics;
mod rows;
mod weak_points;
mod wire_fields;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Checks of the repository")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the reference pages and the list of the wire's numbers again.
    Generate,
    /// Fail on stale pages, names outside their place, options that do not exist, changed numbers
    /// of the wire, acceptance rows without a test, and weak points with neither a test that is there
    /// nor a word for that.
    Check,
    /// Print which acceptance rows are tested, differ, or are open.
    Rows,
}

#[expect(
    clippy::print_stdout,
    reason = "this program reports on standard output"
)]
fn main() -> anyhow::Result<()> {
    let root = root()?;
    match Arguments::parse().command {
        Command::Rows => println!("{}", rows::count(&root)?),
        Command::Generate => {
            pages::write(&root)?;
            let list = wire_fields::page(&root)?;
            std::fs::write(root.join(wire_fields::LIST), list)
                .with_context(|| format!("writing {}", wire_fields::LIST))?;
        }
        Command::Check => {
            let mut faults = pages::stale(&root);
            faults.extend(names::misplaced(&root)?);
            faults.extend(options::unknown(&root)?);
            faults.extend(wire_fields::faults(&root)?);
            let weak_points = weak_points::read(&root)?;
            let rows = rows::count(&root)?;
            println!("{rows}");
            println!("{weak_points}");
            faults.extend(weak_points.faults);
            faults.extend(rows.open().map(|row| {
                format!(
                    "{row}: no test that carries its number, and no line in docs/differences.md"
                )
            }));
            if !faults.is_empty() {
                bail!("{}", faults.join("\n"));
            }
        }
    }
    Ok(())
}

/// The repository's root, from wherever cargo runs us.
fn root() -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask has no parent")?;
    Ok(root.to_owned())
}

/// All Rust files of the crates, the end-to-end tests and the benchmarks.
fn rust_files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = ["crates", "tests", "bench", "xtask"]
        .iter()
        .map(|name| root.join(name))
        .filter(|path| path.is_dir())
        .collect();
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder)
            .with_context(|| format!("reading the folder {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "target") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}
