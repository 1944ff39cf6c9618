//! Conformance tests of the store, through its public interface and on real files.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests count as tests"
)]

mod append;
mod bounds;
mod crash;
mod faults;
mod footing;
mod gone;
mod opening;
mod renamed;
mod reports;
mod retention;
mod shares;
mod space;
mod support;
mod transitions;
