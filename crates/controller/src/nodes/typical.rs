//! The node by which costs are told: a GPU node of a cloud, as its API server shows it.

use serde_json::{Map, Value, json};

/// What it has, for people.
pub(super) const WORDS: &str = "63 labels, 7 annotations, 22 conditions, 50 images";

/// Stands for the number, in everything that is a node's own.
const NUMBER: &str = "@NUMBER@";

/// The line of the watch that tells of node `number` (below 10⁸): its names and ids have it.
pub(super) fn line(template: &str, number: usize) -> String {
    template.replace(NUMBER, &format!("{number:08}"))
}

/// What [`line`] fills in.
pub(super) fn template() -> String {
    json!({ "type": "ADDED", "object": {
        "kind": "Node", "apiVersion": "v1",
        "metadata": metadata(), "spec": spec(), "status": status(),
    } })
    .to_string()
}

fn metadata() -> Value {
    let mut labels: Map<String, Value> = (0..60)
        .map(|i| {
            (
                format!("feature.node.kubernetes.io/part-{i}"),
                json!(format!("value-{i}")),
            )
        })
        .collect();
    let features: Vec<&str> = labels.keys().map(String::as_str).collect();
    let features = features.join(",");
    labels.insert("nvidia.com/gpu.present".into(), "true".into());
    labels.insert(
        "kubernetes.io/hostname".into(),
        format!("gpu-{NUMBER}").into(),
    );
    labels.insert(
        "node.example.com/instance".into(),
        format!("i-{NUMBER}").into(),
    );
    json!({
        "name": format!("gpu-{NUMBER}"), "uid": format!("{NUMBER}-aaaa-bbbb-cccc-dddddddddddd"),
        "resourceVersion": "4711", "creationTimestamp": "2026-01-02T03:04:05Z",
        "labels": labels,
        "annotations": {
            "csi.volume.kubernetes.io/nodeid": format!("{{\"ebs.csi.example.com\":\"i-{NUMBER}\"}}"),
            "node.alpha.kubernetes.io/ttl": "0",
            "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            "alpha.kubernetes.io/provided-node-ip": "10.0.0.1",
            "nfd.node.kubernetes.io/feature-labels": features,
            "nfd.node.kubernetes.io/worker.version": "v0.17.0",
            "nvidia.com/gpu-driver-upgrade-enabled": "true",
        },
    })
}

fn spec() -> Value {
    json!({
        "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"],
        "providerID": format!("aws:///eu-west-1a/i-{NUMBER}"),
        "taints": [{ "key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule" }],
    })
}

fn status() -> Value {
    let condition = |kind: &str| {
        json!({ "type": kind, "status": "False", "reason": format!("{kind}IsHealthy"),
                "message": "No Health Failures", "lastHeartbeatTime": "2026-01-02T03:04:05Z",
                "lastTransitionTime": "2026-01-02T03:04:05Z" })
    };
    let conditions: Vec<Value> = (0..20)
        .map(|i| condition(&format!("Check{i}")))
        .chain([condition("SysLogsXIDError"), condition("Ready")])
        .collect();
    let image =
        |i| json!({ "names": [format!("registry.example.com/image-{i:064}")], "sizeBytes": i });
    let images: Vec<Value> = (0..50).map(image).collect();
    let resources = json!({
        "cpu": "192", "ephemeral-storage": "1844284980Ki", "hugepages-1Gi": "0",
        "hugepages-2Mi": "0", "memory": "2113408552Ki", "nvidia.com/gpu": "8", "pods": "250",
    });
    json!({
        "addresses": [
            { "type": "InternalIP", "address": "10.0.0.1" },
            { "type": "Hostname", "address": format!("gpu-{NUMBER}") },
        ],
        "allocatable": resources, "capacity": resources, "conditions": conditions,
        "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } }, "images": images,
        "nodeInfo": {
            "architecture": "amd64", "bootID": format!("{NUMBER}-1111-2222-3333-444444444444"),
            "containerRuntimeVersion": "containerd://2.1.4", "kernelVersion": "6.8.0-1031-aws",
            "kubeProxyVersion": "", "kubeletVersion": "v1.36.0",
            "machineID": format!("{NUMBER}111122223333444444444444"), "operatingSystem": "linux",
            "osImage": "Ubuntu 24.04.3 LTS",
            "systemUUID": format!("{NUMBER}-5555-6666-7777-888888888888"),
        },
    })
}
