//! A record that matches nothing costs no allocation, however many come; one that matches costs a
//! few, most of them of the event that it becomes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Write as _;

use detect::{KernelLog, KernelLogConfig, Record};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[expect(
    unsafe_code,
    reason = "an allocator can't be written without; it only counts and hands on"
)]
// SAFETY: every call is handed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn lines_that_match_nothing_allocate_nothing() {
    let mut log = KernelLog::new(KernelLogConfig::default());
    let mut findings = Vec::new();
    let mut line = String::with_capacity(200);
    let mut allocated = 0;
    for number in 0..10_000 {
        line.clear();
        writeln!(
            line,
            "6,{number},{number},-;usb 1-{number}: new high-speed \\x0a device NVRM: Xit {number}"
        )
        .unwrap();
        let before = ALLOCATIONS.get();
        let record = Record::parse(line.as_bytes()).unwrap();
        log.observe(&record, &mut findings);
        allocated += ALLOCATIONS.get() - before;
    }
    assert_eq!((allocated, findings.len()), (0, 0));
    assert!(ALLOCATIONS.get() > 0, "the allocator counts");
}

#[test]
fn a_line_that_states_a_fault_allocates_little_more_than_its_event() {
    let mut log = KernelLog::new(KernelLogConfig::default());
    let mut findings = Vec::with_capacity(1);
    let line =
        b"3,1,1,-;NVRM: Xid (PCI:0000:66:00): 79, pid=1, name=a, GPU has fallen off the bus.";
    let mut cost = 0;
    // The first times compile the expressions and fill their caches.
    for _ in 0..10 {
        findings.clear();
        let before = ALLOCATIONS.get();
        log.observe(&Record::parse(line).unwrap(), &mut findings);
        cost = ALLOCATIONS.get() - before;
    }
    let before = ALLOCATIONS.get();
    let event = findings[0].event.clone();
    let of_the_event = ALLOCATIONS.get() - before;
    assert!(!event.is_healthy);
    assert!(
        cost <= of_the_event + 16,
        "{cost} allocations, {of_the_event} of them of the event"
    );
}
