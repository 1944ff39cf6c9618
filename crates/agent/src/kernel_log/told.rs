//! What the agent's own log says of the faults that it reads: enough to see on the node itself what
//! was read and when, and never more than a flood of faults is worth.

use health_event::HealthEvent;
use jiff::Timestamp;

/// Faults of one second that are told one by one; all are events anyway.
const A_SECOND: u64 = 20;

/// Counts what was told in the present second.
#[derive(Debug, Default)]
pub(super) struct Told {
    second: i64,
    count: u64,
}

impl Told {
    /// Tells of a fault that was decoded at this time.
    pub(super) fn tell(&mut self, event: &HealthEvent, sequence: u64, decoded_at: Timestamp) {
        let left_out = self.left_out(decoded_at.as_second());
        if left_out > 0 {
            tracing::warn!(
                left_out,
                "more faults were read in the kernel log than are told here"
            );
        }
        if self.count > A_SECOND {
            return;
        }
        let entities = event.entities.iter();
        let entities: Vec<String> = entities
            .map(|e| format!("{} {}", e.kind, e.value))
            .collect();
        tracing::info!(
            check = event.check_name,
            codes = event.error_codes.join(","),
            entities = entities.join(","),
            fatal = event.is_fatal,
            healthy = event.is_healthy,
            written_at = event.generated_at.map(tracing::field::display),
            %decoded_at,
            sequence,
            "read in the kernel log"
        );
    }

    /// Counts one more; answers how many the last second left out, when another begins.
    fn left_out(&mut self, second: i64) -> u64 {
        if self.second == second {
            self.count += 1;
            return 0;
        }
        self.second = second;
        std::mem::replace(&mut self.count, 1).saturating_sub(A_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_second_left_out_is_told_in_the_next() {
        let mut told = Told::default();
        let left_out: u64 = (0..A_SECOND + 5).map(|_| told.left_out(7)).sum();
        assert_eq!((left_out, told.count), (0, A_SECOND + 5));
        assert_eq!(told.left_out(8), 5);
        assert_eq!(told.left_out(9), 0);
        assert_eq!(told.count, 1);
    }
}
