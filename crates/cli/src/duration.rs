//! Times on the command line and in configuration files.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, Error, Visitor};

const NS_PER_MS: u128 = 1_000_000;
/// Enough: the digits after the 13th are less than a nanosecond in every unit. Safe: only 26
/// digits, multiplied by the nanoseconds of an hour, could overflow a `u128`.
const FRACTION_DIGITS_MAX: usize = 18;

/// Reads a time: `10s`, `1.5s`, `500ms`, `2m`, `1h`, or `0` without a unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number =
        |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return Err("give a number and a unit, such as 10s, 1.5s or 500ms".into());
    }
    if fraction.len() > FRACTION_DIGITS_MAX {
        return Err(format!("write at most {FRACTION_DIGITS_MAX} digits after the point"));
    }
    let too_long = || "that is too long".to_owned();
    let whole: u128 = whole.parse().map_err(|_| too_long())?;
    let scale = (0..fraction.len()).fold(1_u128, |scale, _| scale * 10);
    let fraction: u128 = fraction.parse().map_err(|_| too_long())?;
    let unit_ns = NS_PER_MS
        * match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "" if whole == 0 && fraction == 0 => 0,
            "" => return Err(format!("give a unit, such as {number}s")),
            unit if unit.starts_with(char::is_whitespace) => {
                return Err(format!("write the unit without a space, such as {number}s"));
            }
            _ => {
                return Err("give one number and one unit (ms, s, m or h), such as 90m".into());
            }
        };
    let ns = whole.checked_mul(unit_ns).and_then(|ns| ns.checked_add(fraction * unit_ns / scale));
    let ms = ns.and_then(|ns| u64::try_from(ns / NS_PER_MS).ok()).ok_or_else(too_long)?;
    let rest_ns = u64::try_from(ns.unwrap_or(0) % NS_PER_MS).unwrap_or(0);
    Ok(Duration::from_millis(ms) + Duration::from_nanos(rest_ns))
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

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    value: D,
) -> Result<Option<Duration>, D::Error> {
    struct Time;
    impl Visitor<'_> for Time {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a time in quotes, such as \"10s\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            duration(text).map_err(E::custom)
        }
    }
    value.deserialize_str(Time).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_a_number_with_a_unit() {
        for (text, ms) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("1.5s", 1500),
            ("0.25s", 250),
            ("2m", 120_000),
            ("0.5m", 30_000),
            ("1h", 3_600_000),
            ("0", 0),
            ("0.0", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(duration("1.5ms"), Ok(Duration::from_micros(1500)));
    }

    #[test]
    fn error_says_what_to_write() {
        for (text, hint) in [
            ("10", "such as 10s"),
            ("1.5", "such as 1.5s"),
            ("1 s", "such as 1s"),
            ("", "such as 10s"),
            ("s", "such as 10s"),
            ("-1s", "such as 10s"),
            (".5s", "such as 10s"),
            ("1.s", "such as 10s"),
            ("1.2.3s", "such as 10s"),
            ("10d", "ms, s, m or h"),
            ("10sec", "ms, s, m or h"),
            ("1h30m", "one number and one unit"),
            ("0.1234567890123456789s", "at most 18 digits"),
            ("18446744073709551615h", "too long"),
            ("999999999999999999999999999999999999999999s", "too long"),
        ] {
            let error = duration(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn printed_time_reads_back() {
        for (ms, text) in
            [(60_000, "60s"), (1500, "1500ms"), (604_800_000, "168h"), (1, "1ms"), (0, "0s")]
        {
            assert_eq!(text_of_ms(ms), text);
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)));
        }
    }
}
