//! The built program, as a person runs it.
#![expect(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach helpers"
)]

mod scan;
