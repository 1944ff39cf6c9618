//! Model checks and random histories of the decisions.

#[cfg(test)]
mod checked;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod model;
#[cfg(test)]
mod order;
