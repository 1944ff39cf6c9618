//! Events that the agent states itself: about its own reading and keeping, and the recovery after
//! a reboot.

use health_event::{BootId, HealthEvent, ProcessingStrategy, checks, keys};

/// Detector name of what the agent states about itself.
pub const SELF: &str = "agent";
/// Detector name of the kernel log.
pub const KERNEL_LOG: &str = "kernel-log";

/// What was lost for good: a gap record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// `kernel-log`, `spool` or `refused`.
    pub source: &'static str,
    /// How many records or events; 0 if that can't be told any more.
    pub count: u64,
    /// First sequence or order number lost.
    pub from: u64,
    /// Last one.
    pub to: u64,
    /// Why, for people.
    pub why: String,
}

/// Sources of gap records.
pub const GAP_SOURCES: [&str; 3] = ["kernel-log", "spool", "refused"];

/// What a gap record says, read back from its event.
pub fn gap_of(event: &HealthEvent) -> Option<Gap> {
    let code = event.error_codes.first()?;
    let source = GAP_SOURCES.into_iter().find(|source| source == code)?;
    let number = |key: &str| event.metadata.get(key)?.parse().ok();
    Some(Gap {
        source,
        count: number("count")?,
        from: number("from")?,
        to: number("to")?,
        why: event.metadata.get("why")?.clone(),
    })
}

/// The gap record as an event: stored, without effect.
pub fn events_lost(gap: &Gap) -> HealthEvent {
    let mut event = about_self("EventsLost", Some(gap.source), false);
    event.strategy = ProcessingStrategy::StoreOnly;
    let Gap {
        source,
        count,
        from,
        to,
        why,
    } = gap;
    event.message = if *count == 0 {
        format!("An unknown number of events lost from the {source}: {why}")
    } else {
        format!("{count} lost from the {source}, number {from} to {to}: {why}")
    };
    let numbers = [("count", count), ("from", from), ("to", to)];
    event
        .metadata
        .extend(numbers.map(|(key, number)| (key.to_owned(), number.to_string())));
    event.metadata.insert("why".to_owned(), why.clone());
    event
}

/// A statement about a source or the spool: `healthy` or not.
pub fn state(check: &'static str, healthy: bool, message: &str) -> HealthEvent {
    let mut event = about_self(check, None, healthy);
    message.clone_into(&mut event.message);
    event
}

/// Whether a sender's clock can be believed.
pub fn clock_skew(sender: &str, healthy: bool) -> HealthEvent {
    let message = if healthy {
        format!("{sender} gives believable times again")
    } else {
        format!(
            "{sender} gave a time more than 10 minutes ahead of this node's clock: the time of \
             receipt was taken; set the clocks right"
        )
    };
    let code: String = sender.chars().take(60).collect();
    let mut event = about_self("ClockSkew", Some(&code), healthy);
    event.message = message;
    event
}

/// The healthy statement for a fault that a reboot ends and that the first full pass of the new
/// boot, `present`, did not find. Its id is the same whenever it is made: it may reach the controller
/// before it is in the spool.
pub fn gone_after_reboot(fault: &HealthEvent, present: &BootId) -> HealthEvent {
    let mut metadata = std::collections::BTreeMap::new();
    if let Some(detector) = fault.metadata.get(keys::DETECTOR) {
        metadata.insert(keys::DETECTOR.to_owned(), detector.clone());
    }
    metadata.insert(keys::CAUSE.to_owned(), "reboot".to_owned());
    let hash = wire::sent_hash(&fault.clone().into());
    let hash = u128::from_be_bytes(*hash.first_chunk().unwrap_or(&[0; 16]));
    let (prefix, boot) = (keys::REBOOT_RECOVERY_ID, present.as_str());
    HealthEvent {
        id: format!("{prefix}{boot}:{hash:032x}"),
        version: 1,
        agent: fault.agent.clone(),
        component_class: fault.component_class.clone(),
        check_name: fault.check_name.clone(),
        is_healthy: true,
        message: "Not found again after a reboot".to_owned(),
        error_codes: fault.error_codes.clone(),
        entities: fault.entities.clone(),
        strategy: fault.strategy,
        metadata,
        ..HealthEvent::default()
    }
}

fn about_self(check: &str, code: Option<&str>, healthy: bool) -> HealthEvent {
    HealthEvent {
        version: 1,
        agent: checks::WARDEN_AGENT.to_owned(),
        component_class: "Agent".to_owned(),
        check_name: check.to_owned(),
        is_healthy: healthy,
        error_codes: code.into_iter().map(str::to_owned).collect(),
        metadata: [(keys::DETECTOR.to_owned(), SELF.to_owned())].into(),
        ..HealthEvent::default()
    }
}
