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
}
