//! fault-remediation's `config.toml`.

use toml::{Table, Value};

use super::{Reading, inner, joined};
use crate::checked::checked;

/// Where actions stand in Warden's file.
const ACTIONS: &str = "remediation.remediationActions.";

pub(super) fn read(reading: &mut Reading, table: &mut Table) {
    reading.put(&["profile"], "remediate");
    let why = "the objects that Warden orders have one form, which stands in the program: templates of your \
               own are not part of this version";
    reading.leave(table, ("", "template"), why);
    reading.leave(
        table,
        ("", "templates"),
        "the reference does not use it either",
    );
    let why = "the reference reads and does not use it; Warden tries again with the API server's Retry-After";
    reading.leave(table, ("", "updateRetry"), why);
    let actions = inner(table, "remediationActions").unwrap_or_default();
    for (name, action) in &actions {
        let path = ["remediation", "remediationActions", name.as_str()];
        reading.put(&path, action.clone());
        reading.taken.push(joined("remediationActions", name));
    }
    if actions.is_empty() {
        let none = Value::Table(Table::new());
        reading.put(&["remediation", "remediationActions"], none);
        let why =
            "without an action nothing is repaired there; here three are reboots unless said so";
        reading.changed("remediationActions", &Value::from(""), why);
    }
}

/// Actions that this version does not have call a person: they are left out.
pub(super) fn without_what_is_refused(reading: &mut Reading) {
    let Ok(found) = checked(&reading.toml()) else {
        return;
    };
    for problem in found.problems {
        let Some(rest) = problem.key.strip_prefix(ACTIONS) else {
            continue;
        };
        let (name, key) = rest.split_once('.').unwrap_or((rest, ""));
        let path = ["remediation", "remediationActions"];
        let actions = path.iter().try_fold(&mut reading.ours, |table, part| {
            table.get_mut(*part).and_then(Value::as_table_mut)
        });
        let Some(action) = actions.and_then(|actions| actions.remove(name)) else {
            continue;
        };
        let full = joined("remediationActions", name);
        reading.taken.retain(|taken| *taken != full);
        let why = format!(
            "a person is called for this action: {} is {}",
            if key.is_empty() { "it" } else { key },
            problem.allowed
        );
        reading.left(full, &action, &why);
    }
}
