//! `make bench`.
mod appends;
mod decisions;
mod facts;
mod report;
mod stats;
fn main() -> anyhow::Result<()> {
    let f = tempfile::tempdir()?;
    let facts = facts::Facts::observe(f.path())?;
    let rt = tokio::runtime::Runtime::new()?;
    let mut rows = rt.block_on(appends::run(f.path(), true))?;
    rows.push(decisions::run(decisions::time(true))?);
    eprintln!("{}", report::text(&rows));
    eprintln!("{}", report::markdown(&rows, &facts, "x"));
    let _ = report::keep;
    Ok(())
}
