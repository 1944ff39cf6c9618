//! Between the protobuf types and the domain's.

use health_event::{
    BehaviourOverrides, Entity, HealthEvent, ProcessingStrategy, RecommendedAction,
};
use jiff::Timestamp;

use crate::datamodels as wire;

/// Why a protobuf event has no counterpart in the domain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// Seconds or nanoseconds out of range.
    #[error(
        "generatedTimestamp {seconds} s {nanos} ns is no time: want 0 to 999999999 ns, and a year \
         from -9999 to 9999"
    )]
    Time {
        /// Seconds since 1970.
        seconds: i64,
        /// Nanoseconds.
        nanos: i32,
    },
}

impl ConvertError {
    /// Static name for metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Time { .. } => "bad_time",
        }
    }
}

/// A protobuf time; nanoseconds below zero or above 999,999,999 are refused.
///
/// # Errors
/// [`ConvertError::Time`] if it is out of range.
pub fn timestamp_from_wire(time: prost_types::Timestamp) -> Result<Timestamp, ConvertError> {
    let prost_types::Timestamp { seconds, nanos } = time;
    let error = ConvertError::Time { seconds, nanos };
    if !(0..1_000_000_000).contains(&nanos) {
        return Err(error);
    }
    Timestamp::new(seconds, nanos).map_err(|_| error)
}

/// The protobuf form of a time.
pub fn timestamp_to_wire(time: Timestamp) -> prost_types::Timestamp {
    // Protobuf counts nanoseconds upwards only; jiff gives both parts one sign.
    let (seconds, nanos) = (time.as_second(), time.subsec_nanosecond());
    if nanos < 0 {
        prost_types::Timestamp {
            seconds: seconds - 1,
            nanos: nanos + 1_000_000_000,
        }
    } else {
        prost_types::Timestamp { seconds, nanos }
    }
}

impl TryFrom<wire::HealthEvent> for HealthEvent {
    type Error = ConvertError;

    /// # Errors
    /// [`ConvertError::Time`] if the time is out of range; every other value has an answer.
    fn try_from(event: wire::HealthEvent) -> Result<Self, ConvertError> {
        let generated_at = event
            .generated_timestamp
            .map(timestamp_from_wire)
            .transpose()?;
        Ok(Self {
            id: event.id,
            version: event.version,
            agent: event.agent,
            component_class: event.component_class,
            check_name: event.check_name,
            is_fatal: event.is_fatal,
            is_healthy: event.is_healthy,
            message: event.message,
            recommended_action: RecommendedAction::from_number(event.recommended_action),
            custom_recommended_action: event.custom_recommended_action,
            error_codes: event.error_code,
            entities: event
                .entities_impacted
                .into_iter()
                .map(|e| Entity {
                    kind: e.entity_type,
                    value: e.entity_value,
                })
                .collect(),
            metadata: event.metadata,
            generated_at,
            node_name: event.node_name,
            quarantine_overrides: event.quarantine_overrides.map(overrides_from_wire),
            drain_overrides: event.drain_overrides.map(overrides_from_wire),
            strategy: ProcessingStrategy::from_number(event.processing_strategy),
        })
    }
}

impl From<HealthEvent> for wire::HealthEvent {
    fn from(event: HealthEvent) -> Self {
        Self {
            version: event.version,
            agent: event.agent,
            component_class: event.component_class,
            check_name: event.check_name,
            is_fatal: event.is_fatal,
            is_healthy: event.is_healthy,
            message: event.message,
            recommended_action: event.recommended_action.number(),
            error_code: event.error_codes,
            entities_impacted: event
                .entities
                .into_iter()
                .map(|e| wire::Entity {
                    entity_type: e.kind,
                    entity_value: e.value,
                })
                .collect(),
            metadata: event.metadata,
            generated_timestamp: event.generated_at.map(timestamp_to_wire),
            node_name: event.node_name,
            quarantine_overrides: event.quarantine_overrides.map(overrides_to_wire),
            drain_overrides: event.drain_overrides.map(overrides_to_wire),
            processing_strategy: event.strategy.number(),
            id: event.id,
            custom_recommended_action: event.custom_recommended_action,
        }
    }
}

fn overrides_from_wire(overrides: wire::BehaviourOverrides) -> BehaviourOverrides {
    BehaviourOverrides {
        force: overrides.force,
        skip: overrides.skip,
    }
}

fn overrides_to_wire(overrides: BehaviourOverrides) -> wire::BehaviourOverrides {
    wire::BehaviourOverrides {
        force: overrides.force,
        skip: overrides.skip,
    }
}
