use proptest::prelude::*;

use super::*;

/// Bytes, and of the record: origin, level, sequence, microseconds, text.
type Row = (&'static [u8], Origin, u8, u64, u64, &'static [u8]);

#[test]
fn a_record_in_each_form() {
    let table: [Row; 8] = [
        (
            b"6,339,5140900,-;NET: up\n",
            Origin::Kernel,
            6,
            339,
            5_140_900,
            b"NET: up",
        ),
        (b"3,1,2,-,caller=T12;x\n", Origin::Kernel, 3, 1, 2, b"x"),
        (b"3,1,2,c;x", Origin::Kernel, 3, 1, 2, b"x"),
        (b"11,9,8,-;forged\n", Origin::User, 3, 9, 8, b"forged"),
        (b"30,9,8,-;daemon\n", Origin::User, 6, 9, 8, b"daemon"),
        (
            b"4,1,2,-;a;b,c\n SUBSYSTEM=pci\n DEVICE=+pci:0\n",
            Origin::Kernel,
            4,
            1,
            2,
            b"a;b,c",
        ),
        (
            b"4,1,2,-;a\\x0ab\\x5cx41 \\x4 \\xzz\\\n",
            Origin::Kernel,
            4,
            1,
            2,
            b"a\nb\\x41 \\x4 \\xzz\\",
        ),
        (
            b"4,18446744073709551615,0;\n",
            Origin::Kernel,
            4,
            u64::MAX,
            0,
            b"",
        ),
    ];
    for (bytes, origin, level, sequence, micros, text) in table {
        let record = Record::parse(bytes).unwrap();
        let shown = String::from_utf8_lossy(bytes);
        assert_eq!(record.origin, origin, "{shown}");
        assert_eq!(record.level, level, "{shown}");
        assert_eq!(record.sequence, sequence, "{shown}");
        assert_eq!(record.monotonic, Duration::from_micros(micros), "{shown}");
        assert_eq!(&*record.text(), text, "{shown}");
    }
}

#[test]
fn what_is_no_record_is_refused_by_name() {
    let long = vec![b'x'; MAX_RECORD + 1];
    let table: [(&[u8], &str); 9] = [
        (b"", "kmsg_no_text"),
        (b"6,339,5140900,- NET", "kmsg_no_text"),
        (b";x", "kmsg_bad_head"),
        (b"6;x", "kmsg_bad_head"),
        (b"6,1;x", "kmsg_bad_head"),
        (b"-6,1,2,-;x", "kmsg_bad_head"),
        (b"+6,1,2,-;x", "kmsg_bad_head"),
        (b"6,18446744073709551616,2,-;x", "kmsg_bad_head"),
        (&long, "kmsg_too_long"),
    ];
    for (bytes, code) in table {
        assert_eq!(Record::parse(bytes).unwrap_err().code(), code);
    }
}

#[test]
fn a_printed_line_keeps_its_backslashes() {
    let record = Record::printed(b"a\\x0ab");
    assert_eq!(record.origin, Origin::Unknown);
    assert_eq!(&*record.text(), b"a\\x0ab");
}

/// What the kernel does when it prints a text.
fn escape(text: &[u8]) -> Vec<u8> {
    let mut printed = Vec::new();
    for byte in text {
        if *byte < 32 || *byte >= 127 || *byte == b'\\' {
            printed.extend(format!("\\x{byte:02x}").bytes());
        } else {
            printed.push(*byte);
        }
    }
    printed
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(record) = Record::parse(&bytes) {
            prop_assert!(record.text().len() <= bytes.len());
            prop_assert!(record.level <= 7);
        }
    }

    #[test]
    fn a_text_comes_back_as_it_was_written(
        text in proptest::collection::vec(any::<u8>(), 0..200),
        sequence: u64,
        micros: u64,
    ) {
        let mut bytes = format!("3,{sequence},{micros},-;").into_bytes();
        bytes.extend(escape(&text));
        bytes.extend(b"\n SUBSYSTEM=pci\n");
        let record = Record::parse(&bytes).unwrap();
        prop_assert_eq!(&*record.text(), &text[..]);
        prop_assert_eq!((record.sequence, record.monotonic), (sequence, Duration::from_micros(micros)));
    }
}
