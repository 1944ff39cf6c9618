//! janitor's configuration, as JSON.

use toml::{Table, Value};

use super::{Reading, inner, joined};

/// Of the controller that reboots, else of all.
const KEYS: [&str; 6] = [
    "manualMode",
    "timeout",
    "cspProviderHost",
    "cspProviderCAPath",
    "cspProviderInsecure",
    "cspProviderTokenPath",
];
const REBOOT: &str = "rebootNodeController";

pub(super) fn read(reading: &mut Reading, table: &mut Table) {
    reading.put(&["profile"], "remediate");
    let mut global = inner(table, "global").unwrap_or_default();
    let mut reboot = inner(table, REBOOT).unwrap_or_default();
    for key in KEYS {
        if reading.take(&mut reboot, (REBOOT, key), &["janitor", key]) {
            let why = "rebootNodeController's counts for reboots";
            reading.leave(&mut global, ("global", key), why);
        } else {
            reading.take(&mut global, ("global", key), &["janitor", key]);
        }
    }
    let timeout = reading.ours.get("janitor").and_then(|j| j.get("timeout"));
    if timeout.is_none() {
        reading.put(&["janitor", "timeout"], "30m");
        let why = "absent, it is 30m there, and 25m here";
        reading.changed(joined("global", "timeout"), &Value::from("30m"), why);
    }
    reading.take_or(
        &mut reboot,
        (REBOOT, "enabled"),
        &["janitor", "enabled"],
        (
            false.into(),
            "absent, reboots are off there; here they are on in profile remediate unless said so",
        ),
    );
    exclusions(reading, &mut global, &mut reboot);
    let why = "terminations are not part of this version";
    reading.leave(table, ("", "terminateNodeController"), why);
    let why = "GPU resets are not part of this version";
    reading.leave(table, ("", "gpuResetController"), why);
    reading.unknown("global", &global);
    reading.unknown(REBOOT, &reboot);
}

fn exclusions(reading: &mut Reading, global: &mut Table, reboot: &mut Table) {
    let to = ["janitor", "exclusions"];
    let own = reading.take(reboot, (REBOOT, "exclusions"), &to);
    let Some(mut nodes) = inner(global, "nodes") else {
        return;
    };
    if own {
        let why = "rebootNodeController's counts for reboots";
        reading.leave(&mut nodes, ("global.nodes", "exclusions"), why);
    } else {
        reading.take(&mut nodes, ("global.nodes", "exclusions"), &to);
    }
    reading.unknown("global.nodes", &nodes);
}
