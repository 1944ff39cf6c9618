//! Takes nodes out of service and gives them back.
//!
//! # Invariants
//! - What a node carries is decided by `decide::quarantine`; what is here reads the facts, stores
//!   the decision, and only then writes.
//! - One worker a node: a node's decisions and writes never overlap.
//! - Every write passes the gate in `apply`: leadership, dry run, pause.
//! - Nothing of a node's state is held only in memory: a worker that begins knows it all from the
//!   store and the node; what became of the last write is a hint that may be lost.
//!
//! # Reading order
//! `settings` from the configuration, `facts` what is seen, `work` one node's turn, `writes` its write, `breaker` the
//! shared state, `apply` the gate and the write, `startup` what a new process does first, `adoption` a lost store, `asked`
//! what persons ask, `run` puts it together.

mod adoption;
mod apply;
mod asked;
mod breaker;
mod facts;
mod run;
mod said;
mod settings;
mod startup;
mod work;
mod writes;

pub use run::{QuarantineError, run};
pub use settings::{pools, rule_sets, wanted};
