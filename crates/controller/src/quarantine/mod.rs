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
//! `settings` from the configuration, `observe` and `facts` what is seen, `work` one node's turn, `cause` what the
//! audit trail keeps of it, `writes` its write, `breaker` the shared state, `apply` the gate and the write, `startup` what a new process does first, `adoption` a lost store,
//! `marked` what it left on nodes, `asked` what persons ask, `other` another fault-quarantine,
//! `run` puts it together, `off` the module switched off.

mod adoption;
mod apply;
mod asked;
mod breaker;
mod cause;
mod facts;
mod marked;
mod observe;
mod off;
mod other;
mod reload;
mod run;
mod said;
mod settings;
mod startup;
mod work;
mod writes;

pub use facts::is_elsewhere;
pub use off::settle;
pub use other::other;
pub use run::{QuarantineError, run};
pub use settings::{bounds, pools, rule_sets, wanted};
pub use startup::{is_lost_store, knows_no_hold, waits_for_word};
