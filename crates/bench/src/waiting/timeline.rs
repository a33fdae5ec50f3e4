//! Which client held a lock at which time, and the figures that follow from it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use quorlock_faults::harness::{Grant, disorders, overlaps};

/// A lock from the request to the release, as its client saw it, by the clock of [`Grant`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acquisition {
    /// A moment before the request.
    pub(crate) asked: Duration,
    /// From a moment after the grant to a moment before the release.
    pub(crate) grant: Grant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReportLine {
    Acquired(Acquisition),
    /// The client was still waiting at the end.
    Unserved {
        asked: Duration,
        ended: Duration,
    },
    /// An operation failed, for this reason.
    Failed(String),
}

/// What one client did.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientReport {
    pub(crate) acquisitions: Vec<Acquisition>,
    /// The start and the end of a wait that was not served.
    unserved: Option<(Duration, Duration)>,
    failures: Vec<String>,
}

/// What all clients of one lock did.
pub(crate) struct Timeline {
    pub(crate) reports: Vec<ClientReport>,
    /// The acquisitions of all clients, in the order of their grants.
    acquisitions: Vec<Acquisition>,
}

impl ClientReport {
    /// Returns the report of a client that held the lock once.
    pub(crate) fn of(acquisition: Acquisition) -> Self {
        Self { acquisitions: vec![acquisition], ..Self::default() }
    }

    pub(crate) fn add(&mut self, line: ReportLine) {
        match line {
            ReportLine::Acquired(acquisition) => self.acquisitions.push(acquisition),
            ReportLine::Unserved { asked, ended } => self.unserved = Some((asked, ended)),
            ReportLine::Failed(why) => self.failures.push(why),
        }
    }

    pub(crate) fn lines(self) -> impl Iterator<Item = ReportLine> {
        let Self { acquisitions, unserved, failures } = self;
        let acquisitions = acquisitions.into_iter().map(ReportLine::Acquired);
        let unserved = unserved.map(|(asked, ended)| ReportLine::Unserved { asked, ended });
        let failures = failures.into_iter().map(ReportLine::Failed);
        acquisitions.chain(unserved).chain(failures)
    }

    /// Returns the duration of each wait, including one that was not served.
    pub(crate) fn waits(&self) -> impl Iterator<Item = Duration> {
        let served = self
            .acquisitions
            .iter()
            .map(|acquisition| acquisition.grant.from.saturating_sub(acquisition.asked));
        served.chain(self.unserved.map(|(asked, ended)| ended.saturating_sub(asked)))
    }
}

impl Timeline {
    pub(crate) fn new(reports: Vec<ClientReport>) -> Self {
        let mut acquisitions: Vec<_> =
            reports.iter().flat_map(|report| report.acquisitions.iter().cloned()).collect();
        acquisitions.sort_unstable_by_key(|acquisition| acquisition.grant.from);
        Self { reports, acquisitions }
    }

    /// Returns `None` if no client failed.
    pub(crate) fn any_failure(&self) -> Option<&str> {
        self.reports.iter().flat_map(|report| &report.failures).next().map(String::as_str)
    }

    pub(crate) fn require_no_failure(self) -> anyhow::Result<Self> {
        match self.any_failure() {
            Some(failure) => bail!("a client failed: {failure}"),
            None => Ok(self),
        }
    }

    pub(crate) fn grants_between(&self, from: Duration, to: Duration) -> u64 {
        self.acquisitions
            .iter()
            .filter(|acquisition| (from..to).contains(&acquisition.grant.from))
            .count() as u64
    }

    /// Returns the duration of each handover, from a release to the grant of the next client.
    ///
    /// Counts only handovers to a client that already waited when the release began.
    pub(crate) fn handovers(&self) -> impl Iterator<Item = Duration> {
        self.pairs().filter(|(last, next)| next.asked < last.grant.to).map(Self::between)
    }

    /// Returns the longest time from a release to the next grant, for grants between two moments.
    ///
    /// If the lock is free at `to`, the time since its release, or since `from`, counts too.
    pub(crate) fn longest_stall_between(&self, from: Duration, to: Duration) -> Duration {
        let last = self.acquisitions.iter().rfind(|acquisition| acquisition.grant.from < to);
        let at_the_end =
            to.saturating_sub(last.map_or(from, |acquisition| acquisition.grant.to.max(from)));
        let pairs = self
            .pairs()
            .filter(|(_, next)| (from..to).contains(&next.grant.from))
            .map(Self::between);
        pairs.chain([at_the_end]).max().unwrap_or_default()
    }

    /// Returns the number of pairs of grants that overlap, plus the number of grants whose fence is
    /// not larger than the largest earlier fence.
    ///
    /// Clients without fences report the fence 0, which is not compared.
    pub(crate) fn violations(&self) -> usize {
        let grants: Vec<_> =
            self.acquisitions.iter().map(|acquisition| acquisition.grant.clone()).collect();
        let fenced: Vec<_> = grants.iter().filter(|grant| grant.fence > 0).cloned().collect();
        overlaps(&grants).len() + disorders(&fenced).len()
    }

    fn pairs(&self) -> impl Iterator<Item = (&Acquisition, &Acquisition)> {
        self.acquisitions.iter().zip(self.acquisitions.iter().skip(1))
    }

    fn between((last, next): (&Acquisition, &Acquisition)) -> Duration {
        next.grant.from.saturating_sub(last.grant.to)
    }
}

impl fmt::Display for ReportLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquired(Acquisition { asked, grant }) => {
                write!(f, "acquired {} {grant}", asked.as_nanos())
            }
            Self::Unserved { asked, ended } => {
                write!(f, "unserved {} {}", asked.as_nanos(), ended.as_nanos())
            }
            Self::Failed(why) => write!(f, "failed {}", why.replace('\n', " ")),
        }
    }
}

impl FromStr for ReportLine {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        let time = Duration::from_nanos;
        match what {
            "acquired" => {
                let (asked, grant) = rest
                    .split_once(' ')
                    .with_context(|| format!("no grant in the line: {line}"))?;
                let (asked, grant) = (time(asked.parse()?), grant.parse()?);
                Ok(Self::Acquired(Acquisition { asked, grant }))
            }
            "unserved" => {
                let (asked, ended) =
                    rest.split_once(' ').with_context(|| format!("not two numbers: {line}"))?;
                Ok(Self::Unserved { asked: time(asked.parse()?), ended: time(ended.parse()?) })
            }
            "failed" => Ok(Self::Failed(rest.to_owned())),
            _ => bail!("unexpected line of a client: {line}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquisition(asked_ms: u64, from_ms: u64, to_ms: u64, fence: u64) -> Acquisition {
        let [asked, from, to] = [asked_ms, from_ms, to_ms].map(Duration::from_millis);
        Acquisition { asked, grant: Grant { key: "orders/42".into(), client: 1, from, to, fence } }
    }

    fn timeline(acquisitions: [&[Acquisition]; 2]) -> Timeline {
        Timeline::new(
            acquisitions
                .map(|acquisitions| ClientReport {
                    acquisitions: acquisitions.to_vec(),
                    ..ClientReport::default()
                })
                .into(),
        )
    }

    #[test]
    fn report_lines_survive_display_and_parse() {
        let at = Duration::from_nanos(7);
        let lines = [
            ReportLine::Acquired(acquisition(1, 2, 3, 4)),
            ReportLine::Unserved { asked: at, ended: at * 2 },
            ReportLine::Failed("no node answers".into()),
        ];
        for line in lines {
            assert_eq!(line.to_string().parse::<ReportLine>().unwrap(), line);
        }
        assert!("acquired 1 2 3".parse::<ReportLine>().is_err());
        assert!("thread panicked".parse::<ReportLine>().is_err());
    }

    #[test]
    fn handover_lasts_from_release_to_grant_of_a_waiter() {
        let timeline = timeline([
            &[acquisition(0, 1, 10, 1), acquisition(30, 31, 40, 3)],
            &[acquisition(2, 12, 20, 2)],
        ]);
        assert_eq!(
            timeline.handovers().collect::<Vec<_>>(),
            [Duration::from_millis(2)],
            "no client waited at 20"
        );
        let stall_between = |from, to| {
            timeline.longest_stall_between(Duration::from_millis(from), Duration::from_millis(to))
        };
        assert_eq!(stall_between(0, 40), Duration::from_millis(11));
        assert_eq!(stall_between(15, 30), Duration::from_millis(10), "free at the end");
        assert_eq!(stall_between(50, 60), Duration::from_millis(10), "free all the time");
        assert_eq!(timeline.violations(), 0);
    }

    #[test]
    fn violations_are_overlaps_and_fences_that_do_not_grow() {
        let violations =
            |first: Acquisition, second: Acquisition| timeline([&[first], &[second]]).violations();
        assert_eq!(violations(acquisition(0, 1, 10, 1), acquisition(0, 9, 20, 2)), 1);
        assert_eq!(violations(acquisition(0, 1, 10, 2), acquisition(0, 11, 20, 2)), 1);
        let without_fences = violations(acquisition(0, 1, 10, 0), acquisition(0, 11, 20, 0));
        assert_eq!(without_fences, 0);
    }

    #[test]
    fn unserved_wait_counts_as_a_wait() {
        let mut report = ClientReport::of(acquisition(0, 5, 6, 1));
        let [asked, ended] = [6, 60].map(Duration::from_millis);
        report.add(ReportLine::Unserved { asked, ended });
        assert_eq!(report.waits().max(), Some(Duration::from_millis(54)));
    }
}
