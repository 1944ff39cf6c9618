//! node-drainer's `config.toml`.

use decide::drain::{EvictMode, Namespaces};
use toml::{Table, Value};

use super::{Reading, inner, joined};

pub(super) fn read(reading: &mut Reading, table: &mut Table) {
    reading.put(&["profile"], "drain");
    for key in [
        "evictionTimeoutInSeconds",
        "deleteAfterTimeoutMinutes",
        "notReadyTimeoutMinutes",
        "drainGPUPods",
    ] {
        reading.take(table, ("", key), &["drain", key]);
    }
    reading.take_or(
        table,
        ("", "systemNamespaces"),
        &["drain", "systemNamespaces"],
        (
            "".into(),
            "absent, no namespace is left alone there; here the usual ones are unless said so",
        ),
    );
    system(reading);
    let custom = inner(table, "customDrain");
    let by_plugin = custom.as_ref().is_some_and(is_enabled);
    reading.take_or(
        table,
        ("", "userNamespaces"),
        &["drain", "userNamespaces"],
        (
            Value::Array(Vec::new()),
            "absent, nothing is drained there; here every namespace is, by AllowCompletion, unless said so",
        ),
    );
    if let Some(custom) = custom {
        let why = if by_plugin {
            "drains by plugins are not part of this version: say with drain.userNamespaces how pods are \
             moved off"
        } else {
            "it is off, and there is none here"
        };
        reading.left("customDrain".to_owned(), &Value::Table(custom), why);
    }
    partial(reading, table);
}

fn is_enabled(table: &Table) -> bool {
    table.get("enabled").and_then(Value::as_bool) == Some(true)
}

/// Our own namespace is left alone too, or a drain would take the controller with it.
fn system(reading: &mut Reading) {
    let told = reading
        .ours
        .get("drain")
        .and_then(|drain| drain.get("systemNamespaces"));
    let Some(told) = told.and_then(Value::as_str).map(str::to_owned) else {
        return;
    };
    // A pattern that can't be read is told of once the whole is checked.
    let all = [("*", EvictMode::Immediate)];
    if Namespaces::new(all, &told).map_or(true, |spaces| spaces.mode("warden").is_none()) {
        return;
    }
    let with = if told.is_empty() {
        "^warden$".to_owned()
    } else {
        format!("{told}|^warden$")
    };
    reading.put(&["drain", "systemNamespaces"], with.as_str());
    let why = format!("Warden's own namespace is left alone as the reference's own is: {with}");
    reading.changed("systemNamespaces", &Value::from(told), &why);
    reading.taken.retain(|key| key != "systemNamespaces");
}

fn partial(reading: &mut Reading, table: &mut Table) {
    let key = "partialDrainEnabled";
    match table.get(key).and_then(Value::as_bool) {
        Some(true) => reading.leave(
            table,
            ("", key),
            "partial drains are not part of this version: the whole node is drained",
        ),
        Some(false) => {
            table.remove(key);
            reading.taken.push(joined("", key));
        }
        None => {}
    }
}
