//! The pods of nodes that are to be empty.

use std::sync::Arc;

/// The pods. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Pods(Arc<()>);
