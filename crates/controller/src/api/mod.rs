//! For people and probes: health, metrics, and `/api/v1`.

mod asked;
mod auth;
mod failed;
mod routes;
mod server;
pub mod types;
mod view;
mod watch;

pub use auth::{ApiAuth, LocalTokenError};
pub(crate) use failed::{not_leading, switched_off};
pub use routes::{ApiState, router};
pub(crate) use server::serve;
pub use watch::Watches;
