//! The table: what was measured, a peer's figure, and the target, as Markdown.

use std::fmt;
use std::time::Duration;

pub(crate) const HEADER: &str = "| case | ours | peer | ratio | target |\n|---|--:|--:|--:|---|";

/// One figure of Quorlock, beside a peer or a target.
pub(crate) struct Row {
    case: String,
    ours: String,
    peer: String,
    ratio: Option<f64>,
    /// The target for readers, and whether it is met.
    target: Option<(String, bool)>,
}

impl Row {
    /// Compares the times of one operation with Quorlock and with a peer.
    ///
    /// The exact ratio counts, and not the printed one. A ratio that is not a number misses.
    pub(crate) fn of_times(
        case: impl Into<String>,
        ours: Duration,
        peer_name: &str,
        peer: Duration,
        ratio_max: Option<f64>,
    ) -> Self {
        let ratio = ours.div_duration_f64(peer);
        Self {
            case: case.into(),
            ours: readable(ours),
            peer: format!("{peer_name} {}", readable(peer)),
            ratio: Some(ratio),
            target: ratio_max.map(|max| (format!("≤ {max:.2}"), ratio <= max)),
        }
    }

    /// States a figure beside its target.
    pub(crate) fn of_figure(
        case: impl Into<String>,
        ours: impl Into<String>,
        target: &str,
        met: bool,
    ) -> Self {
        let target = Some((target.to_owned(), met));
        Self { case: case.into(), ours: ours.into(), peer: String::new(), ratio: None, target }
    }

    pub(crate) fn misses_its_target(&self) -> bool {
        self.target.as_ref().is_some_and(|(_, met)| !met)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, ours, peer, .. } = self;
        let ratio = match self.ratio {
            None => String::new(),
            Some(small) if small < 0.01 => "< 0.01".into(),
            Some(ratio) => format!("{ratio:.2}"),
        };
        let target = match &self.target {
            None => String::new(),
            Some((target, true)) => format!("{target}, met"),
            Some((target, false)) => format!("{target}, **missed**"),
        };
        write!(f, "| {case} | {ours} | {peer} | {ratio} | {target} |")
    }
}

/// Formats a duration for readers: with two decimals below 10 µs, and otherwise with none.
pub(crate) fn readable(duration: Duration) -> String {
    let us = duration.as_secs_f64() * 1e6;
    match us {
        ..10.0 => format!("{us:.2} µs"),
        ..10_000.0 => format!("{us:.0} µs"),
        _ => format!("{:.0} ms", us / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours_ns: u64, ratio_max: Option<f64>) -> Row {
        let (ours, peer) = (Duration::from_nanos(ours_ns), Duration::from_micros(100));
        Row::of_times("RELEASE", ours, "script", peer, ratio_max)
    }

    #[test]
    fn ratio_above_its_target_misses_even_if_it_prints_as_the_target() {
        assert!(!row(125_000, Some(1.25)).misses_its_target());
        let above = row(125_001, Some(1.25));
        assert!(above.misses_its_target());
        assert_eq!(
            above.to_string(),
            "| RELEASE | 125 µs | script 100 µs | 1.25 | ≤ 1.25, **missed** |"
        );
        assert!(!row(1_000_000, None).misses_its_target());
    }

    #[test]
    fn unmeasured_row_misses_its_target() {
        let nothing = Row::of_times("RELEASE", Duration::ZERO, "", Duration::ZERO, Some(1.25));
        assert!(nothing.misses_its_target());
    }
}
