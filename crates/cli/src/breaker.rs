//! `warden breaker`: the bound on nodes out of service, per pool; and its reset.

use std::io::{self, Write};

use wire::api::{BreakerPool, BreakerReset, Done};

use crate::api::{ApiError, Connection};
use crate::output::{BOLD, Cell, Exit, Format, GREEN, Options, PLAIN, RED, Table, YELLOW};
use crate::output::{harmless, unless_gone};
use crate::words::Clock;

/// Names of withheld nodes that are printed a pool.
const SHOWN: usize = 20;

/// What about it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// What to do; without it: show.
    #[command(subcommand)]
    act: Option<Act>,
}

/// See [`Args`].
#[derive(Debug, clap::Subcommand)]
enum Act {
    /// Show each pool: nodes out, nodes withheld, and whether and why the breaker is tripped.
    Show,
    /// Close it again: withheld nodes whose faults are still open are taken out by turn.
    Reset(Reset),
}

/// Which, and what becomes of those that wait.
#[derive(Debug, clap::Args)]
struct Reset {
    /// Only this pool; without it all.
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Leave the withheld nodes in service: their incidents become observed ones.
    #[arg(long)]
    drop_withheld: bool,
}

/// Shows or resets.
///
/// # Errors
/// [`ApiError`].
pub fn run(args: &Args, options: &Options) -> Result<Exit, ApiError> {
    let api = args.connection.open()?;
    if let Some(Act::Reset(reset)) = &args.act {
        let request = BreakerReset {
            pool: reset.pool.clone(),
            drop_withheld: reset.drop_withheld,
        };
        let done = api.post::<Done>("/api/v1/breaker/reset", &request)?;
        return crate::ask::said(&done, *options);
    }
    let pools = api.get::<Vec<BreakerPool>>("/api/v1/breaker")?;
    let mut out = options.stdout();
    let printed = match options.format {
        Format::Json => writeln!(out, "{}", pools.json),
        Format::Text => show(&mut out, &pools.value, &Clock::new(pools.at)),
    };
    unless_gone(printed.and_then(|()| out.flush()))?;
    Ok(Exit::Clean)
}

fn show(out: &mut impl Write, pools: &[BreakerPool], clock: &Clock) -> io::Result<()> {
    table(out, pools, clock)?;
    let tripped: Vec<&BreakerPool> = pools.iter().filter(|pool| pool.tripped).collect();
    for pool in pools.iter().filter(|pool| !pool.withheld.is_empty()) {
        let shown = pool.withheld.iter().take(SHOWN).map(String::as_str);
        let names = shown.collect::<Vec<_>>().join(" ");
        let more = match pool.withheld.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let name = harmless(&pool.pool);
        writeln!(
            out,
            "\n{BOLD}Withheld in {name}{BOLD:#}: {}{more}",
            harmless(&names)
        )?;
    }
    if !tripped.is_empty() {
        writeln!(
            out,
            "\nLook at the rule and check with the largest share first. Then:"
        )?;
    }
    for pool in tripped {
        let name = harmless(&pool.pool);
        writeln!(
            out,
            "  warden breaker reset --pool {name}                  takes them out by turn"
        )?;
        writeln!(
            out,
            "  warden breaker reset --pool {name} --drop-withheld  leaves them in service"
        )?;
    }
    Ok(())
}

/// One line a pool.
pub(crate) fn table(out: &mut impl Write, pools: &[BreakerPool], clock: &Clock) -> io::Result<()> {
    let mut table = Table::new(&["POOL", "NODES", "OUT", "WITHHELD", "BREAKER"]);
    for pool in pools {
        let (word, style) = if pool.tripped {
            ("TRIPPED", RED)
        } else {
            ("closed", GREEN)
        };
        let marked = |count: usize| if count == 0 { PLAIN } else { YELLOW };
        let cells = vec![
            Cell::new(&pool.pool, BOLD),
            Cell::new(pool.nodes.to_string(), PLAIN),
            Cell::new(pool.out.to_string(), marked(pool.out)),
            Cell::new(pool.withheld.len().to_string(), marked(pool.withheld.len())),
            Cell::new(word, style),
        ];
        table.row(
            cells,
            &pool
                .trip
                .as_ref()
                .map(|trip| why(trip, clock))
                .unwrap_or_default(),
        );
    }
    table.print(out)
}

/// `rate bound, since 03:12:04: 4 nodes counted, 3 of them by rule R on check C`
fn why(trip: &serde_json::Value, clock: &Clock) -> String {
    let text = |key: &str| trip.get(key).and_then(|v| v.as_str()).unwrap_or("?");
    let number = |key: &str| {
        trip.get(key)
            .and_then(serde_json::Value::as_u64)
            .unwrap_or_default()
    };
    let since = text("since")
        .parse()
        .map_or_else(|_| "?".to_owned(), |at| clock.since(at));
    format!(
        "by the {} bound since {since}: {} nodes counted, {} of them by rule set {} on check {}",
        text("bound"),
        number("counted"),
        number("share"),
        text("rule"),
        text("check"),
    )
}
