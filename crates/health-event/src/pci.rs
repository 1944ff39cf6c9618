//! PCI addresses.

/// The form in which PCI addresses are compared: `dddd:bb:dd`, lower case, with the domain,
/// without the function. A domain of eight digits is cut to its last four if the rest is zero; an
/// address without a domain gets `0000`. A text that is no PCI address is only lower-cased, so
/// that it still compares with itself.
pub fn normalise(text: &str) -> String {
    let text = text.trim();
    parse(text).unwrap_or_else(|| text.to_ascii_lowercase())
}

/// [`normalise`], or nothing if the text is no PCI address.
pub fn parse(text: &str) -> Option<String> {
    let text = text.trim();
    let without_function = match text.split_once('.') {
        Some((address, function)) if is_hex(function, 1, 2) => address,
        Some(_) => return None,
        None => text,
    };
    let mut parts = without_function.split(':').collect::<Vec<_>>();
    let (device, bus) = (parts.pop()?, parts.pop()?);
    let domain = match parts.as_slice() {
        [] => "0000",
        [domain] if is_hex(domain, 4, 8) => {
            let (high, low) = domain.split_at(domain.len() - 4);
            if high.bytes().any(|b| b != b'0') {
                domain
            } else {
                low
            }
        }
        _ => return None,
    };
    (is_hex(bus, 2, 2) && is_hex(device, 2, 2))
        .then(|| format!("{domain}:{bus}:{device}").to_ascii_lowercase())
}

fn is_hex(text: &str, min: usize, max: usize) -> bool {
    (min..=max).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_printed_form_compares_equal() {
        for form in [
            "0000:17:00.0",
            "00000000:17:00.0",
            "0000:17:00",
            "17:00",
            "17:00.1",
        ] {
            assert_eq!(normalise(form), "0000:17:00", "{form}");
        }
        assert_eq!(normalise("00000008:00:00.0"), "0008:00:00");
        assert_eq!(normalise("FFFF:AB:CD.0"), "ffff:ab:cd");
        assert_eq!(normalise("00010008:AB:CD.0"), "00010008:ab:cd");
        assert_eq!(normalise("invalid-PCI"), "invalid-pci");
        assert_eq!(parse("0000:17:00:00.0"), None);
        assert_eq!(parse("17"), None);
    }
}
