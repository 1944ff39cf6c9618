//! Settings of the breaker, and the bounds that follow from them.

use jiff::SignedDuration;

/// Settings of one pool; checked by [`Config::check`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Off: everything is permitted, and nothing is counted.
    pub enabled: bool,
    /// Percentage of the pool that may be out at one time, 1 to 100. Default 50.
    pub level_percent: u32,
    /// Number of nodes that may be out at one time, if smaller.
    pub level_nodes: Option<u32>,
    /// Percentage of the pool that may be newly taken out in the window, 1 to 100. Default 50.
    pub rate_percent: u32,
    /// Number of nodes newly taken out in the window, if smaller.
    pub rate_nodes: Option<u32>,
    /// Nodes that may always be out, however small the pool. Default 1.
    pub min_nodes: u32,
    /// Length of the window, 1 s to 24 h. Default 5 min.
    pub window: SignedDuration,
    /// Whether a tripped pool goes on by itself once no bound is reached. Default off.
    pub auto_resume: bool,
}

/// A setting that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("breaker.{key} = {value} is not usable: want {want}")]
pub struct ConfigError {
    /// Key.
    pub key: &'static str,
    /// Value given.
    pub value: String,
    /// Allowed form.
    pub want: &'static str,
}

impl Config {
    /// Says everything that is wrong.
    ///
    /// # Errors
    /// Each setting out of its range.
    pub fn check(&self) -> Result<(), Vec<ConfigError>> {
        let mut errors = Vec::new();
        for (key, percent) in [
            ("level_percent", self.level_percent),
            ("rate_percent", self.rate_percent),
        ] {
            if !(1..=100).contains(&percent) {
                errors.push(config_error(key, percent, "a whole number from 1 to 100"));
            }
        }
        let numbers = [
            ("level_nodes", self.level_nodes),
            ("rate_nodes", self.rate_nodes),
            ("min_nodes", Some(self.min_nodes)),
        ];
        for (key, number) in numbers {
            if number == Some(0) {
                errors.push(config_error(key, 0, "a whole number from 1"));
            }
        }
        let seconds = self.window.as_secs();
        if !(1..=86_400).contains(&seconds) {
            errors.push(config_error("window", seconds, "1 s to 24 h"));
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(errors)
        }
    }

    /// Nodes of a pool of this size that may be out at one time.
    pub fn level_bound(&self, pool_size: usize) -> usize {
        bound(
            pool_size,
            self.level_percent,
            self.level_nodes,
            self.min_nodes,
        )
    }

    /// Nodes of a pool of this size that may be newly taken out in the window.
    pub fn rate_bound(&self, pool_size: usize) -> usize {
        bound(
            pool_size,
            self.rate_percent,
            self.rate_nodes,
            self.min_nodes,
        )
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            level_percent: 50,
            level_nodes: None,
            rate_percent: 50,
            rate_nodes: None,
            min_nodes: 1,
            window: SignedDuration::from_mins(5),
            auto_resume: false,
        }
    }
}

fn config_error(
    key: &'static str,
    value: impl std::fmt::Display,
    want: &'static str,
) -> ConfigError {
    ConfigError {
        key,
        value: value.to_string(),
        want,
    }
}

fn bound(pool_size: usize, percent: u32, number: Option<u32>, min_nodes: u32) -> usize {
    let widen = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    let share = pool_size.saturating_mul(widen(percent)).div_ceil(100);
    let capped = number.map_or(share, |n| share.min(widen(n)));
    capped.max(widen(min_nodes))
}
