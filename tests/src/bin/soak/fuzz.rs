//! Every parser of outside text against random input, by `scripts/fuzz.sh`.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::Command;

use crate::say;

/// So many seconds for each target; answers its lines.
///
/// # Errors
/// The lines, if there is a finding; or what keeps the script from its work.
pub(crate) async fn run(seconds: u64) -> anyhow::Result<String> {
    say(&format!("fuzzing, {seconds} s a target"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/fuzz.sh");
    let mut child = Command::new(&script)
        .arg(seconds.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {}", script.display()))?;
    let output = child.stdout.take().context("it has no output")?;
    let lines = lines_of(output).await?;
    let status = child.wait().await?;
    let text = section(seconds, &lines);
    if !status.success() {
        bail!("{} ended with {status}\n{text}", script.display());
    }
    Ok(text)
}

/// Shows each line as it comes.
async fn lines_of(output: impl AsyncRead + Unpin) -> anyhow::Result<Vec<String>> {
    let mut said = BufReader::new(output).lines();
    let mut lines = Vec::new();
    while let Some(line) = said.next_line().await? {
        say(&line);
        lines.push(line);
    }
    Ok(lines)
}

fn section(seconds: u64, lines: &[String]) -> String {
    let targets = lines.iter().filter(|line| line.starts_with("fuzz: "));
    let findings = lines.iter().filter(|line| line.contains(" FINDING "));
    format!(
        "## Fuzzing\n\n{} targets, {seconds} s each: {} findings.\n\n```\n{}\n```\n",
        targets.count(),
        findings.count(),
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::section;

    #[test]
    fn the_section_says_seconds_runs_and_findings() {
        let lines = [
            "fuzz: kmsg                 1234 runs,    5 new inputs, no finding",
            "fuzz: cel                FINDING after 17 runs: panicked at 'x'",
            "  whole output: /somewhere/cel.log",
        ]
        .map(str::to_owned);
        let text = section(600, &lines);
        assert!(
            text.contains("2 targets, 600 s each: 1 findings."),
            "{text}"
        );
        for line in lines {
            assert!(text.contains(&line), "{text}");
        }
    }
}
