//! What the API says, as JSON: the types are shared with the CLI.

pub use wire::api::*;
