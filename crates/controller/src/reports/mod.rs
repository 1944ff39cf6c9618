//! What the agents say about themselves, and what follows: edges get lost, levels don't.
//!
//! # Guarantees
//! - A node's [`AgentState`] is what its agent's last report said; it survives a restart, so that
//!   nobody counts as new or settled because we were away.
//! - Only what detectors inside the agent assert is compared. A report is compared when everything
//!   up to its number is stored; it closes no fault whose last event has a higher number, none of a
//!   detector that is starting or blind, and none at all before an agent that began from nothing
//!   has taken over what is open here.
//! - A settled report of a new boot closes the faults of socket senders whose check is listed in
//!   `ingest.reboot_clears`, where their newest event is of an earlier boot; nothing else of them.
//! - What an agent on another machine than the node's asserts is not compared, and nothing is handed
//!   to it; while several agents report as one node, no report denies a fault. Both are faults of
//!   their own ([`doubt`]).
//! - After a start of the controller nobody is silent for three intervals.
//!
//! # Bounds
//! 50 lists a second; the same pair of sets at most once an hour and node; 64 detectors a report.

mod asked;
mod compare;
mod contest;
mod crowded;
mod doubt;
mod ended;
mod service;
mod silent;
mod state;

pub use compare::{Closable, DetectorStates, missing_there};
pub use ended::{EndError, close_retired};
pub use service::ReportService;
pub use silent::Silence;
pub use state::{AgentState, Reports, Standing};
pub(crate) use state::{STATE_PREFIX, state_key};
