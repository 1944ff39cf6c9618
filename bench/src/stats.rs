//! Samples and what is said about them.

use std::time::Duration;

/// Durations, sorted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(samples: I) -> Self {
        let mut samples: Vec<Duration> = samples.into_iter().collect();
        samples.sort_unstable();
        Self(samples)
    }
}

impl Samples {
    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The nearest rank: the smallest sample that at least `percent` of 100 do not exceed. None of
    /// no samples.
    pub(crate) fn percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied()
    }

    /// The middle one, or zero of none.
    pub(crate) fn median(&self) -> Duration {
        self.percentile(50).unwrap_or_default()
    }

    /// The 99th percentile, or zero of none: the largest of fewer than 100.
    pub(crate) fn p99(&self) -> Duration {
        self.percentile(99).unwrap_or_default()
    }

    /// The largest, or zero of none.
    pub(crate) fn max(&self) -> Duration {
        self.0.last().copied().unwrap_or_default()
    }

    /// `P50 1.23, P99 4.56 ms (n 100)`.
    pub(crate) fn text(&self, percents: &[usize]) -> String {
        if self.0.is_empty() {
            return "no samples".to_owned();
        }
        let parts: Vec<String> = percents
            .iter()
            .map(|percent| {
                let value = self.percentile(*percent).unwrap_or_default();
                format!("P{percent} {}", number(millis(value)))
            })
            .collect();
        format!("{} ms (n {})", parts.join(", "), self.len())
    }
}

/// The middle of some numbers; of an even count the lower one. None of none.
pub(crate) fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

/// Milliseconds.
pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Counts below 2^52 are exact.
pub(crate) fn float(count: usize) -> f64 {
    u32::try_from(count).map_or_else(|_| f64::from(u32::MAX), f64::from)
}

/// How many a second.
pub(crate) fn rate(count: usize, took: Duration) -> f64 {
    float(count) / took.as_secs_f64().max(1e-9)
}

/// Three places that matter, thousands parted.
pub(crate) fn number(value: f64) -> String {
    if value.abs() >= 1_000.0 {
        let digits = format!("{value:.0}");
        let mut text = String::new();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) && text != "-" {
                text.push(',');
            }
            text.push(digit);
        }
        return text;
    }
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_the_nearest_rank() {
        let samples: Samples = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(samples.median(), Duration::from_millis(100));
        assert_eq!(samples.p99(), Duration::from_millis(198));
        assert_eq!(samples.max(), Duration::from_millis(200));
        assert_eq!(Samples::default().percentile(50), None);
        let one: Samples = [Duration::from_millis(7)].into_iter().collect();
        assert_eq!(one.p99(), Duration::from_millis(7));
    }

    #[test]
    fn numbers_are_readable() {
        let shown = [0.0, 0.012_34, 7.456, 12.34, 345.6, 1_234.0, 1_234_567.0].map(number);
        assert_eq!(
            shown,
            [
                "0.00",
                "0.0123",
                "7.46",
                "12.3",
                "346",
                "1,234",
                "1,234,567"
            ]
        );
    }

    #[test]
    fn median_of_an_even_count_is_the_lower_of_the_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }
}
