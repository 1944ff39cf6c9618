//! What on the node, or in the controller, keeps Warden from acting.

use health_event::checks;

use super::next::Line;
use super::{Facts, faults};
use crate::output::counted;
use crate::words::{self, Clock};

/// Begins what the API server said against the write that is under way.
const REFUSED: &str = "write_refused ";

/// What the API server says against the write that is under way, in sentences.
pub(super) fn refused(facts: &Facts, clock: &Clock) -> Option<String> {
    let object = facts.node.object.as_ref()?;
    let Some(refused) = &object.write_refused else {
        // An older controller tells the words alone.
        let mut blocks = object.blocked_by.iter();
        let said = blocks.find_map(|block| block.strip_prefix(REFUSED))?;
        return Some(format!("{said}."));
    };
    let again = match refused.next_at {
        Some(at) if clock.is_ahead(at) => format!("the next try is {}", clock.until(at)),
        Some(_) | None => "the next try is now".to_owned(),
    };
    let times = counted(refused.times.into(), "time");
    Some(format!(
        "{} [{}]. {times} in a row since {}, the last {} ago; {again}.",
        refused.message,
        refused.code,
        clock.local(refused.since),
        clock.age(refused.last_at)
    ))
}

/// What the node object itself says to us, and the controller's mode.
pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    let object = facts.node.object.iter();
    let blocks = object.flat_map(|object| &object.blocked_by);
    // Where all is well there is nothing that it keeps from being done.
    let matters = |block: &&String| !facts.is_well() || !block.starts_with("other_quarantine");
    let blocks = blocks
        .filter(|block| !block.starts_with(REFUSED))
        .filter(matters);
    let mut lines: Vec<Line> = blocks.map(|block| Line::Blocks(text(block))).collect();
    if !facts.is_well() {
        lines.extend(mode(facts));
    }
    lines.extend(doubted(facts));
    lines.extend(unready(facts));
    lines
}

fn text(block: &str) -> String {
    match block.split_once(' ').unwrap_or((block, "")) {
        ("paused", _) => format!(
            "Paused by annotation {}pause: nothing new is started here; release still happens.",
            health_event::keys::PREFIX
        ),
        ("opted_out", _) => {
            "Opted out by label k8saas.nvidia.com/ManagedByNVSentinel=false: rules do not match \
             here; an open incident still ends."
                .to_owned()
        }
        ("control_plane", _) => {
            "A control-plane node: only observed, unless quarantine.allow_protected is on."
                .to_owned()
        }
        ("protected", _) => "Named in quarantine.protected_nodes: only observed, unless \
                             quarantine.allow_protected is on."
            .to_owned(),
        ("given_back", _) => "The store was lost after a person had given this node back: nothing is \
                              opened here before its agent has told what is wrong (at most \
                              quarantine.settle_timeout), and what it tells then is held like before."
            .to_owned(),
        ("other_quarantine", what) => format!(
            "Another fault-quarantine runs in this cluster ({what}): Warden neither takes nodes out nor \
             gives them back while it does, since both would write the same marks."
        ),
        ("external_owner", mark) => format!(
            "Another system repairs this node ({mark}): Warden does not give it back before that \
             mark is gone."
        ),
        _ => format!("Blocked: {block}."),
    }
}

/// Faults of another machine act on nothing, which nobody expects of a fatal one.
fn doubted(facts: &Facts) -> Option<Line> {
    let mut faults = facts.node.faults.iter();
    let is_told = faults.any(|fault| words::is_doubt(fault, checks::AGENT_MACHINE));
    is_told.then(|| {
        Line::Person(
            "What the node's agent tells has no effect on the node as long as it runs on another machine \
             than the node object names."
                .to_owned(),
        )
    })
}

fn mode(facts: &Facts) -> Option<Line> {
    let profile = &facts.status.as_ref()?.profile;
    let open = if facts.open().is_some() {
        " The open incident stays as it is."
    } else {
        ""
    };
    if faults::is_off(facts) {
        let key = if profile == "silent" {
            "profile silent"
        } else {
            "quarantine.enabled"
        };
        return Some(Line::Blocks(format!(
            "Quarantine is off ({key}): faults are stored and shown, and rule sets are not \
             asked.{open}"
        )));
    }
    faults::is_dry_run(facts).then(|| {
        Line::Blocks(format!(
            "Dry run (profile {profile}): Warden decides and shows, and does not touch the node."
        ))
    })
}

/// A controller that still starts, or lost its store or the API server, knows and does less.
fn unready(facts: &Facts) -> Option<Line> {
    let status = facts.status.as_ref().filter(|status| !status.ready)?;
    let parts = status
        .parts
        .iter()
        .filter(|part| !part.ends_with(": ready"));
    let parts: Vec<&str> = parts.map(String::as_str).collect();
    Some(Line::Blocks(format!(
        "The controller is not ready ({}): what is told here may be old, and nothing may be done \
         until it is.",
        parts.join(", ")
    )))
}
