//! Model checks and random histories of the decisions.

mod histories;
mod model;
mod order;
