//! One record of the kernel log, and how `/dev/kmsg` prints it.
//!
//! The form is `priority,sequence,microseconds,flags[,key=value…];text` and a newline, then lines
//! ` KEY=value` (Linux `Documentation/ABI/testing/dev-kmsg`). Bytes below 32, from 127 on, and the
//! backslash are printed as `\xNN`.

use std::borrow::Cow;
use std::time::Duration;

/// Longest record that is read, in bytes: the kernel's own bound for one read of `/dev/kmsg`
/// (`CONSOLE_EXT_LOG_MAX`; from Linux 6.2 on it writes at most 2 KiB).
pub const MAX_RECORD: usize = 8 * 1024;

/// Who wrote a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The kernel: facility 0, which no user process can write.
    Kernel,
    /// A user process, through `/dev/kmsg`.
    User,
    /// The form does not tell: a line of a file.
    Unknown,
}

/// One record. It borrows from the buffer that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Who wrote it.
    pub origin: Origin,
    /// Syslog level, 0 (emergency) to 7 (debug).
    pub level: u8,
    /// Number of the record in this boot. Rises by one; a jump means that records were lost.
    pub sequence: u64,
    /// Time since boot on the kernel's log clock, to the microsecond.
    pub monotonic: Duration,
    raw: &'a [u8],
    escaped: bool,
}

/// Why bytes are not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KmsgError {
    /// Longer than [`MAX_RECORD`].
    #[error(
        "kernel log record of {0} bytes is longer than the {MAX_RECORD} that the kernel writes"
    )]
    TooLong(usize),
    /// No `;` after the head.
    #[error("kernel log record has no `;` between head and text")]
    NoText,
    /// The head is not `priority,sequence,microseconds[,…]`.
    #[error("field {0} of the head of a kernel log record is not a number")]
    Head(&'static str),
}

impl KmsgError {
    /// Stable name for metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::TooLong(_) => "kmsg_too_long",
            Self::NoText => "kmsg_no_text",
            Self::Head(_) => "kmsg_bad_head",
        }
    }
}

impl<'a> Record<'a> {
    /// Reads what one read of `/dev/kmsg` returned.
    ///
    /// # Errors
    /// If the bytes are longer than [`MAX_RECORD`] or not in the form above.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, KmsgError> {
        if bytes.len() > MAX_RECORD {
            return Err(KmsgError::TooLong(bytes.len()));
        }
        let semicolon = bytes
            .iter()
            .position(|b| *b == b';')
            .ok_or(KmsgError::NoText)?;
        let (head, rest) = (&bytes[..semicolon], &bytes[semicolon + 1..]);
        let mut fields = head.split(|b| *b == b',');
        let priority = number(fields.next(), "priority")?;
        let sequence = number(fields.next(), "sequence")?;
        let micros = number(fields.next(), "time")?;
        let end = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
        let level = u8::try_from(priority & 7).unwrap_or(7);
        Ok(Self {
            origin: if priority >> 3 == 0 {
                Origin::Kernel
            } else {
                Origin::User
            },
            level,
            sequence,
            monotonic: Duration::from_micros(micros),
            raw: &rest[..end],
            escaped: true,
        })
    }

    /// A line of a file or of another program's output. Its origin can't be told; level, number
    /// and time are not known and read as 6, 0 and 0.
    pub fn printed(line: &'a [u8]) -> Self {
        Self {
            origin: Origin::Unknown,
            level: 6,
            sequence: 0,
            monotonic: Duration::ZERO,
            raw: line,
            escaped: false,
        }
    }

    /// The text as the source printed it, escapes included. What the prefilter looks at.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// The text as the kernel wrote it. Allocates only if the source escaped something.
    pub fn text(&self) -> Cow<'a, [u8]> {
        if self.escaped {
            unescape(self.raw)
        } else {
            Cow::Borrowed(self.raw)
        }
    }
}

fn number(field: Option<&[u8]>, name: &'static str) -> Result<u64, KmsgError> {
    field
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
        .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .ok_or(KmsgError::Head(name))
}

/// Turns `\xNN` back into the byte; anything else stays as it is.
fn unescape(raw: &[u8]) -> Cow<'_, [u8]> {
    if !raw.contains(&b'\\') {
        return Cow::Borrowed(raw);
    }
    let mut text = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((&first, tail)) = rest.split_first() {
        let byte = match tail {
            [b'x', high, low, ..] if first == b'\\' => hex(*high).zip(hex(*low)),
            _ => None,
        };
        if let Some((high, low)) = byte {
            text.push(high << 4 | low);
            rest = &rest[4..];
        } else {
            text.push(first);
            rest = tail;
        }
    }
    Cow::Owned(text)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests;
