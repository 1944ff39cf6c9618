//! Model checks and random histories of the decisions.

#[cfg(test)]
mod checked;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod looped;
#[cfg(test)]
mod loops;
#[cfg(test)]
mod model;
#[cfg(test)]
mod order;
#[cfg(test)]
mod transitions;
#[cfg(test)]
mod whole;
#[cfg(test)]
mod wrong;
