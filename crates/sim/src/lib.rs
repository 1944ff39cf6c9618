//! A small world around the decisions, for model checks and random histories; tests only.
//!
//! The world holds what surrounds `decide`: machines with agents, an API server with its nodes, a
//! cache that lags behind it, a store, persons, other controllers, and a controller that may crash
//! between any two steps. Everything that is decided is decided by the real functions of `decide`
//! and `health-event`; what is here only carries facts in and effects out.
//!
//! # Reading order
//! Quarantine and breaker against an API server that is late: [`world`] what there is, its `step` what may happen, `controller` the shell around the
//! decisions, `cluster` the API server, `promises` what must hold at each step, `rest` what must
//! hold once nothing more happens.
//! Quarantine, drain, remediation and janitor together, against a provider that is not to be trusted:
//! [`whole`], with modules of the same names; two nodes of it that share places and controller:
//! [`whole::fleet`].

pub mod whole;
pub mod world;
