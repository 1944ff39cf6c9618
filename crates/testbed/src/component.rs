//! The five programs of a control plane and the flags they run with.
//!
//! The flags are those of a small production control plane, less leader election (one copy of
//! each) and plus room for a fleet's writes: the clients' own limits are far above what a test
//! sends, so that the API server is the only brake.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::certificates::files;
use crate::ports::Ports;

/// A program of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The store behind the API server.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager: node lifecycle, deployments, garbage collection, namespaces.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// Plays the nodes' kubelets: node status, leases, pods that run and end.
    Kwok,
}

impl Component {
    /// In the order in which they start.
    pub const ALL: [Self; 5] = [
        Self::Etcd,
        Self::ApiServer,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kwok,
    ];

    /// The file name of its program, also the name of its log.
    pub fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kwok => "kwok",
        }
    }

    /// The user under which it speaks to the API server, with its groups; none for the two that
    /// do not.
    pub(crate) fn user(self) -> Option<(&'static str, &'static [&'static str])> {
        match self {
            Self::Etcd | Self::ApiServer => None,
            Self::ControllerManager => Some(("system:kube-controller-manager", &[])),
            Self::Scheduler => Some(("system:kube-scheduler", &[])),
            Self::Kwok => Some(("kwok", &["system:masters"])),
        }
    }

    /// Base URL and path where it answers once it works.
    pub(crate) fn health(self, ports: &Ports) -> (String, &'static str) {
        let (scheme, port, path) = match self {
            Self::Etcd => ("http", ports.etcd_client(), "/health"),
            Self::ApiServer => ("https", ports.api_server(), "/readyz"),
            Self::ControllerManager => ("https", ports.controller_manager(), "/healthz"),
            Self::Scheduler => ("https", ports.scheduler(), "/healthz"),
            Self::Kwok => ("http", ports.kwok(), "/healthz"),
        };
        (format!("{scheme}://127.0.0.1:{port}"), path)
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}

/// What the flags depend on.
pub(crate) struct Settings<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) ports: &'a Ports,
    pub(crate) fsync: bool,
    pub(crate) audit_log: bool,
    pub(crate) node_grace: Duration,
}

impl Settings<'_> {
    /// The command line of `component`, without the program.
    pub(crate) fn flags(&self, component: Component) -> Vec<String> {
        match component {
            Component::Etcd => self.etcd(),
            Component::ApiServer => self.api_server(),
            Component::ControllerManager => self.controller_manager(),
            Component::Scheduler => self.scheduler(),
            Component::Kwok => self.kwok(),
        }
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn pki(&self, name: &str) -> String {
        self.folder.join("pki").join(name).display().to_string()
    }

    fn kubeconfig(&self, component: Component) -> String {
        self.path(&kubeconfig_name(component.program()))
    }

    fn etcd(&self) -> Vec<String> {
        let client = format!("http://127.0.0.1:{}", self.ports.etcd_client());
        let peer = format!("http://127.0.0.1:{}", self.ports.etcd_peer());
        let mut flags = vec![
            "--name=e".to_owned(),
            format!("--data-dir={}", self.path("etcd")),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=e={peer}"),
            // 6 GiB: a fleet of 5,000 nodes churning for an hour stays below.
            "--quota-backend-bytes=6442450944".to_owned(),
            "--auto-compaction-mode=periodic".to_owned(),
            "--auto-compaction-retention=5m".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        if !self.fsync {
            flags.push("--unsafe-no-fsync".to_owned());
        }
        flags
    }

    fn api_server(&self) -> Vec<String> {
        let mut flags = vec![
            format!(
                "--etcd-servers=http://127.0.0.1:{}",
                self.ports.etcd_client()
            ),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.ports.api_server()),
            // A loopback address is refused as an endpoint.
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            format!("--cert-dir={}", self.path("pki")),
            format!("--tls-cert-file={}", self.pki(files::SERVER_CERTIFICATE)),
            format!("--tls-private-key-file={}", self.pki(files::SERVER_KEY)),
            format!("--client-ca-file={}", self.pki(files::CA)),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--anonymous-auth=false".to_owned(),
            format!("--service-account-issuer={AUDIENCE}"),
            format!("--api-audiences={AUDIENCE}"),
            format!(
                "--service-account-key-file={}",
                self.pki(files::TOKEN_PUBLIC_KEY)
            ),
            format!(
                "--service-account-signing-key-file={}",
                self.pki(files::TOKEN_KEY)
            ),
            format!(
                "--requestheader-client-ca-file={}",
                self.pki(files::FRONT_PROXY_CA)
            ),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--profiling=false".to_owned(),
            "--max-requests-inflight=1600".to_owned(),
            "--max-mutating-requests-inflight=800".to_owned(),
            "--event-ttl=1h".to_owned(),
            // Without it a stopping server waits 60 s for its watchers to leave.
            "--shutdown-watch-termination-grace-period=1s".to_owned(),
            "--v=1".to_owned(),
        ];
        if self.audit_log {
            flags.extend([
                format!("--audit-policy-file={}", self.path(AUDIT_POLICY)),
                format!("--audit-log-path={}", self.path(AUDIT_LOG)),
                "--audit-log-mode=blocking".to_owned(),
                // MiB; a rotated log would lose its beginning to the reader.
                "--audit-log-maxsize=1000000".to_owned(),
            ]);
        }
        flags
    }

    fn controller_manager(&self) -> Vec<String> {
        let mut flags = self.client_of_api_server(Component::ControllerManager);
        flags.extend([
            format!("--secure-port={}", self.ports.controller_manager()),
            format!(
                "--service-account-private-key-file={}",
                self.pki(files::TOKEN_KEY)
            ),
            // Without it no namespace gets its kube-root-ca.crt.
            format!("--root-ca-file={}", self.pki(files::CA)),
            "--use-service-account-credentials=true".to_owned(),
            "--node-monitor-period=5s".to_owned(),
            format!(
                "--node-monitor-grace-period={}s",
                self.node_grace.as_secs().max(1)
            ),
            "--concurrent-deployment-syncs=10".to_owned(),
            "--concurrent-replicaset-syncs=10".to_owned(),
            "--concurrent-gc-syncs=20".to_owned(),
        ]);
        flags
    }

    fn scheduler(&self) -> Vec<String> {
        let mut flags = self.client_of_api_server(Component::Scheduler);
        flags.push(format!("--secure-port={}", self.ports.scheduler()));
        flags
    }

    fn client_of_api_server(&self, component: Component) -> Vec<String> {
        let kubeconfig = self.kubeconfig(component);
        vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--tls-cert-file={}", self.pki(files::SERVER_CERTIFICATE)),
            format!("--tls-private-key-file={}", self.pki(files::SERVER_KEY)),
            "--leader-elect=false".to_owned(),
            "--kube-api-qps=500".to_owned(),
            "--kube-api-burst=1000".to_owned(),
            "--profiling=false".to_owned(),
            "--v=1".to_owned(),
        ]
    }

    fn kwok(&self) -> Vec<String> {
        // kwok renews a lease after about a quarter of this, so it is well inside the grace period
        // and a large fleet with its longer grace period writes few leases.
        let lease = (self.node_grace.as_secs() * 4 / 5).max(1);
        vec![
            format!("--kubeconfig={}", self.kubeconfig(Component::Kwok)),
            format!("--config={}", self.path(STAGES)),
            // Of labels, not annotations: then a node that loses its label leaves kwok's watch, and
            // its lease is renewed no more.
            format!("--manage-nodes-with-label-selector={PLAYED_BY}=kwok"),
            "--cidr=10.128.0.0/9".to_owned(),
            "--node-ip=127.0.0.1".to_owned(),
            format!("--server-address=127.0.0.1:{}", self.ports.kwok()),
            format!("--node-lease-duration-seconds={lease}"),
            "-v=WARN".to_owned(),
        ]
    }
}

/// Issuer of the API server's service-account tokens and their audience when none is asked for.
pub const AUDIENCE: &str = "https://kubernetes.default.svc";

/// The label of the nodes that kwok plays.
pub(crate) const PLAYED_BY: &str = "testbed.warden.dev/played-by";

/// File of the kwok stages in the testbed's folder.
pub(crate) const STAGES: &str = "stages.yaml";
/// File of the audit policy in the testbed's folder.
pub(crate) const AUDIT_POLICY: &str = "audit-policy.yaml";
/// File of the audit log in the testbed's folder.
pub(crate) const AUDIT_LOG: &str = "log/audit.log";

/// The file name of a kubeconfig in the testbed's folder.
pub(crate) fn kubeconfig_name(user: &str) -> String {
    format!("{user}.kubeconfig")
}
