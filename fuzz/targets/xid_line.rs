//! Any bytes as the lines of a file, through one detector with its state.
#![no_main]

use detect::{KernelLog, KernelLogConfig, lines, xid};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let config = KernelLogConfig {
        accept_user_records: true,
    };
    let mut log = KernelLog::new(config);
    let mut findings = Vec::new();
    for line in bytes.split(|b| *b == b'\n') {
        let _ = lines::stamp(line);
        log.observe(&lines::record(line), &mut findings);
        assert!(findings.len() <= xid::MAX_STATEMENTS);
        for finding in findings.drain(..) {
            let event = &finding.event;
            assert!(event.message.len() <= 16 * 1024);
            assert!(event.entities.len() <= 16);
            assert_eq!(event.error_codes.len(), 1);
            assert!(!(event.is_healthy && event.entities.is_empty()));
            assert!(!(event.is_healthy && event.is_fatal));
            assert!(!finding.explain().is_empty());
        }
    }
});
