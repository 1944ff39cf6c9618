//! The order of the measurements, and what they share.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::burst::Bursts;
use crate::cluster::{Cluster, names};
use crate::incident::{self, Incident};
use crate::latency::Latency;
use crate::raw::targets;
use crate::report::Row;
use crate::{Args, Group, agent_alone, appends, decisions, fleet, idle, reconnect, say, whole};

/// All of it.
#[derive(Debug)]
pub(crate) struct Suite<'a> {
    args: &'a Args,
    scratch: &'a Path,
    rows: Vec<Row>,
}

type Rows = anyhow::Result<Vec<Row>>;

impl<'a> Suite<'a> {
    /// Nothing measured yet.
    pub(crate) fn new(args: &'a Args, scratch: &'a Path) -> Self {
        Self {
            args,
            scratch,
            rows: Vec::new(),
        }
    }

    /// Measures what was asked for; what failed is a row too.
    pub(crate) async fn run(mut self) -> Vec<Row> {
        let (args, scratch) = (self.args, self.scratch);
        let quick = args.quick;
        self.measure(Group::Store, "store appends", appends::run(scratch, quick))
            .await;
        self.measure(Group::Decide, "quarantine decisions", async {
            Ok(vec![decisions::run(decisions::time(quick))?])
        })
        .await;
        self.measure(Group::Decoded, "kernel line → decoded", async {
            let samples = args.pick(200, 5);
            Ok(vec![agent_alone::decoded(scratch, samples).await?])
        })
        .await;
        self.measure(Group::Flood, "flood by a pipe", async {
            Ok(vec![agent_alone::pipe_flood(scratch, quick).await?])
        })
        .await;
        self.measure(
            Group::Flood,
            "flood by /dev/kmsg",
            agent_alone::kmsg_floods(scratch, quick),
        )
        .await;
        self.measure(Group::Memory, "controller idle, no nodes", async {
            let cluster = Cluster::start(0, false, &args.settings).await?;
            let time = args.pick(Duration::from_mins(1), Duration::from_secs(2));
            let row = idle::controller(&cluster, "no nodes", time, false).await?;
            Ok(vec![row])
        })
        .await;
        self.measure(Group::Reconnect, "reconnect", async {
            reconnect::run(args.pick(10_000, 20), &args.settings).await
        })
        .await;
        self.measure(Group::Orders, "orders of all reboots at once", async {
            Box::pin(whole::orders(args.whole_nodes(), &args.settings)).await
        })
        .await;
        let needs = [
            Group::Calls,
            Group::Line,
            Group::Idle,
            Group::Socket,
            Group::Storm,
            Group::Release,
            Group::Burst,
            Group::Whole,
        ];
        if needs.iter().any(|group| args.wants(*group)) {
            match incident::observe(&args.settings).await {
                Ok(incident) => self.with_incident(&incident).await,
                Err(error) => {
                    let what = "API calls an incident, latencies, bursts and the whole loop";
                    self.add(Err(error), what);
                }
            }
        } else if args.wants(Group::Memory) {
            self.fleet(None).await;
        }
        self.rows
    }

    async fn with_incident(&mut self, incident: &Incident) {
        self.measure(Group::Calls, "API calls an incident", async {
            Ok(vec![incident::row(incident)?])
        })
        .await;
        let groups = [
            Group::Line,
            Group::Idle,
            Group::Socket,
            Group::Storm,
            Group::Memory,
        ];
        if groups.iter().any(|group| self.args.wants(*group)) {
            self.one_at_a_time(incident).await;
        }
        let groups = [Group::Burst, Group::Release, Group::Memory];
        if groups.iter().any(|group| self.args.wants(*group)) {
            self.fleet(Some(incident)).await;
        }
        if self.args.wants(Group::Whole) {
            self.whole(incident).await;
        }
    }

    /// Rows of drain, repair and release together; each part has a cluster of its own.
    async fn whole(&mut self, incident: &Incident) {
        let args = self.args;
        let settings = &args.settings;
        let mut counted = whole::Counted::default();
        self.measure(Group::Whole, "API calls an incident with a reboot", async {
            counted = whole::calls(settings).await?;
            Ok(vec![counted.row()?])
        })
        .await;
        self.measure(
            Group::Whole,
            "last pod gone → drained → RebootNode",
            async { whole::one(args.pick(50, 3), settings).await },
        )
        .await;
        self.measure(Group::Whole, "evictions", async {
            let load = args.pick((200, 5), (4, 5));
            whole::evictions(load, args.eviction_rounds(), settings).await
        })
        .await;
        let nodes = args.whole_nodes();
        let what = format!("{nodes} nodes at once through all stages");
        self.measure(Group::Whole, &what, async {
            whole::burst(nodes, &incident.recorded, &counted, settings).await
        })
        .await;
    }

    /// Rows on a small cluster; each has nodes of its own.
    async fn one_at_a_time(&mut self, incident: &Incident) {
        let args = self.args;
        let lines = args.pick(100, 3);
        let (idles, sockets, stormy) = (args.pick(2, 1), args.pick(10, 2), args.pick(50, 10));
        let what = "latencies of single faults";
        let mut next = 0;
        let mut take = |count: usize| {
            next += count;
            names(next - count..next)
        };
        let (raw, line, idle) = (take(20), take(lines), take(idles));
        let (socket, ill, stormy) = (take(sockets), take(10), take(stormy));
        let in_storm = take(lines);
        let quiet = take(1).remove(0);
        let prepared = async {
            let cluster = Cluster::start(next, false, &args.settings).await?;
            let raw = targets(&cluster, &raw).await?;
            anyhow::Ok((cluster, raw))
        };
        let (cluster, raw) = match prepared.await {
            Ok(prepared) => prepared,
            Err(error) => return self.add(Err(error), what),
        };
        let latency = Latency {
            cluster: &cluster,
            recorded: &incident.recorded,
            raw: &raw,
        };
        self.measure(Group::Memory, "agent idle", async {
            let time = args.pick(Duration::from_mins(1), Duration::from_secs(2));
            Ok(vec![idle::agent(&cluster, &quiet, time).await?])
        })
        .await;
        self.measure(Group::Line, "kernel line → unschedulable", async {
            Ok(vec![latency.line(&line).await?])
        })
        .await;
        self.measure(Group::Socket, "socket event → unschedulable", async {
            let samples = args.pick(200, 4);
            Ok(vec![latency.socket(&socket, samples).await?])
        })
        .await;
        self.measure(Group::Storm, "one fault in a storm", async {
            let ill = fleet::connect(&cluster, &ill).await?;
            let stormy = fleet::connect(&cluster, &stormy).await?;
            let samples = args.pick(100, 4);
            let event = latency.storm(&ill, &stormy, samples).await?;
            let line = Box::pin(latency.line_in_a_storm(&in_storm, &stormy)).await?;
            Ok(vec![event, line])
        })
        .await;
        self.measure(
            Group::Idle,
            "kernel line → unschedulable after idle",
            async { Ok(vec![latency.idle(&idle, args.idle()).await?]) },
        )
        .await;
    }

    /// Rows on a large cluster.
    async fn fleet(&mut self, incident: Option<&Incident>) {
        let args = self.args;
        let nodes = args.pick(1_000, 20);
        let what = "a fleet: bursts, release, controller's memory";
        let prepared = async {
            let cluster = Cluster::start(nodes + 1, false, &args.settings).await?;
            let names = names(0..nodes + 1);
            let fleet = fleet::connect(&cluster, &names).await?;
            let raw = targets(&cluster, &names[..nodes]).await?;
            anyhow::Ok((cluster, fleet, raw))
        };
        let (cluster, fleet, raw) = match prepared.await {
            Ok(prepared) => prepared,
            Err(error) => return self.add(Err(error), what),
        };
        let time = args.pick(Duration::from_mins(1), Duration::from_secs(2));
        let connected = format!("{nodes} nodes, all agents connected");
        self.measure(Group::Memory, "controller idle, 1,000 nodes", async {
            let row = idle::controller(&cluster, &connected, time, true).await?;
            Ok(vec![row])
        })
        .await;
        let Some((late, ill)) = fleet.split_last() else {
            return;
        };
        if let Some(incident) = incident {
            let bursts = Bursts {
                cluster: &cluster,
                recorded: &incident.recorded,
                fleet: ill,
                raw: &raw,
                late,
                rounds: args.rounds(),
            };
            self.measure(Group::Release, "recovery → schedulable", async {
                Ok(vec![bursts.release_one(args.pick(100, 3)).await?])
            })
            .await;
            let mut first = 1;
            for count in args.pick([100, 200, 1_000], [5, 10, 20]) {
                let what = format!("{count} nodes at once");
                self.measure(Group::Burst, &what, bursts.run(count, first))
                    .await;
                first += args.rounds();
            }
        }
        self.measure(Group::Memory, "controller after the bursts", async {
            let what = format!("{connected}, after the bursts");
            let row = idle::controller(&cluster, &what, time, true).await?;
            Ok(vec![row])
        })
        .await;
    }

    async fn measure(&mut self, group: Group, what: &str, rows: impl Future<Output = Rows>) {
        if !self.args.wants(group) {
            return;
        }
        say(&format!("measuring: {what}"));
        let begin = Instant::now();
        let rows = Box::pin(rows).await;
        say(&format!("  took {:.1} s", begin.elapsed().as_secs_f64()));
        self.add(rows, what);
    }

    fn add(&mut self, rows: Rows, what: &str) {
        let rows = rows.unwrap_or_else(|error| vec![Row::failed(what, &error)]);
        // At once too: a long run that is broken off has then said something.
        say(&crate::report::text(&rows));
        self.rows.extend(rows);
    }
}
