//! The whole of Warden on a real control plane: the harness of the end-to-end tests, the demo and
//! the benchmarks. It starts the programs as they are shipped and talks to them as users do.

pub mod http;
pub mod nodes;
pub mod programs;
pub mod view;

pub use programs::{Agent, Controller, ControllerOptions, KernelLog, Trust};
