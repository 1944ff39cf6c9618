//! The forms in which people keep kernel logs: what stands before the kernel's own text.
//!
//! Detection searches, so the prefix does not matter to it; what is read here is the time as
//! printed, for people.

/// One line, without its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// The time as the line prints it, if the form is known.
    pub stamp: Option<&'a str>,
    /// All of the line.
    pub text: &'a [u8],
}
