//! Module remediation.

use crate::context::Context;
use crate::lease::Leadership;
use crate::workers::WorkerEnded;

/// Runs the module until the order to stop.
///
/// # Errors
/// A worker panicked.
pub async fn run(context: Context, leadership: Leadership) -> Result<(), WorkerEnded> {
    drop(leadership);
    context.stop.requested().await;
    Ok(())
}
