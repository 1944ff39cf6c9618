//! Model checks and random histories of the decisions.

mod model;
