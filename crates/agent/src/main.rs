//! `warden-agent`.
fn main() {}
