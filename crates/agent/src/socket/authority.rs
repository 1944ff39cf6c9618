//! What gRPC's C core calls a unix socket.
//!
//! Clients of the C core (Python, C++, Ruby, …) send the socket's path, percent-encoded, as the
//! `:authority` of each call (`tmp%2Fa.sock`). The HTTP library refuses a percent sign there and
//! ends the call before we see it, so those clients could not report at all. Nobody reads the
//! value; so each `%` in it becomes a `-` on its way in, which changes no length.
//!
//! # How
//! [`Authority::mend`] walks the client's bytes: frames (RFC 9113), and in header blocks the
//! fields (RFC 7541). It needs no table of headers, for a literal field says where its name and
//! value begin and end. The C core does not Huffman-code these fields; coded ones are left alone.
//!
//! # Caveats
//! Anything that is not understood turns the walk off for the rest of the connection: the HTTP
//! library then sees what was sent, and refuses it by its own rules.

/// Bytes that open a connection: `PRI * HTTP/2.0…`.
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
/// Frame types and flags of RFC 9113, section 6.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: usize = 5;
/// Index of `:authority` in the static table (RFC 7541, appendix A).
const STATIC_INDEX: u64 = 1;
const NAME: &[u8] = b":authority";

/// The state of one connection's walk.
#[derive(Debug)]
pub(super) struct Authority {
    at: At,
    field: Field,
}

#[derive(Debug)]
enum At {
    Preface {
        left: usize,
    },
    FrameHead {
        bytes: [u8; FRAME_HEAD],
        filled: usize,
    },
    /// Before the fragment of a header block: the length of its padding is the next byte.
    PadLength {
        priority: usize,
        left: usize,
    },
    /// Bytes that say nothing to us, then `fragment`, then `padding`.
    Skip {
        left: usize,
        fragment: usize,
        padding: usize,
    },
    Fragment {
        left: usize,
        padding: usize,
    },
    /// Not understood: hands off.
    Off,
}

/// Where in a header block the walk stands.
#[derive(Debug, Clone, Copy)]
enum Field {
    Start,
    Integer { value: u64, shift: u32, then: Then },
    NameLength,
    Name { left: u64, matched: Option<usize> },
    ValueLength { ours: bool },
    Value { left: u64, mend: bool },
}

/// What an integer of several bytes is.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// An indexed field or a table size: nothing follows.
    Nothing,
    /// The index of a literal field's name.
    NameIndex,
    NameLength {
        coded: bool,
    },
    ValueLength {
        mend: bool,
    },
}

impl Default for Authority {
    fn default() -> Self {
        Self {
            at: At::Preface { left: PREFACE },
            field: Field::Start,
        }
    }
}

impl Authority {
    /// Whether the bytes that open an HTTP/2 connection have arrived.
    pub(super) fn is_greeted(&self) -> bool {
        !matches!(self.at, At::Preface { .. })
    }

    /// Walks over bytes that have just arrived and mends the value where it finds it.
    pub(super) fn mend(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let used = match &mut self.at {
                At::Off => return,
                At::Preface { left } => {
                    let used = bytes.len().min(*left);
                    *left -= used;
                    if *left == 0 {
                        self.at = frame_head();
                    }
                    used
                }
                At::FrameHead {
                    bytes: head,
                    filled,
                } => {
                    let used = bytes.len().min(FRAME_HEAD - *filled);
                    head[*filled..*filled + used].copy_from_slice(&bytes[..used]);
                    *filled += used;
                    if *filled == FRAME_HEAD {
                        let head = *head;
                        self.at = self.frame(head);
                    }
                    used
                }
                At::PadLength { priority, left } => {
                    let padding = usize::from(bytes[0]);
                    self.at = match left.checked_sub(1 + *priority + padding) {
                        Some(fragment) => At::Skip {
                            left: *priority,
                            fragment,
                            padding,
                        },
                        None => At::Off,
                    };
                    1
                }
                At::Skip {
                    left,
                    fragment,
                    padding,
                } => {
                    let used = bytes.len().min(*left);
                    *left -= used;
                    if *left == 0 {
                        self.at = fragment_of(*fragment, *padding);
                    }
                    used
                }
                At::Fragment { left, padding } => {
                    let used = bytes.len().min(*left);
                    *left -= used;
                    let (left, padding) = (*left, *padding);
                    self.at = match self.walk(&mut bytes[..used]) {
                        Some(()) if left > 0 => At::Fragment { left, padding },
                        Some(()) => fragment_of(0, padding),
                        None => At::Off,
                    };
                    used
                }
            };
            bytes = &mut bytes[used..];
        }
    }

    fn frame(&mut self, head: [u8; FRAME_HEAD]) -> At {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let (kind, flags) = (head[3], head[4]);
        match kind {
            HEADERS => {
                self.field = Field::Start;
                let priority = if flags & PRIORITY == 0 {
                    0
                } else {
                    PRIORITY_BYTES
                };
                if flags & PADDED != 0 && length > 0 {
                    return At::PadLength {
                        priority,
                        left: length,
                    };
                }
                match length.checked_sub(priority) {
                    Some(fragment) => skip(priority, fragment),
                    None => At::Off,
                }
            }
            CONTINUATION => skip(0, length),
            _ => skip(length, 0),
        }
    }

    /// Walks over a piece of a header block. None if it can't be one.
    fn walk(&mut self, bytes: &mut [u8]) -> Option<()> {
        for byte in bytes {
            self.field = self.field.next(byte)?;
        }
        Some(())
    }
}

fn frame_head() -> At {
    At::FrameHead {
        bytes: [0; FRAME_HEAD],
        filled: 0,
    }
}

/// A frame or fragment of no bytes is over at once.
fn skip(left: usize, fragment: usize) -> At {
    match left {
        0 => fragment_of(fragment, 0),
        left => At::Skip {
            left,
            fragment,
            padding: 0,
        },
    }
}

fn fragment_of(fragment: usize, padding: usize) -> At {
    match (fragment, padding) {
        (0, 0) => frame_head(),
        (0, padding) => At::Skip {
            left: padding,
            fragment: 0,
            padding: 0,
        },
        (fragment, padding) => At::Fragment {
            left: fragment,
            padding,
        },
    }
}

impl Field {
    /// Takes in one byte, mending it if it belongs to the value.
    fn next(self, byte: &mut u8) -> Option<Self> {
        match self {
            Self::Start => Some(start(*byte)),
            Self::Integer { value, shift, then } => {
                // Longer ones are refused by the HTTP library too.
                let value = (shift <= 28).then(|| value + (u64::from(*byte & 0x7f) << shift))?;
                if *byte & 0x80 != 0 {
                    return Some(Self::Integer {
                        value,
                        shift: shift + 7,
                        then,
                    });
                }
                Some(then.with(value))
            }
            Self::NameLength => Some(length(*byte, |coded| Then::NameLength { coded })),
            Self::Name { left, matched } => {
                let matched = matched
                    .filter(|at| NAME.get(*at) == Some(byte))
                    .map(|at| at + 1);
                Some(match left - 1 {
                    0 => Self::ValueLength {
                        ours: matched == Some(NAME.len()),
                    },
                    left => Self::Name { left, matched },
                })
            }
            Self::ValueLength { ours } => Some(length(*byte, |coded| Then::ValueLength {
                mend: ours && !coded,
            })),
            Self::Value { left, mend } => {
                if mend && *byte == b'%' {
                    *byte = b'-';
                }
                Some(if left == 1 {
                    Self::Start
                } else {
                    Self::Value {
                        left: left - 1,
                        mend,
                    }
                })
            }
        }
    }
}

/// The first byte of a field (RFC 7541, section 6).
fn start(byte: u8) -> Field {
    let (prefix, then) = match byte {
        0x80.. => (0x7f, Then::Nothing),
        0x40..0x80 => (0x3f, Then::NameIndex),
        0x20..0x40 => (0x1f, Then::Nothing),
        0x00..0x20 => (0x0f, Then::NameIndex),
    };
    integer(byte, prefix, then)
}

/// The first byte of a string's length.
fn length(byte: u8, then: impl Fn(bool) -> Then) -> Field {
    integer(byte, 0x7f, then(byte & 0x80 != 0))
}

fn integer(byte: u8, prefix: u8, then: Then) -> Field {
    match byte & prefix {
        value if value == prefix => Field::Integer {
            value: u64::from(value),
            shift: 0,
            then,
        },
        value => then.with(u64::from(value)),
    }
}

impl Then {
    /// What follows once the integer is known.
    fn with(self, value: u64) -> Field {
        match (self, value) {
            (Self::Nothing, _) | (Self::ValueLength { .. }, 0) => Field::Start,
            (Self::NameIndex, 0) => Field::NameLength,
            (Self::NameIndex, index) => Field::ValueLength {
                ours: index == STATIC_INDEX,
            },
            (Self::NameLength { .. }, 0) => Field::ValueLength { ours: false },
            (Self::NameLength { coded }, left) => Field::Name {
                left,
                matched: (!coded).then_some(0),
            },
            (Self::ValueLength { mend }, left) => Field::Value { left, mend },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PRI: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(payload);
        bytes
    }

    fn string(text: &str) -> Vec<u8> {
        let mut bytes = vec![u8::try_from(text.len()).unwrap()];
        bytes.extend(text.as_bytes());
        bytes
    }

    /// Fields as the C core sends them: indexed ones, a literal path, the authority.
    fn block(authority: &str) -> Vec<u8> {
        let mut bytes = vec![0x83, 0x86, 0x44];
        bytes.extend(string(
            "/datamodels.PlatformConnector/HealthEventOccurredV1?%2F",
        ));
        bytes.push(0x41);
        bytes.extend(string(authority));
        bytes.push(0x40);
        bytes.extend([string("x-other"), string("50%")].concat());
        bytes
    }

    fn mended(bytes: &[u8], pieces: usize) -> Vec<u8> {
        let mut authority = Authority::default();
        let mut bytes = bytes.to_vec();
        for piece in bytes.chunks_mut(pieces) {
            authority.mend(piece);
        }
        bytes
    }

    #[test]
    fn only_the_authority_changes_however_the_bytes_are_cut() {
        let sent = |authority: &str| {
            let headers = block(authority);
            let (first, rest) = headers.split_at(70);
            let mut padded = vec![3, 0, 0, 0, 0, 16];
            padded.extend(&headers);
            padded.extend([0, 0, 0]);
            [
                PRI.to_vec(),
                frame(4, 0, &[]),
                frame(HEADERS, 4, &headers),
                frame(0, 1, b"100% data \x41\x03a%b"),
                frame(HEADERS, 0, first),
                frame(CONTINUATION, 4, rest),
                frame(HEADERS, 4 | PADDED | PRIORITY, &padded),
            ]
            .concat()
        };
        for pieces in [1, 2, 3, 7, 64, 4096] {
            let got = mended(&sent("tmp%2Fpy%2Fa.sock"), pieces);
            assert_eq!(got, sent("tmp-2Fpy-2Fa.sock"), "cut into {pieces}");
        }
    }

    #[test]
    fn an_authority_named_in_full_is_found_too() {
        let sent = |authority: &str| {
            let mut block = vec![0x00];
            block.extend([string(":authority"), string(authority)].concat());
            [PRI.to_vec(), frame(HEADERS, 4, &block)].concat()
        };
        assert_eq!(mended(&sent("a%2Fb"), 5), sent("a-2Fb"));
    }

    #[test]
    fn a_long_value_is_mended_to_its_end() {
        let text = format!("{}%", "a".repeat(300));
        // 300 + 1 = 127 + 174: the length takes three bytes.
        let mut block = vec![0x41, 0x7f, 0xae, 0x01];
        block.extend(text.as_bytes());
        let got = mended(&[PRI.to_vec(), frame(HEADERS, 4, &block)].concat(), 11);
        assert_eq!(got.last(), Some(&b'-'));
    }

    #[test]
    fn a_coded_value_is_left_alone() {
        let mut block = vec![0x41, 0x80 | 3];
        block.extend(b"%%%");
        let sent = [PRI.to_vec(), frame(HEADERS, 4, &block)].concat();
        assert_eq!(mended(&sent, 4), sent);
    }

    proptest! {
        #[test]
        fn any_bytes_keep_their_number_and_cutting_does_not_matter(
            bytes in prop::collection::vec(any::<u8>(), 0..600), pieces in 1..50_usize
        ) {
            let sent = [PRI.to_vec(), bytes].concat();
            let whole = mended(&sent, sent.len());
            prop_assert_eq!(whole.len(), sent.len());
            prop_assert_eq!(whole, mended(&sent, pieces));
        }
    }
}
