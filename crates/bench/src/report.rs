//! What a run shows: progress on stderr, and its figures on stdout, as Markdown.

use std::cmp::Ordering;
use std::fmt;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The times of one operation with Quorlock and with a peer.
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) ours: Duration,
    pub(crate) peer_name: &'static str,
    pub(crate) peer: Duration,
    /// The largest allowed ratio of these times, if there is one.
    pub(crate) target: Option<f64>,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours.div_duration_f64(self.peer)
    }

    /// Returns whether the exact ratio, and not the printed one, is larger than the target.
    ///
    /// A ratio that is not a number misses its target.
    pub(crate) fn misses_its_target(&self) -> bool {
        self.target
            .is_some_and(|target| self.ratio().partial_cmp(&target).is_none_or(Ordering::is_gt))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, peer_name, .. } = self;
        let (ours, peer) = (readable(self.ours), readable(self.peer));
        let ratio = match self.ratio() {
            small if small < 0.01 => "< 0.01".into(),
            ratio => format!("{ratio:.2}"),
        };
        let target = match self.target {
            None => String::new(),
            Some(target) if self.misses_its_target() => format!("≤ {target:.2}, **missed**"),
            Some(target) => format!("≤ {target:.2}, met"),
        };
        write!(f, "| {case} | {ours} | {peer_name} {peer} | {ratio} | {target} |")
    }
}

/// One figure beside its target.
pub(crate) struct TargetRow {
    pub(crate) case: String,
    /// The figure, for readers.
    pub(crate) measured: String,
    /// The target, for readers.
    pub(crate) target: &'static str,
    pub(crate) met: bool,
}

impl fmt::Display for TargetRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, measured, target, met } = self;
        let met = if *met { "met" } else { "**missed**" };
        write!(f, "| {case} | {measured} | {target} | {met} |")
    }
}

/// Formats ratios to peers as a table in Markdown.
pub(crate) fn peer_table(rows: &[Row]) -> String {
    table("| case | ours | peer | ratio | target |\n|---|--:|--:|--:|---|", rows)
}

/// Formats figures beside their targets as a table in Markdown.
pub(crate) fn target_table(rows: &[TargetRow]) -> String {
    table("| case | measured | target | |\n|---|---|---|---|", rows)
}

fn table(header: &str, rows: &[impl fmt::Display]) -> String {
    let lines: Vec<_> = rows.iter().map(ToString::to_string).collect();
    format!("{header}\n{}\n", lines.join("\n"))
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

/// Progress of the run: a bar on stderr, or a line for each part if stderr is not a terminal.
#[derive(Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn new(steps: u64) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {elapsed:>4}  {msg}")
            .expect("the template is valid");
        Self { bar: ProgressBar::new(steps).with_style(style) }
    }

    /// Shows the name of the next part.
    pub(crate) fn begin(&self, what: &'static str) {
        if self.bar.is_hidden() {
            eprintln!("{what} …");
        }
        self.bar.set_message(what);
    }

    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Returns the median: with an even number of values, the mean of the two in the middle.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours_us: u64, target: Option<f64>) -> Row {
        let (ours, peer) = (Duration::from_micros(ours_us), Duration::from_micros(100));
        Row { case: "RELEASE".into(), ours, peer_name: "script", peer, target }
    }

    #[test]
    fn ratio_above_its_target_misses_even_if_it_prints_as_the_target() {
        assert!(!row(125, Some(1.25)).misses_its_target());
        let above = Row { ours: Duration::from_nanos(125_001), ..row(125, Some(1.25)) };
        assert!(above.misses_its_target());
        assert_eq!(
            above.to_string(),
            "| RELEASE | 125 µs | script 100 µs | 1.25 | ≤ 1.25, **missed** |"
        );
        assert!(!row(1000, None).misses_its_target());
    }

    #[test]
    fn unmeasured_row_misses_its_target() {
        let nothing = Row { ours: Duration::ZERO, peer: Duration::ZERO, ..row(0, Some(1.25)) };
        assert!(nothing.misses_its_target());
    }
}
