//! What a run shows: how far it has come, on stderr, and its figures, on stdout, as Markdown.

use std::cmp::Ordering;
use std::fmt;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// What was measured, as a table in markdown.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

/// One thing that was measured side by side with another.
pub(crate) struct Row {
    /// What was done.
    pub(crate) case: String,
    /// How long it took with Quorlock.
    pub(crate) ours: Duration,
    /// With what it is compared.
    pub(crate) peer_name: &'static str,
    /// How long it took there.
    pub(crate) peer: Duration,
    /// The largest ratio that is good enough, where one is asked for.
    pub(crate) target: Option<f64>,
}

impl Row {
    /// How many times as long it took with Quorlock.
    fn ratio(&self) -> f64 {
        self.ours.as_secs_f64() / self.peer.as_secs_f64()
    }

    /// To be met by the ratio as it is, not as it is printed. One that is not a number is none.
    fn misses_its_target(&self) -> bool {
        self.target.is_some_and(|target| self.ratio().partial_cmp(&target).is_none_or(Ordering::is_gt))
    }
}

impl Table {
    /// Adds rows at the end.
    pub(crate) fn extend(&mut self, rows: Vec<Row>) {
        self.rows.extend(rows);
    }

    /// Whether nothing was measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether any row is not as good as it should be.
    pub(crate) fn misses_a_target(&self) -> bool {
        self.rows.iter().any(Row::misses_its_target)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| case | ours | peer | ratio | target |")?;
        writeln!(f, "|---|--:|--:|--:|---|")?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
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

/// A table in markdown.
#[derive(Default)]
pub(crate) struct Limits {
    rows: Vec<Limit>,
}

/// One thing that was measured, beside what it should be.
pub(crate) struct Limit {
    /// What was done.
    pub(crate) case: String,
    /// What came of it, for people.
    pub(crate) measured: String,
    /// What is good enough, for people.
    pub(crate) target: &'static str,
    /// Whether it is good enough.
    pub(crate) met: bool,
}

impl Limits {
    /// Adds rows at the end.
    pub(crate) fn extend(&mut self, rows: impl IntoIterator<Item = Limit>) {
        self.rows.extend(rows);
    }

    /// Whether nothing was measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether any row is not as good as it should be.
    pub(crate) fn misses_a_target(&self) -> bool {
        self.rows.iter().any(|row| !row.met)
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| case | measured | target | |")?;
        writeln!(f, "|---|---|---|---|")?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, measured, target, met } = self;
        let met = if *met { "met" } else { "**missed**" };
        write!(f, "| {case} | {measured} | {target} | {met} |")
    }
}

/// A duration with about three digits.
pub(crate) fn readable(duration: Duration) -> String {
    let us = duration.as_secs_f64() * 1e6;
    match us {
        ..10.0 => format!("{us:.2} µs"),
        ..10_000.0 => format!("{us:.0} µs"),
        _ => format!("{:.0} ms", us / 1000.0),
    }
}

/// How far the run has come: a bar on stderr, and nothing where that is not a terminal but for a line for each part.
#[derive(Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Begins a run of so many steps.
    pub(crate) fn new(steps: u64) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {elapsed:>4}  {msg}")
            .expect("the template is right");
        Self { bar: ProgressBar::new(steps).with_style(style) }
    }

    /// Says what is measured from now on.
    pub(crate) fn begin(&self, what: &'static str) {
        if self.bar.is_hidden() {
            eprintln!("{what} …");
        }
        self.bar.set_message(what);
    }

    /// One more step is done.
    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
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
    fn a_ratio_above_its_target_is_missed_also_when_it_is_printed_the_same() {
        assert!(!row(125, Some(1.25)).misses_its_target());
        let above = Row { ours: Duration::from_nanos(125_001), ..row(125, Some(1.25)) };
        assert!(above.misses_its_target());
        assert_eq!(above.to_string(), "| RELEASE | 125 µs | script 100 µs | 1.25 | ≤ 1.25, **missed** |");
        assert!(!row(1000, None).misses_its_target());
    }

    #[test]
    fn what_was_never_measured_misses_its_target() {
        let nothing = Row { ours: Duration::ZERO, peer: Duration::ZERO, ..row(0, Some(1.25)) };
        assert!(nothing.misses_its_target());
    }
}
