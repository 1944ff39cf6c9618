//! The subscriber: where log lines go and how they look.
//!
//! Levels by what the reader must do: error = a person must act; warn = odd but dealt with;
//! info = something on the cluster was changed; debug = a decision with its reason.

use std::fmt;
use std::io::IsTerminal as _;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON else.
    #[default]
    Auto,
    /// One JSON object a line.
    Json,
    /// For people.
    Pretty,
}

impl LogFormat {
    /// Allowed names, for messages.
    pub const ALLOWED: &'static str = "auto, json or pretty";

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Json => "json",
            Self::Pretty => "pretty",
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for LogFormat {
    type Err = LogError;

    fn from_str(text: &str) -> Result<Self, LogError> {
        [Self::Auto, Self::Json, Self::Pretty]
            .into_iter()
            .find(|format| format.as_str() == text)
            .ok_or_else(|| LogError::Format(text.chars().take(40).collect()))
    }
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// No such format.
    #[error("{0:?} is not a log format: want {allowed}", allowed = LogFormat::ALLOWED)]
    Format(String),
    /// The filter does not parse.
    #[error("{0:?} is not a log filter: want a level, or TARGET=LEVEL parted by commas: {1}")]
    Filter(String, String),
    /// A subscriber was installed before.
    #[error("logging was set up twice in this process")]
    Twice,
}

impl LogError {
    /// Static name for metrics and messages.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Format(_) => "log_format",
            Self::Filter(..) => "log_filter",
            Self::Twice => "log_twice",
        }
    }
}

/// Checks a filter without installing anything.
///
/// # Errors
/// [`LogError::Filter`] if it does not parse.
pub fn check_filter(filter: &str) -> Result<(), LogError> {
    parse_filter(filter).map(drop)
}

/// Installs the process's subscriber; lines go to standard error.
///
/// # Errors
/// [`LogError`] if the filter does not parse or a subscriber was installed before.
pub fn init(format: LogFormat, filter: &str) -> Result<(), LogError> {
    let json = match format {
        LogFormat::Json => true,
        LogFormat::Pretty => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    };
    let subscriber = subscriber(json, filter, std::io::stderr)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::Twice)
}

fn parse_filter(filter: &str) -> Result<EnvFilter, LogError> {
    let refused = |why: String| LogError::Filter(filter.chars().take(200).collect(), why);
    // The parser cuts after single bytes and panics inside a longer character; targets, levels and
    // fields of ours are ASCII.
    if !filter.is_ascii() {
        return Err(refused("it has characters that are not ASCII".to_owned()));
    }
    EnvFilter::try_new(filter).map_err(|error| refused(error.to_string()))
}

fn subscriber<W>(
    json: bool,
    filter: &str,
    writer: W,
) -> Result<Box<dyn tracing::Subscriber + Send + Sync>, LogError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parse_filter(filter)?)
        .with_writer(writer);
    Ok(if json {
        Box::new(builder.json().flatten_event(true).with_ansi(false).finish())
    } else {
        let colour = std::io::stderr().is_terminal();
        Box::new(builder.with_ansi(colour).with_target(false).finish())
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A writer that keeps what was logged.
    #[derive(Clone, Default)]
    pub(crate) struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Kept {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What is logged as JSON while `work` runs.
    pub(crate) fn logged(work: impl FnOnce()) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = subscriber(true, "debug", move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, work);
        kept.text()
    }

    #[test]
    fn a_json_line_has_the_fields_at_the_top() {
        let text = logged(|| tracing::info!(node = "gpu-1", "node cordoned"));
        assert!(text.contains(r#""node":"gpu-1""#), "{text}");
        assert!(text.contains(r#""message":"node cordoned""#), "{text}");
    }

    #[test]
    fn a_bad_filter_or_format_is_named() {
        let error = check_filter("warden=notalevel").unwrap_err();
        assert_eq!(error.code(), "log_filter");
        // The parser of tracing-subscriber 0.3.23 panics on this one.
        let error = check_filter("  ř=[").unwrap_err();
        assert_eq!(error.code(), "log_filter");
        assert!(error.to_string().contains("not ASCII"), "{error}");
        let error = "xml".parse::<LogFormat>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"xml\" is not a log format: want auto, json or pretty"
        );
        check_filter("info,controller=debug").unwrap();
    }
}
