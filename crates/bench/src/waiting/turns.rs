//! Who had a lock when, and what follows from it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use quorlock_faults::harness::{Grant, disorders, overlaps};

/// One lock, from the request to the release, as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Before the request.
    pub(crate) asked: Duration,
    /// After the grant, and before the release.
    pub(crate) grant: Grant,
}

/// One line of a client's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Turn(Turn),
    /// The client was still waiting at the end.
    Unserved {
        asked: Duration,
        ended: Duration,
    },
    /// An operation failed.
    Failed {
        at: Duration,
        what: String,
    },
}

/// All that one client did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    pub(crate) turns: Vec<Turn>,
    /// The start and the end of a wait that was not served.
    unserved: Option<(Duration, Duration)>,
    failures: Vec<(Duration, String)>,
}

/// What all clients of one lock did.
pub(crate) struct Course {
    pub(crate) accounts: Vec<Account>,
    /// In the order of their grants.
    turns: Vec<Turn>,
}

impl Account {
    /// The account of a client that had the lock once.
    pub(crate) fn of(turn: Turn) -> Self {
        Self { turns: vec![turn], ..Self::default() }
    }

    pub(crate) fn add(&mut self, told: Told) {
        match told {
            Told::Turn(turn) => self.turns.push(turn),
            Told::Unserved { asked, ended } => self.unserved = Some((asked, ended)),
            Told::Failed { at, what } => self.failures.push((at, what)),
        }
    }

    /// The lines of its report.
    pub(crate) fn told(self) -> impl Iterator<Item = Told> {
        let Self { turns, unserved, failures } = self;
        let turns = turns.into_iter().map(Told::Turn);
        let unserved = unserved.map(|(asked, ended)| Told::Unserved { asked, ended });
        let failures = failures.into_iter().map(|(at, what)| Told::Failed { at, what });
        turns.chain(unserved).chain(failures)
    }

    /// The duration of each wait, also of one that was not served.
    pub(crate) fn waits(&self) -> impl Iterator<Item = Duration> {
        let served = self.turns.iter().map(|turn| turn.grant.from.saturating_sub(turn.asked));
        served.chain(self.unserved.map(|(asked, ended)| ended.saturating_sub(asked)))
    }
}

impl Course {
    pub(crate) fn new(accounts: Vec<Account>) -> Self {
        let mut turns: Vec<_> =
            accounts.iter().flat_map(|account| account.turns.iter().cloned()).collect();
        turns.sort_unstable_by_key(|turn| turn.grant.from);
        Self { accounts, turns }
    }

    /// The first failure of any client.
    pub(crate) fn first_failure(&self) -> Option<&str> {
        self.accounts
            .iter()
            .flat_map(|account| &account.failures)
            .next()
            .map(|(_, what)| what.as_str())
    }

    pub(crate) fn require_no_failure(self) -> anyhow::Result<Self> {
        match self.first_failure() {
            Some(failure) => bail!("a client failed: {failure}"),
            None => Ok(self),
        }
    }

    /// The number of grants between two moments.
    pub(crate) fn grants_between(&self, from: Duration, to: Duration) -> u64 {
        self.turns.iter().filter(|turn| (from..to).contains(&turn.grant.from)).count() as u64
    }

    /// The time of each handover, from the holder's release to the grant of the next client.
    ///
    /// Only handovers to a client that already waited when the release began.
    pub(crate) fn handovers(&self) -> impl Iterator<Item = Duration> {
        self.pairs().filter(|(last, next)| next.asked < last.grant.to).map(Self::between)
    }

    /// The longest time from a release to the next grant between two moments.
    pub(crate) fn longest_stall_between(&self, from: Duration, to: Duration) -> Duration {
        let last = self.turns.iter().rfind(|turn| turn.grant.from < to);
        let at_the_end = to.saturating_sub(last.map_or(from, |turn| turn.grant.to.max(from)));
        let pairs = self
            .pairs()
            .filter(|(_, next)| (from..to).contains(&next.grant.from))
            .map(Self::between);
        pairs.chain([at_the_end]).max().unwrap_or_default()
    }

    /// How often a client was granted the lock before its last holder began to release it, or
    /// with a fence that is not larger. Peers without fences report 0.
    pub(crate) fn double_grants(&self) -> usize {
        let grants: Vec<_> = self.turns.iter().map(|turn| turn.grant.clone()).collect();
        let fenced: Vec<_> = grants.iter().filter(|grant| grant.fence > 0).cloned().collect();
        overlaps(&grants).len() + disorders(&fenced).len()
    }

    fn pairs(&self) -> impl Iterator<Item = (&Turn, &Turn)> {
        self.turns.iter().zip(self.turns.iter().skip(1))
    }

    fn between((last, next): (&Turn, &Turn)) -> Duration {
        next.grant.from.saturating_sub(last.grant.to)
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Turn(Turn { asked, grant }) => write!(f, "turn {} {grant}", asked.as_nanos()),
            Self::Unserved { asked, ended } => {
                write!(f, "unserved {} {}", asked.as_nanos(), ended.as_nanos())
            }
            Self::Failed { at, what } => {
                write!(f, "failed {} {}", at.as_nanos(), what.replace('\n', " "))
            }
        }
    }
}

impl FromStr for Told {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let mut words = line.splitn(2, ' ');
        let (what, rest) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let numbers = || -> anyhow::Result<Vec<u64>> {
            rest.split(' ')
                .map(|word| word.parse().with_context(|| format!("not a number: {word}")))
                .collect()
        };
        let time = Duration::from_nanos;
        match what {
            "turn" => {
                let (asked, grant) = rest.split_once(' ').context("no grant")?;
                Ok(Self::Turn(Turn { asked: time(asked.parse()?), grant: grant.parse()? }))
            }
            "unserved" => match numbers()?[..] {
                [asked, ended] => Ok(Self::Unserved { asked: time(asked), ended: time(ended) }),
                _ => bail!("not two numbers: {line}"),
            },
            "failed" => {
                let (at, what) = rest.split_once(' ').context("no reason")?;
                Ok(Self::Failed { at: time(at.parse()?), what: what.to_owned() })
            }
            _ => bail!("unexpected line of a client: {line}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(asked_ms: u64, got_ms: u64, releasing_ms: u64, fence: u64) -> Turn {
        let [asked, from, to] = [asked_ms, got_ms, releasing_ms].map(Duration::from_millis);
        Turn { asked, grant: Grant { key: "orders/42".into(), client: 1, from, to, fence } }
    }

    fn course(turns: [&[Turn]; 2]) -> Course {
        Course::new(
            turns.map(|turns| Account { turns: turns.to_vec(), ..Account::default() }).into(),
        )
    }

    #[test]
    fn displayed_lines_are_parsed_again() {
        let at = Duration::from_nanos(7);
        let told = [
            Told::Turn(turn(1, 2, 3, 4)),
            Told::Unserved { asked: at, ended: at * 2 },
            Told::Failed { at, what: "no node answers".into() },
        ];
        for told in told {
            assert_eq!(told.to_string().parse::<Told>().unwrap(), told);
        }
        assert!("turn 1 2 3".parse::<Told>().is_err());
        assert!("thread panicked".parse::<Told>().is_err());
    }

    #[test]
    fn handover_lasts_from_release_to_grant_of_a_waiter() {
        let course = course([&[turn(0, 1, 10, 1), turn(30, 31, 40, 3)], &[turn(2, 12, 20, 2)]]);
        assert_eq!(
            course.handovers().collect::<Vec<_>>(),
            [Duration::from_millis(2)],
            "no client waited at 20"
        );
        let stall_between = |from, to| {
            course.longest_stall_between(Duration::from_millis(from), Duration::from_millis(to))
        };
        assert_eq!(stall_between(0, 40), Duration::from_millis(11));
        assert_eq!(stall_between(15, 30), Duration::from_millis(10), "free at the end");
        assert_eq!(stall_between(50, 60), Duration::from_millis(10), "free all the time");
        assert_eq!(course.double_grants(), 0);
    }

    #[test]
    fn overlaps_and_fences_that_do_not_grow_are_noticed() {
        assert_eq!(course([&[turn(0, 1, 10, 1)], &[turn(0, 9, 20, 2)]]).double_grants(), 1);
        assert_eq!(course([&[turn(0, 1, 10, 2)], &[turn(0, 11, 20, 2)]]).double_grants(), 1);
        assert_eq!(
            course([&[turn(0, 1, 10, 0)], &[turn(0, 11, 20, 0)]]).double_grants(),
            0,
            "no fences"
        );
    }

    #[test]
    fn unserved_wait_counts_as_a_wait() {
        let mut account = Account { turns: vec![turn(0, 5, 6, 1)], ..Account::default() };
        account.add(Told::Unserved {
            asked: Duration::from_millis(6),
            ended: Duration::from_millis(60),
        });
        assert_eq!(account.waits().max(), Some(Duration::from_millis(54)));
    }
}
