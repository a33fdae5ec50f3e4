use std::time::Duration;

const NS_PER_S: u128 = 1_000_000_000;

/// Rounds a time to three significant digits for people to read: 1.999998 s becomes 2 s.
///
/// Keeps whole seconds: 1234 s stays 1234 s.
pub fn rounded(time: Duration) -> Duration {
    let ns = time.as_nanos();
    let mut unit = 1;
    while ns / unit >= 1000 && unit < NS_PER_S {
        unit *= 10;
    }
    let rounded = (ns + unit / 2) / unit * unit;
    let seconds = u64::try_from(rounded / NS_PER_S).unwrap_or(u64::MAX);
    let rest = u32::try_from(rounded % NS_PER_S).unwrap_or(0);
    Duration::new(seconds, rest)
}

/// Formats a time in at most two units: `340 ms`, `7.3 s`, `2 min 5 s`, `3 h 20 min`.
pub fn time_in_units(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{}.{} s", seconds, time.subsec_millis() / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_keeps_three_significant_digits_and_whole_seconds() {
        for (ns, shown) in [
            (0, "0ns"),
            (999, "999ns"),
            (1_999_998_000, "2s"),
            (1_234_567_890, "1.23s"),
            (12_345_678_901, "12.3s"),
            (100_040_000, "100ms"),
            (9_996_000, "10ms"),
            (754_321_000_000, "754s"),
            (1_234_567_000_000, "1235s"),
        ] {
            assert_eq!(format!("{:?}", rounded(Duration::from_nanos(ns))), shown);
        }
        assert_eq!(rounded(Duration::MAX).as_secs(), u64::MAX);
    }

    #[test]
    fn times_have_units() {
        for (ms, shown) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (7340, "7.3 s"),
            (59_999, "59.9 s"),
            (125_000, "2 min 5 s"),
            (12_000_000, "3 h 20 min"),
            (180_000_000, "2 d 2 h"),
        ] {
            assert_eq!(time_in_units(Duration::from_millis(ms)), shown);
        }
    }
}
