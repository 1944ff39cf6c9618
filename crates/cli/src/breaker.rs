//! `warden breaker`: the bound on nodes out of service, per pool; and its reset.

use std::io::{self, Write};

use wire::api::{BreakerPool, BreakerReset, Done};

use crate::api::{ApiError, Connection};
use crate::output::{BOLD, Cell, Exit, Format, GREEN, Options, PLAIN, RED, Table, YELLOW};
use crate::output::{counted, harmless, json_line, unless_gone};
use crate::words::{self, Clock};

/// Names of withheld nodes that are printed a pool.
const SHOWN: usize = 20;

const AFTER_HELP: &str = "\
Exit codes: 0 shown or reset, also while a pool is tripped (for scripts: warden status --check); 2 \
wrong usage, or no answer.";

/// What about it.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// What to do; without it: show.
    #[command(subcommand)]
    act: Option<Act>,
}

/// See [`Args`].
#[derive(Debug, clap::Subcommand)]
enum Act {
    /// Show each pool: nodes out, nodes withheld, and whether and why the breaker is tripped.
    Show,
    /// Close it again. Withheld nodes whose faults are still open are then taken out, one after
    /// the other; the other withheld nodes stay in service.
    Reset(Reset),
}

/// Which, and what becomes of those that wait.
#[derive(Debug, clap::Args)]
struct Reset {
    /// Only this pool, as `warden breaker` names it; without it all.
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Leave all withheld nodes in service; their faults do not take them out until they have
    /// ended once.
    #[arg(long)]
    drop_withheld: bool,
}

/// Shows or resets.
///
/// # Errors
/// [`ApiError`].
pub fn run(args: &Args, connection: &Connection, options: &Options) -> Result<Exit, ApiError> {
    let api = connection.open()?;
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
        Format::Json => json_line(&mut out, &pools.json),
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
    let mut table = Table::new(&["POOL", "NODES", "OUT", "AT MOST", "WITHHELD", "BREAKER"]);
    for pool in pools {
        let (word, style) = match (pool.off, pool.tripped) {
            (true, _) => ("off", YELLOW),
            (false, true) => ("TRIPPED", RED),
            (false, false) => ("closed", GREEN),
        };
        let marked = |count: usize| if count == 0 { PLAIN } else { YELLOW };
        let cells = vec![
            Cell::new(&pool.pool, BOLD),
            Cell::new(pool.nodes.to_string(), PLAIN),
            Cell::new(pool.out.to_string(), marked(pool.out)),
            Cell::new(bounds(pool), PLAIN),
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

/// How many may be out, and newly out in the window; a bound as large as the pool bounds nothing.
fn bounds(pool: &BreakerPool) -> String {
    if pool.off {
        return "all".to_owned();
    }
    let bound = |bound: usize| match bound {
        bound if bound >= pool.nodes => "all".to_owned(),
        bound => bound.to_string(),
    };
    let window = pool.window_seconds.and_then(|s| i64::try_from(s).ok());
    match (
        pool.level_bound.map(bound),
        pool.rate_bound.map(bound),
        window,
    ) {
        (Some(level), Some(rate), Some(window)) => {
            let window = words::span(jiff::SignedDuration::from_secs(window));
            format!("{level}, {rate} in {window}")
        }
        // An older controller does not tell.
        _ => "?".to_owned(),
    }
}

/// What `decide` and the controller put in a rule set's place: a person's `warden hold`, and a
/// sender that forced it.
const HELD: &str = "hold";
const FORCED: &str = "forced";

/// `by the rate bound since 03:12:04: 4 nodes counted, 3 of them by rule set R on check C`; what
/// the controller does not tell is left out.
fn why(trip: &serde_json::Value, clock: &Clock) -> String {
    let text = |key: &str| trip.get(key).and_then(|v| v.as_str()).unwrap_or_default();
    let number = |key: &str| {
        trip.get(key)
            .and_then(serde_json::Value::as_u64)
            .unwrap_or_default()
    };
    let bound = match text("bound") {
        "" => "tripped".to_owned(),
        bound => format!("by the {bound} bound"),
    };
    let since = text("since").parse();
    let since = since.map_or_else(
        |_| String::new(),
        |at| format!(" since {}", clock.since(at)),
    );
    let counted = counted(number("counted"), "node");
    let share = match number("share") {
        0 => String::new(),
        share => largest(text("rule"), text("check"))
            .map(|by| format!(", {share} of them {by}"))
            .unwrap_or_default(),
    };
    format!("{bound}{since}: {counted} counted{share}")
}

/// What the largest share was taken out for.
fn largest(rule: &str, check: &str) -> Option<String> {
    let on = |words: String| match check {
        "" => words,
        check => format!("{words} on check {check}"),
    };
    match (rule, check) {
        ("", "") => None,
        (HELD, "") => Some("by persons (warden hold)".to_owned()),
        (FORCED, _) => Some(on("forced by the sender".to_owned())),
        (words::ADOPTED, _) => Some(on("out already when the store was lost".to_owned())),
        ("", check) => Some(format!("on check {check}")),
        (rule, _) => Some(on(format!("by rule set {rule}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whatever_a_trip_lacks_leaves_no_hole() {
        let clock = Clock::new("2026-09-12T01:20:30Z".parse().unwrap());
        let whole = json!({"bound": "rate", "rule": "R", "check": "C", "share": 3, "counted": 4});
        let with = |changes: serde_json::Value| {
            let (mut trip, changes) = (whole.clone(), changes);
            for (key, value) in changes.as_object().unwrap() {
                trip[key] = value.clone();
            }
            why(&trip, &clock)
        };
        let table = [
            (
                json!({}),
                "by the rate bound: 4 nodes counted, 3 of them by rule set R on check C",
            ),
            (
                json!({"rule": "hold", "check": ""}),
                "by the rate bound: 4 nodes counted, 3 of them by persons (warden hold)",
            ),
            (
                json!({"rule": "forced"}),
                "by the rate bound: 4 nodes counted, 3 of them forced by the sender on check C",
            ),
            (
                json!({"rule": "<adopted>", "check": ""}),
                "by the rate bound: 4 nodes counted, 3 of them out already when the store was lost",
            ),
            (
                json!({"check": ""}),
                "by the rate bound: 4 nodes counted, 3 of them by rule set R",
            ),
            (
                json!({"rule": ""}),
                "by the rate bound: 4 nodes counted, 3 of them on check C",
            ),
            (
                json!({"rule": "", "check": ""}),
                "by the rate bound: 4 nodes counted",
            ),
            (json!({"share": 0}), "by the rate bound: 4 nodes counted"),
            (
                json!({"bound": "", "counted": 1, "share": 0}),
                "tripped: 1 node counted",
            ),
        ];
        for (changes, want) in table {
            assert_eq!(with(changes.clone()), want, "{changes}");
        }
        assert_eq!(why(&json!({}), &clock), "tripped: 0 nodes counted");
        assert_eq!(why(&json!("odd"), &clock), "tripped: 0 nodes counted");
        let since = with(json!({"since": "2026-09-12T01:20:00Z"}));
        assert!(
            since.contains("bound since ") && since.contains("(30 s ago): 4"),
            "{since}"
        );
    }
}
