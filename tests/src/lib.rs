//! The whole of Warden on a real control plane: the harness of the end-to-end tests, the demo and
//! the benchmarks. It starts the programs as they are shipped and talks to them as users do.

pub mod crash;
pub mod fleet;
pub mod http;
pub mod machine;
pub mod monitor;
pub mod nodes;
pub mod programs;
pub mod proxy;
pub mod random;
pub mod relay;
pub mod ring;
pub mod view;

pub use machine::Machine;
pub use monitor::Monitor;
pub use programs::{Agent, Controller, ControllerOptions, KernelLog, Trust};
