//! platform-connectors' files: `config.json`, and those of its transformers.

use toml::{Table, Value};

use super::{Reading, joined};

pub(super) fn read(reading: &mut Reading, table: &mut Table) {
    for key in [
        "MaxNodeConditionMessageLength",
        "CompactedHealthEventMsgLen",
    ] {
        reading.take(table, ("", key), &["connector", key]);
    }
    let key = "enableK8sPlatformConnector";
    if let Some(value) = table.remove(key) {
        let on = value.as_str() == Some("true") || value.as_bool() == Some(true);
        reading.put(&["connector", "enabled"], on);
        reading.changed(key, &value, "connector.enabled: a truth value here");
    }
    let rate = "writes are bounded by the API server's own flow control, not by the client";
    let store = "the controller has a store of its own ([store])";
    let sink = "agents send to the controller, which [ingest] takes in";
    for (key, why) in [
        ("K8sConnectorQps", rate),
        ("K8sConnectorBurst", rate),
        ("enableMongoDBStorePlatformConnector", store),
        ("enablePostgresDBStorePlatformConnector", store),
        ("StoreConnectorMaxRetries", store),
        ("enableGRPCSinkConnector", sink),
        ("GRPCSinkTarget", sink),
        ("GRPCSinkConnectorMaxRetries", sink),
        ("GRPCSinkTokenPath", sink),
    ] {
        reading.leave(table, ("", key), why);
    }
    match table.remove("pipeline") {
        Some(Value::Array(stages)) if !stages.is_empty() => {
            for (index, stage) in stages.iter().enumerate() {
                pipeline(reading, index, stage);
            }
        }
        Some(other) => reading.left(
            "pipeline".to_owned(),
            &other,
            "it is no list of stages; the reference's process ends then",
        ),
        None => {}
    }
}

fn pipeline(reading: &mut Reading, index: usize, stage: &Value) {
    let name = stage
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let enabled = stage.get("enabled").and_then(Value::as_bool) == Some(true);
    let key = format!("pipeline[{index}]");
    match (name, enabled) {
        ("MetadataAugmentor", true) => {
            reading.put(&["ingest", "metadata", "enabled"], true);
            let why = "[ingest.metadata]; its labels stand in metadata.toml. It comes first, wherever the \
                       pipeline has it";
            reading.changed(key, stage, why);
        }
        ("OverrideTransformer", true) => {
            let why = "[ingest.overrides]; its rules stand in overrides.toml: check that file too. Overrides \
                       come after the labels, wherever the pipeline has them";
            reading.changed(key, stage, why);
        }
        ("Deduplicator", true) => {
            let why = "[dedup]; repeats are always counted and not stored. Its times stand in the stage's own file";
            reading.changed(key, stage, why);
        }
        ("Deduplicator", false) => {
            let why = "repeats are always counted and not stored, and act as the first did";
            reading.changed(key, stage, why);
        }
        ("MetadataAugmentor" | "OverrideTransformer", false) => {
            reading.taken.push(format!("{key} ({name}, off)"));
        }
        _ => reading.left(key, stage, "it is no stage of the reference's"),
    }
}

pub(super) fn overrides(reading: &mut Reading, table: &mut Table) {
    let to = |key| ["ingest", "overrides", key];
    reading.take_or(
        table,
        ("", "enabled"),
        &to("enabled"),
        (false.into(), "absent, overrides are off there as here"),
    );
    reading.take(table, ("", "rules"), &to("rules"));
}

pub(super) fn metadata(reading: &mut Reading, table: &mut Table) {
    reading.put(&["ingest", "metadata", "enabled"], true);
    let why = "whether it is on stands in config.json (pipeline) there";
    reading.changed(
        joined("ingest.metadata", "enabled"),
        &Value::from(true),
        why,
    );
    let key = "allowedLabels";
    reading.take(table, ("", key), &["ingest", "metadata", key]);
    let why = "labels come from the watch over all nodes: there is no cache of their own";
    reading.leave(table, ("", "cacheSize"), why);
    reading.leave(table, ("", "cacheTTL"), why);
}

pub(super) fn dedup(reading: &mut Reading, table: &mut Table) {
    for key in ["suppressionWindow", "includeChecks", "cleanupInterval"] {
        reading.take(table, ("", key), &["dedup", key]);
    }
}
