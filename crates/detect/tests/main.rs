//! What detection says of whole lines: the reference's vectors, and what a line costs.

mod cost;
mod vectors;
