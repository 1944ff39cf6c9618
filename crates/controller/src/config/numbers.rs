//! Numbers that TOML can write and 64 bits can't hold: by itself the reader says of the whole text
//! that it is none, without a place. Here each is found, told by key and place, and read as the
//! nearest number that can be held, so that its key says what is allowed.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Problem;

/// What is allowed where no key says it.
const ALLOWED: &str = "a number from -9223372036854775808 to 9223372036854775807";
/// Numbers that are told of one text.
const MOST: usize = 50;

/// A number that can't be held.
#[derive(Debug)]
pub(super) struct TooLarge {
    key: String,
    /// As it stands in the text.
    value: String,
    /// From 1.
    line: usize,
    /// From 1, in characters.
    column: usize,
    bytes: std::ops::Range<usize>,
    /// The nearest that can be held, as TOML.
    nearest: &'static str,
}

/// All of a text, in its order; at most [`MOST`].
pub(super) fn too_large(text: &str) -> Vec<TooLarge> {
    let (table, _) = DeTable::parse_recoverable(text);
    let mut found = Vec::new();
    of_table(text, "", table.get_ref(), &mut found);
    found.sort_by_key(|number| number.bytes.start);
    found.truncate(MOST);
    found
}

/// The text with the nearest numbers that can be held.
pub(super) fn bounded(text: &str, found: &[TooLarge]) -> String {
    let mut bounded = text.to_owned();
    for number in found.iter().rev() {
        bounded.replace_range(number.bytes.clone(), number.nearest);
    }
    bounded
}

/// What was read of each was not what stands there: a problem of its key is given value and place,
/// and a number that its key would take is one all the same.
pub(super) fn tell(problems: &mut Vec<Problem>, found: &[TooLarge]) {
    for number in found {
        let of_key = problems.iter_mut().find(|told| told.key == number.key);
        let place = format!("(line {}, column {})", number.line, number.column);
        if let Some(told) = of_key {
            told.value.clone_from(&number.value);
            told.allowed = format!("{} {place}", told.allowed);
        } else {
            problems.push(Problem {
                key: number.key.clone(),
                value: number.value.clone(),
                allowed: format!("{ALLOWED} {place}"),
            });
        }
    }
}

fn of_table(text: &str, path: &str, table: &DeTable<'_>, found: &mut Vec<TooLarge>) {
    for (key, value) in table {
        let key = key.get_ref();
        let full = if path.is_empty() {
            key.to_string()
        } else {
            format!("{path}.{key}")
        };
        of_value(text, &full, value, found);
    }
}

fn of_value(text: &str, key: &str, value: &Spanned<DeValue<'_>>, found: &mut Vec<TooLarge>) {
    let nearest = match value.get_ref() {
        DeValue::Integer(number) => {
            if i64::from_str_radix(number.as_str(), number.radix()).is_ok() {
                return;
            }
            if number.as_str().starts_with('-') {
                "-9223372036854775808"
            } else {
                "9223372036854775807"
            }
        }
        DeValue::Float(number) => {
            let written = number.as_str();
            let parsed: Option<f64> = written.parse().ok();
            if written.contains("inf") || !parsed.is_some_and(f64::is_infinite) {
                return;
            }
            if written.starts_with('-') {
                "-1.7976931348623157e308"
            } else {
                "1.7976931348623157e308"
            }
        }
        DeValue::Table(inner) => return of_table(text, key, inner, found),
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                of_value(text, &format!("{key}[{index}]"), item, found);
            }
            return;
        }
        DeValue::String(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => return,
    };
    if found.len() < MOST {
        found.push(TooLarge::at(text, key, value.span(), nearest));
    }
}

impl TooLarge {
    fn at(text: &str, key: &str, bytes: std::ops::Range<usize>, nearest: &'static str) -> Self {
        let before = &text[..bytes.start];
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        Self {
            key: health_event::text::named(key).into_owned(),
            value: text[bytes.clone()].chars().take(80).collect(),
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
            bytes,
            nearest,
        }
    }
}
