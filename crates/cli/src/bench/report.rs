use std::io::{Write as _, stdout};
use std::time::Duration;

use hdrhistogram::Histogram;
use quorlock_client::AcquireError;
use serde::Serialize;

use crate::output::{self, escape, with_plural};

/// 10 minutes: the longest time that the histogram records.
const LONGEST_NS: u64 = 600_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

pub(super) struct Report {
    pub(super) nodes: usize,
    pub(super) tasks: u16,
    pub(super) parts: Vec<Measurements>,
}

/// The measurements of a part of the benchmark (without contention, or with it), or of one task.
pub(super) struct Measurements {
    name: &'static str,
    pub(super) took: Duration,
    /// How many acquisitions and releases failed.
    pub(super) failed: u64,
    /// The last error of an acquisition, or that of the task which ended last.
    error: Option<String>,
    acquire: Histogram<u64>,
    release: Histogram<u64>,
}

#[derive(Serialize)]
struct JsonReport<'a> {
    nodes: usize,
    tasks: u16,
    parts: Vec<JsonPart<'a>>,
}

#[derive(Serialize)]
struct JsonPart<'a> {
    name: &'a str,
    seconds: f64,
    locks: u64,
    locks_per_second: f64,
    failed: u64,
    last_error: Option<&'a str>,
    acquire_us: Percentiles,
    release_us: Percentiles,
}

#[derive(Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    p99_9: f64,
    max: f64,
}

impl Measurements {
    pub(super) fn new(name: &'static str) -> Self {
        let histogram =
            Histogram::new_with_max(LONGEST_NS, SIGNIFICANT_DIGITS).expect("the bounds are valid");
        Self {
            name,
            took: Duration::ZERO,
            failed: 0,
            error: None,
            acquire: histogram.clone(),
            release: histogram,
        }
    }

    pub(super) fn record(&mut self, acquire: Duration, release: Duration) {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.acquire.saturating_record(ns(acquire));
        self.release.saturating_record(ns(release));
    }

    pub(super) fn record_error(&mut self, error: &AcquireError) {
        self.failed += 1;
        self.error = Some(error.to_string());
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.failed += other.failed;
        self.error = other.error.clone().or(self.error.take());
        self.acquire.add(&other.acquire).expect("both have the same bounds");
        self.release.add(&other.release).expect("both have the same bounds");
    }

    fn to_json(&self) -> JsonPart<'_> {
        JsonPart {
            name: self.name,
            seconds: self.took.as_secs_f64(),
            locks: self.acquire.len(),
            locks_per_second: self.locks_per_second(),
            failed: self.failed,
            last_error: self.error.as_deref(),
            acquire_us: Percentiles::of(&self.acquire),
            release_us: Percentiles::of(&self.release),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate is shown with few digits")]
    fn locks_per_second(&self) -> f64 {
        self.acquire.len() as f64 / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

impl Report {
    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        let text = if json { output::json(&self.to_json())? } else { self.to_table() };
        writeln!(stdout(), "{}", text.trim_end())?;
        Ok(())
    }

    fn to_json(&self) -> JsonReport<'_> {
        JsonReport {
            nodes: self.nodes,
            tasks: self.tasks,
            parts: self.parts.iter().map(Measurements::to_json).collect(),
        }
    }

    fn to_table(&self) -> String {
        let mut lines = vec![
            format!(
                "{}, {}; times in ms",
                with_plural(self.nodes as u64, "node"),
                with_plural(self.tasks.into(), "task")
            ),
            format!(
                "{:12} {:>9}  {:8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}",
                "", "locks/s", "", "p50", "p90", "p99", "p99.9", "max", "failed"
            ),
        ];
        for part in &self.parts {
            let rate = format!("{:.0}", part.locks_per_second());
            let failed = part.failed.to_string();
            let rows = [
                (part.name, rate.as_str(), "acquire", &part.acquire, failed.as_str()),
                ("", "", "release", &part.release, ""),
            ];
            for (name, rate, operation, histogram, failed) in rows {
                let Percentiles { p50, p90, p99, p99_9, max } = Percentiles::of(histogram);
                let ms =
                    [p50, p90, p99, p99_9, max].map(|us| format!("{:>9.3}", us / 1000.0)).join(" ");
                lines.push(
                    format!("{name:12} {rate:>9}  {operation:8} {ms} {failed:>7}")
                        .trim_end()
                        .to_owned(),
                );
            }
            lines.extend(
                part.error.as_ref().map(|error| format!("  last error: {}", escape(error))),
            );
        }
        lines.join("\n")
    }
}

impl Percentiles {
    #[expect(clippy::cast_precision_loss, reason = "the times are far below 2^52 ns")]
    fn of(histogram: &Histogram<u64>) -> Self {
        let us = |ns: u64| ns as f64 / 1000.0;
        let at = |quantile| us(histogram.value_at_quantile(quantile));
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: us(histogram.max()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_error_cannot_control_the_terminal() {
        let mut part = Measurements::new("contended");
        part.error = Some("\u{1b}[2J\u{9b}31m".into());
        let report = Report { nodes: 1, tasks: 1, parts: vec![part] };
        for text in [report.to_table(), output::json(&report.to_json()).unwrap()] {
            assert!(text.contains("[2J"), "{text:?}");
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        }
    }
}
