//! For people and probes: health, metrics, and `/api/v1`.

mod auth;
mod routes;
pub mod types;
mod view;

pub use auth::{ApiAuth, LocalTokenError};
pub use routes::{ApiState, router};
