//! Values shared between states, and values that tell no two states apart.

use std::fmt::{self, Debug, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// A shared value with the fingerprint of all that its `Debug` form shows. No field can be
/// forgotten that way, and a state is cloned and hashed in a few operations.
#[derive(Clone)]
pub struct Kept<T> {
    value: Arc<T>,
    print: u64,
}

struct Fingerprint(DefaultHasher);

impl Write for Fingerprint {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl<T: Debug> Kept<T> {
    /// Keeps a value.
    pub fn new(value: T) -> Self {
        let mut print = Fingerprint(DefaultHasher::new());
        // Writing into a hasher cannot fail.
        let _ = write!(print, "{value:?}");
        Self {
            value: Arc::new(value),
            print: print.0.finish(),
        }
    }
}

impl<T: Debug + Clone> Kept<T> {
    /// Replaces the value by a changed one.
    pub fn change(&mut self, change: impl FnOnce(&mut T)) {
        let mut value = (*self.value).clone();
        change(&mut value);
        *self = Self::new(value);
    }
}

impl<T: Debug + Default> Default for Kept<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> PartialEq for Kept<T> {
    fn eq(&self, other: &Self) -> bool {
        self.print == other.print
    }
}

impl<T> Hash for Kept<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.print);
    }
}

impl<T: Debug> Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// A value that follows from the others, or only says how the state was reached: two states that
/// differ in it alone are one.
#[derive(Clone, Default)]
pub struct Aside<T>(pub T);

impl<T> PartialEq for Aside<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Hash for Aside<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl<T: Debug> Debug for Aside<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
