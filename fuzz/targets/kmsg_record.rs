//! Any bytes as a record of `/dev/kmsg`, through parser and detectors.
#![no_main]

use detect::{KernelLog, KernelLogConfig, Record};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(record) = Record::parse(bytes) else {
        return;
    };
    assert!(record.level <= 7);
    assert!(record.text().len() <= bytes.len());
    let mut log = KernelLog::new(KernelLogConfig::default());
    let mut findings = Vec::new();
    log.observe(&record, &mut findings);
    let believed = record.origin == detect::Origin::Kernel;
    assert!(believed || findings.is_empty());
});
