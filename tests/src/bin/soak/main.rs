//! `make soak`: what takes too long for `make test`. Crash runs, a controller that is away for a
//! minute, chaos, a large fleet, long fuzzing; each with a summary that is kept.

mod chaos;
mod crashes;
mod fleet;
mod fuzz;
mod minute;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

const USAGE: &str = "\
usage: soak [--only PART[,PART]...] [--runs N] [--minutes N] [--nodes N] [--seed N]
            [--fuzz-seconds N] [--results DIR]
  --only          parts to run: crashes, minute, chaos, fleet, fuzz (all by default)
  --runs          crash runs of the whole loop (60; 1000 before work is called done); a quarter as many of
                  the short one
  --minutes       minutes of chaos (10)
  --nodes         nodes of the fleet (1000)
  --seed          of crashes and chaos; printed at the start
  --fuzz-seconds  seconds for each fuzz target (600)
  --results       folder for the summary (bench/results)";

fn main() -> ExitCode {
    let asked = match Asked::parse(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(error) => {
            say(&format!("soak: {error}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(soak(&asked)),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("soak: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// What a soak is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Crashes,
    Minute,
    Chaos,
    Fleet,
    Fuzz,
}

impl Part {
    const ALL: [Self; 5] = [
        Self::Crashes,
        Self::Minute,
        Self::Chaos,
        Self::Fleet,
        Self::Fuzz,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Crashes => "crashes",
            Self::Minute => "minute",
            Self::Chaos => "chaos",
            Self::Fleet => "fleet",
            Self::Fuzz => "fuzz",
        }
    }
}

/// The command line.
struct Asked {
    parts: Vec<Part>,
    runs: u64,
    minutes: u64,
    nodes: usize,
    seed: u64,
    fuzz_seconds: u64,
    results: PathBuf,
}

impl Asked {
    fn parse(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut asked = Self {
            parts: Part::ALL.to_vec(),
            runs: 60,
            minutes: 10,
            nodes: 1_000,
            seed: u64::from(std::process::id()) << 16,
            fuzz_seconds: 600,
            results: repository.join("bench/results"),
        };
        while let Some(flag) = arguments.next() {
            let value = arguments
                .next()
                .with_context(|| format!("{flag} has no value"))?;
            let number = || {
                value
                    .parse::<u64>()
                    .with_context(|| format!("{flag} {value}: want a number"))
            };
            match flag.as_str() {
                "--only" => asked.parts = parts(&value)?,
                "--runs" => asked.runs = number()?,
                "--minutes" => asked.minutes = number()?,
                "--nodes" => asked.nodes = usize::try_from(number()?)?,
                "--seed" => asked.seed = number()?,
                "--fuzz-seconds" => asked.fuzz_seconds = number()?,
                "--results" => asked.results = PathBuf::from(&value),
                _ => bail!("unknown option {flag}"),
            }
        }
        Ok(asked)
    }
}

fn parts(names: &str) -> anyhow::Result<Vec<Part>> {
    let part = |name: &str| {
        let found = Part::ALL.into_iter().find(|part| part.name() == name);
        found.with_context(|| format!("there is no part {name}"))
    };
    names.split(',').map(part).collect()
}

async fn soak(asked: &Asked) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for part in &asked.parts {
        let outcome = match part {
            Part::Crashes => crashes::run(asked.seed, asked.runs).await,
            Part::Minute => minute::run().await,
            Part::Fleet => fleet::run(asked.nodes).await,
            Part::Fuzz => fuzz::run(asked.fuzz_seconds).await,
            Part::Chaos => chaos::run(asked.seed, Duration::from_mins(asked.minutes)).await,
        };
        let text = outcome.unwrap_or_else(|error| {
            failed.push(part.name());
            format!("## {} FAILED\n\n```\n{error:#}\n```\n", part.name())
        });
        say(&format!("\n{text}"));
        let path = keep(&asked.results, &text)?;
        say(&format!("appended to {}", path.display()));
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Appends to the day's results.
fn keep(folder: &Path, text: &str) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("creating the folder {}", folder.display()))?;
    let date = jiff::Zoned::now().date();
    let path = folder.join(format!("soak-{date}.md"));
    let mut entry = String::new();
    if !path.exists() {
        writeln!(entry, "# Soak of {date}")?;
    }
    write!(entry, "\n{}", text.trim_end())?;
    entry.push('\n');
    let mut file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    file.write_all(entry.as_bytes())
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

#[expect(clippy::print_stderr, reason = "the program's output for people")]
fn say(text: &str) {
    eprintln!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> anyhow::Result<Asked> {
        Asked::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn by_default_it_is_everything_with_sixty_crash_runs() {
        let asked = parse("").unwrap();
        assert_eq!(asked.parts, Part::ALL);
        assert_eq!((asked.runs, asked.fuzz_seconds), (60, 600));
    }

    #[test]
    fn options_say_how_long_and_which_parts_the_last_word_counts() {
        let asked = parse("--fuzz-seconds 600 --runs 1000 --only crashes,fuzz --fuzz-seconds 30");
        let asked = asked.unwrap();
        assert_eq!(asked.parts, [Part::Crashes, Part::Fuzz]);
        assert_eq!((asked.runs, asked.fuzz_seconds), (1_000, 30));
        for wrong in ["--runs", "--runs many", "--only all", "--hours 3"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_usage_names_every_part_and_what_is_the_default() {
        for part in Part::ALL {
            assert!(USAGE.contains(part.name()), "{}", part.name());
        }
        assert!(
            USAGE.contains("crash runs of the whole loop (60; 1000"),
            "{USAGE}"
        );
    }

    #[test]
    fn sections_of_one_day_are_kept_one_after_the_other() {
        let folder = std::env::temp_dir().join(format!("soak-{}", std::process::id()));
        keep(&folder, "## One\n\nfirst\n").unwrap();
        let path = keep(&folder, "## Two\n\nsecond\n").unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        let (head, rest) = text.split_once('\n').unwrap();
        assert!(head.starts_with("# Soak of "), "{head}");
        assert_eq!(rest, "\n## One\n\nfirst\n\n## Two\n\nsecond\n");
    }
}
