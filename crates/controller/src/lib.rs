//! The controller: takes events and reports in, keeps them, and acts on nodes.
//!
//! # Invariants
//! - An event is acknowledged after it is on disk.
//! - Modules (`connector`, `quarantine`, …) meet only in the event store and in Kubernetes objects;
//!   each can be switched off alone; none calls another.
//! - Decisions are made by the pure functions of `decide`; what is here observes, stores, applies
//!   and reports.
//! - A long-lived task that ends ends the process with its error; at start everything is rebuilt
//!   from store, cluster and the agents' reports.
//!
//! # Reading order
//! [`run`] wires everything, [`ingest`] and [`reports`] take in, [`trust`] says who is believed,
//! [`workers`] wake the work of a node, [`nodes`], [`pods`], [`reboots`] are what the cluster shows,
//! [`connector`], [`quarantine`], [`drain`], [`remediation`], [`janitor`] act, [`gone`] ends what nodes
//! leave, [`api`] shows.

pub mod args;
pub mod backlog;
mod checked;
pub mod config;
pub mod context;
pub mod crash;
pub mod kubernetes;
pub mod orders;
pub mod requests;
pub mod stages;
pub mod stop;
pub mod workers;

pub mod api;
pub mod connector;
pub mod drain;
pub mod file;
pub mod gone;
pub mod ingest;
pub mod janitor;
pub mod lease;
pub mod nodes;
pub mod pods;
pub mod quarantine;
pub mod reboots;
pub mod reference;
pub mod refusals;
pub mod remediation;
pub mod reports;
pub mod run;
pub mod trust;
