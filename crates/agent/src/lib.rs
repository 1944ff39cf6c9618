//! The agent: finds the node's faults, keeps them until the controller has them, and tells what
//! is open. It never talks to the API server.
//!
//! # Reading order
//! [`config`] what a person may choose, [`ids`] who this agent is, [`kernel_log`] where events
//! come from, [`core`] where they meet, [`faults`] what the agent asserts, [`spool`] what outlives
//! the process, [`link`], [`delivery`] and [`report`] how the controller gets to know, [`run`] how
//! all of it is put together.

pub mod admin;
pub mod backoff;
pub mod config;
pub mod core;
pub mod crash;
pub mod delivery;
pub mod detectors;
pub mod faults;
pub mod ids;
pub mod kernel_log;
pub mod link;
pub mod own;
pub mod report;
pub mod run;
pub mod socket;
pub mod spool;
pub mod status;
pub mod xids;
