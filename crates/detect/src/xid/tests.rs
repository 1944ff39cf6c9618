use super::*;

#[test]
fn minimal() {
    assert_eq!(parse(b"NVRM: Xid (PCI:0000:3f:00): 46").unwrap().code, 46);
}
