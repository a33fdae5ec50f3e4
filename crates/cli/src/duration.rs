//! Times on the command line.

use std::time::Duration;

/// `10s`, `500ms`, `2m`, `1h`; nothing is nothing in any unit.
pub(crate) fn duration(text: &str) -> Result<Duration, &'static str> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| "give a whole number and a unit, such as 10s or 500ms")?;
    let ms_per_unit = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "" if number == 0 => 0,
        _ => return Err("the unit must be ms, s, m or h"),
    };
    number.checked_mul(ms_per_unit).map(Duration::from_millis).ok_or("that is too long")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_with_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for nonsense in ["", "10", "s", "-1s", "1.5s", "1 s", "10d", "1h30m", "99999999999999999999s"] {
            assert!(duration(nonsense).is_err(), "{nonsense}");
        }
        assert_eq!(duration("18446744073709551615h"), Err("that is too long"));
    }
}
