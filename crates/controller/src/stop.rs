//! The order to stop, given once and seen by all long-lived tasks.

use tokio::sync::watch;

/// Gives the order.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// Sees the order. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

/// A new pair.
pub fn channel() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    /// Gives the order; again is nothing new.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Waits for the order. A [`Stopper`] that is gone gives it too.
    pub async fn requested(&self) {
        let mut receiver = self.0.clone();
        // An error means that the stopper is gone.
        let _ = receiver.wait_for(|stop| *stop).await;
    }

    /// Whether the order was given.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }
}
