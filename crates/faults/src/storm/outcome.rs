use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::clients::Record;
use super::{Course, Kind, PERMITS, Plan};
use crate::Protected;
use crate::history::{Hold, Mode, disorders, longest_gap, most_at_once, overlaps};

/// Longest allowed wait of a writer without accidents, as a multiple of the mean.
const WAIT_RATIO_MAX: f64 = 3.0;
/// Longest allowed time without a grant while single nodes are down or paused.
const STALL_MAX: Duration = Duration::from_secs(2);
/// Longest allowed time without a grant in a storm of [`Kind::Fences`]. Each accident hits one
/// node, but accidents of several nodes may coincide, so that no majority votes for some
/// seconds.
const OUTAGE_MAX: Duration = Duration::from_secs(15);
/// Longest allowed wait of a client while single nodes are down or paused.
const STALLED_WAIT_MAX: Duration = Duration::from_secs(3);
/// Smallest allowed rate of locks without one node, as a fraction of the rate with all.
const WITHOUT_ONE_MIN: f64 = 0.8;

/// How often each of several things happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<&'static str, usize>);

impl Counts {
    pub(super) fn add(&mut self, what: &'static str, times: usize) {
        if times > 0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<_> = self.0.iter().map(|(what, times)| format!("{times} {what}")).collect();
        f.write_str(if each.is_empty() { "none" } else { "" })?;
        f.write_str(&each.join(", "))
    }
}

/// The result of a storm. `Display` writes some lines.
#[derive(Debug)]
pub struct Outcome {
    pub plan: Plan,
    pub record: Record,
    took: Duration,
    /// The longest time without a grant.
    pub longest_gap: Duration,
    /// The most holders at the same time: of all that may share.
    pub most_at_once: usize,
    /// Violations that no accident excuses.
    pub harm: Vec<String>,
}

/// Returns the violations in a history: for a baseline, the harm that it must show.
pub(super) fn harm(plan: Plan, holds: &[Hold]) -> Vec<String> {
    let is_protected = plan.protected == Protected::Yes;
    let mut harm = Vec::new();
    if is_protected || matches!(plan.kind, Kind::Exclusive | Kind::Shared) {
        harm.extend(overlaps(holds));
    }
    let holders = most_at_once(holds.iter());
    if plan.kind == Kind::Permits && holders > PERMITS {
        harm.push(format!("{holders} clients held {PERMITS} permits at the same time"));
    }
    // In a storm of exclusive locks, nodes start with wrong clocks, on which fences rely.
    if plan.kind == Kind::Fences || is_protected && plan.kind != Kind::Exclusive {
        harm.extend(disorders(holds));
    }
    harm
}

impl Outcome {
    pub(super) fn new(plan: Plan, record: Record, ended: Duration) -> Self {
        let holds = &record.holds;
        let may_share = |hold: &&Hold| plan.kind == Kind::Permits || hold.mode == Mode::Shared;
        Self {
            plan,
            took: ended.saturating_sub(record.began),
            longest_gap: longest_gap(holds, record.began, ended),
            most_at_once: most_at_once(holds.iter().filter(may_share)),
            harm: harm(plan, holds),
            record,
        }
    }

    /// Returns the mean and the longest wait of writers, or of clients of the semaphore.
    fn waits(&self) -> (Duration, Duration) {
        let waits = &self.record.waits;
        let number = u32::try_from(waits.len().max(1)).unwrap_or(u32::MAX);
        (waits.iter().sum::<Duration>() / number, waits.iter().max().copied().unwrap_or_default())
    }

    /// Returns the longest wait as a multiple of the mean; infinite if no call waited.
    fn wait_ratio(&self) -> f64 {
        let (mean, longest) = self.waits();
        if mean.is_zero() { f64::INFINITY } else { longest.as_secs_f64() / mean.as_secs_f64() }
    }

    #[expect(clippy::cast_precision_loss, reason = "there are few nodes")]
    fn mean_without_one(&self) -> f64 {
        let rates = &self.record.without_one;
        rates.iter().sum::<f64>() / rates.len() as f64
    }

    /// Returns what is wrong with the storm.
    ///
    /// For a baseline, that is the absence of harm. Otherwise it is harm, a storm in which no two
    /// clients shared a lock that can be shared, and a storm without the planned accidents. Unless
    /// accidents are random, calls without a lock, long waits and a low rate are wrong too.
    pub fn complaints(&self) -> Vec<String> {
        let Plan { kind, course, seed, protected, .. } = self.plan;
        let without_harm = protected == Protected::No && self.harm.is_empty();
        let mut found = vec![
            (self.record.holds.is_empty(), "no lock was granted: the storm proves nothing".into()),
            (without_harm, "no harm without the protection: the storm proves nothing".into()),
        ];
        if protected == Protected::Yes {
            found.extend(
                self.harm.iter().take(1).map(|harm| (true, format!("{harm}; seed {seed}"))),
            );
            let lacks_accidents = course != Course::Calm && self.record.accidents.is_empty();
            let is_alone = matches!(kind, Kind::Shared | Kind::Permits) && self.most_at_once < 2;
            let is_orderly = self.plan.is_orderly();
            let (ratio, failed) = (self.wait_ratio(), &self.record.failed_calls);
            let is_unfair =
                kind == Kind::Shared && course == Course::Calm && ratio > WAIT_RATIO_MAX;
            found.extend([
                (lacks_accidents, "no accident was injected: the storm proves nothing".into()),
                (is_alone, "no two holders at the same time: the storm proves nothing".into()),
                (is_orderly && !failed.is_empty(), format!("calls without a lock: {failed}")),
                (is_unfair, format!("a writer waited {ratio:.1} × the mean")),
            ]);
            let (gap, (_, wait)) = (self.longest_gap, self.waits());
            let no_lock = format!("no lock was granted for {gap:?}");
            if matches!(course, Course::OneDown | Course::OnePaused) {
                let rate = self.mean_without_one();
                found.extend([
                    (gap > STALL_MAX, no_lock),
                    (wait > STALLED_WAIT_MAX, format!("a client waited for {wait:?}")),
                    (rate < WITHOUT_ONE_MIN, format!("only {rate:.2} × as many locks without one")),
                ]);
            } else if kind == Kind::Fences {
                found.push((gap > OUTAGE_MAX, no_lock));
            }
        }
        found.into_iter().filter_map(|(is_wrong, what)| is_wrong.then_some(what)).collect()
    }

    pub fn count(&self, mode: Mode) -> usize {
        self.record.holds.iter().filter(|hold| hold.mode == mode).count()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { kind, course, seed, protected, .. } = self.plan;
        let rule = if protected == Protected::No { ", without the protection" } else { "" };
        let seconds = self.took.as_secs_f64();
        writeln!(f, "{kind:?}, {course:?}{rule}: {seconds:.0} s, seed {seed}")?;
        let Record { accidents, without_one, failed_calls, lost_early, .. } = &self.record;
        writeln!(f, "  accidents: {accidents}")?;
        let modes = [Mode::Exclusive, Mode::Downgraded, Mode::Shared];
        let [exclusive, downgraded, shared] = modes.map(|mode| self.count(mode));
        write!(f, "  holds: {exclusive} exclusive, {downgraded} of them downgraded, ")?;
        writeln!(f, "and {shared} shared; up to {} sharing at once", self.most_at_once)?;
        let ((mean, longest), gap_ms) = (self.waits(), self.longest_gap.as_millis());
        let [mean, longest] = [mean, longest].map(|wait| wait.as_secs_f64() * 1e3);
        let ratio = self.wait_ratio();
        writeln!(f, "  waits: {mean:.1} ms on average, {longest:.1} ms at most ({ratio:.1} ×)")?;
        writeln!(f, "  longest time without a grant: {gap_ms} ms")?;
        if !without_one.is_empty() {
            let each: Vec<_> = without_one.iter().map(|ratio| format!("{ratio:.2}")).collect();
            let (mean, each) = (self.mean_without_one(), each.join(", "));
            writeln!(f, "  rate with one node down or paused: {mean:.2} × ({each})")?;
        }
        writeln!(f, "  calls without a lock: {failed_calls}; locks lost early: {lost_early}")?;
        writeln!(f, "  violations: {}", self.harm.len())?;
        self.harm.iter().take(10).try_for_each(|harm| writeln!(f, "    {harm}"))
    }
}
