//! Values on the command line and in configuration files: names of locks, patterns of names, times.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use quorlock_core::node::PATTERN_BYTES_MAX;
use serde::de::{Deserialize as _, Deserializer, Error};

/// More frequent outputs are unreadable.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

pub(crate) fn key_parser() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(check_key)
}

pub(crate) fn pattern_parser() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(check_pattern)
}

/// Refuses an empty key: its usual cause is an unset variable in a script.
fn check_key(key: OsString) -> Result<OsString, &'static str> {
    if key.is_empty() { Err("the lock needs a name") } else { Ok(key) }
}

fn check_pattern(text: OsString) -> Result<OsString, String> {
    match text.len() {
        0 => Err("an empty pattern matches no lock: leave it out to match all locks".into()),
        1..=PATTERN_BYTES_MAX => Ok(text),
        _ => Err(format!("a pattern has at most {PATTERN_BYTES_MAX} bytes")),
    }
}

/// Reads a time: `10s`, `1.5s`, `500ms`, `2m`, `1h`, or `0` without a unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let starts_and_ends_with_digit = !number.starts_with('.') && !number.ends_with('.');
    let number: f64 = match number.parse() {
        Ok(number) if starts_and_ends_with_digit => number,
        _ => return Err("give a number and a unit, such as 10s, 1.5s or 500ms".into()),
    };
    let unit_seconds = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "" if number == 0.0 => 0.0,
        "" => return Err(format!("give a unit, such as {number}s")),
        unit if unit.starts_with(char::is_whitespace) => {
            return Err(format!("write the unit without a space, such as {number}s"));
        }
        _ => return Err("give one number and one unit (ms, s, m or h), such as 90m".into()),
    };
    Duration::try_from_secs_f64(number * unit_seconds).map_err(|_| "that is too long".to_owned())
}

/// Reads the time between two outputs for a person.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    let is_readable = interval >= INTERVAL_MIN;
    is_readable.then_some(interval).ok_or_else(|| format!("give at least {INTERVAL_MIN:?}"))
}

/// Formats milliseconds as [`duration`] reads them: `60s`, `1500ms`.
pub(crate) fn text_of_ms(ms: u64) -> String {
    match ms {
        0 => "0s".into(),
        ms if ms % 3_600_000 == 0 => format!("{}h", ms / 3_600_000),
        ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}

/// Reads an optional time.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    value: D,
) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(value);
    let text = text.map_err(|_| Error::custom("expected a time in quotes, such as \"10s\""))?;
    duration(&text).map(Some).map_err(Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_a_number_with_a_unit() {
        let us = |text| duration(text).unwrap().as_micros();
        assert_eq!(["0", "500ms", "1.5ms"].map(us), [0, 500_000, 1500]);
        assert_eq!(["1.5s", "0.5m", "1h"].map(us), [1_500_000, 30_000_000, 3_600_000_000]);
        for (ms, text) in [(60_000, "60s"), (1500, "1500ms"), (604_800_000, "168h"), (0, "0s")] {
            assert_eq!((&*text_of_ms(ms), us(text)), (text, u128::from(ms) * 1000));
        }
    }

    #[test]
    fn error_says_what_to_write() {
        for (text, hint) in [
            ("10", "such as 10s"),
            ("1.5", "such as 1.5s"),
            ("1 s", "such as 1s"),
            ("", "such as 10s"),
            ("-1s", "such as 10s"),
            (".5s", "such as 10s"),
            ("1.s", "such as 10s"),
            ("1.2.3s", "such as 10s"),
            ("10d", "ms, s, m or h"),
            ("1h30m", "one number and one unit"),
            ("18446744073709551615h", "too long"),
        ] {
            let error = duration(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
