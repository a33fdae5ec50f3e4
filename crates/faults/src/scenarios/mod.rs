//! All accidents to a single node, and the table of their results.
//!
//! - `clock`: the wall clock is stepped
//! - `memory`: keys are evicted, and locks expire unreleased
//! - `module`: an operator reconfigures or unloads the module
//! - `operator`: an operator changes the key of a lock
//! - `permits`: accidents while all permits of a semaphore are held
//! - `reload`: a server loads its data again, or a replica is promoted
//! - `restart`: a server restarts, mostly with less data than before
//! - `shared`: accidents while readers share a lock

pub mod clock;
pub mod memory;
pub mod module;
pub(crate) mod node;
pub mod operator;
pub mod permits;
pub mod reload;
pub mod restart;
pub mod shared;

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

pub use self::memory::{Leftovers, expire_unreleased};
use crate::harness::{Answer, Held, LockMethod, Node, PATIENCE, Protected};
pub use crate::scenario::{Baseline, Scenario, Tally};

pub static ALL: &[&Scenario] = &[
    &clock::STEPPED_AHEAD,
    &clock::STEPPED_BACK,
    &clock::STEPPED_AHEAD_FOR_AN_OLD_CLIENT,
    &memory::VOLATILE_TTL,
    &memory::ALLKEYS_LRU,
    &restart::EMPTY_DISK,
    &restart::CLOCK_STEPPED_MEANWHILE,
    &restart::SYNCED_BY_THE_SYSTEM,
    &restart::SYNCED_EVERY_SECOND,
    &restart::ALWAYS_SYNCED,
    &restart::STEPPED_BACK_BEFORE,
    &reload::NOT_YET_REPLICATED,
    &reload::DEBUG_RELOAD,
    &reload::DEBUG_LOADAOF,
    &reload::DEBUG_RELOAD_AFTER_A_STEP,
    &operator::DEL,
    &operator::RENAME,
    &operator::EXPIRE_0,
    &operator::FLUSHALL,
    &operator::SWAPDB,
    &operator::RESTORE,
    &operator::MIGRATE,
    &module::REJOIN_DELAY,
    &module::MAX_TTL,
    &module::UNLOAD_AND_LOAD,
    &module::UNLOAD_WITHOUT_MIRRORS,
    &shared::STEPPED_AHEAD,
    &shared::EVICTION,
    &shared::EMPTY_DISK,
    &shared::KEPT_DISK,
    &shared::KILLED_AFTER_A_DOWNGRADE,
    &shared::DEBUG_RELOAD,
    &shared::DEL_OR_SET,
    &shared::UNLOAD,
    &permits::STEPPED_AHEAD,
    &permits::EVICTION,
    &permits::EMPTY_DISK,
    &permits::DEL,
];

/// The results of all scenarios. `Display` writes a Markdown table.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    accident: &'static str,
    baseline: Baseline,
    with: Tally,
    /// `None` where there is no baseline.
    without: Option<Tally>,
}

/// Runs all scenarios, and calls `progress` before each.
///
/// # Errors
/// When an accident could not be caused, or a server failed in another way.
pub fn table(rounds: u32, mut progress: impl FnMut(&Scenario)) -> Result<Table> {
    let mut table = Table::default();
    for scenario in ALL {
        progress(scenario);
        table.rows.push(Row::of(scenario, rounds)?);
    }
    Ok(table)
}

impl Scenario {
    /// Runs this scenario like [`table`], and returns what is wrong: see [`Table::complaints`].
    ///
    /// # Errors
    /// When the accident could not be caused, or a server failed in another way.
    pub fn complaints(&self, rounds: u32) -> Result<Vec<String>> {
        Ok(Row::of(self, rounds)?.complaints())
    }
}

impl Table {
    /// Returns what is wrong: harm despite the protection, accidents that did not happen, and
    /// baselines that differ from what their scenarios say.
    pub fn complaints(&self) -> Vec<String> {
        self.rows.iter().flat_map(Row::complaints).collect()
    }
}

impl Row {
    fn of(scenario: &Scenario, rounds: u32) -> Result<Self> {
        let with = scenario.run(Protected::Yes, rounds)?;
        let without = match scenario.baseline {
            Baseline::None(_) => None,
            Baseline::Harmed(_) | Baseline::Unharmed(_) => {
                Some(scenario.run(Protected::No, rounds)?)
            }
        };
        Ok(Self { accident: scenario.accident, baseline: scenario.baseline, with, without })
    }

    fn complaints(&self) -> Vec<String> {
        let Self { accident, with, without, .. } = self;
        let mut complaints: Vec<_> =
            with.harms.iter().map(|harm| format!("{accident}: {harm}")).collect();
        if with.injected == 0 {
            complaints.push(format!("{accident}: did not happen"));
        }
        if without.as_ref().is_some_and(|without| without.injected == 0) {
            complaints.push(format!("{accident}: did not happen in the baseline"));
        }
        let baseline_harm = without.as_ref().and_then(|without| without.harms.first());
        match (self.baseline, baseline_harm) {
            (Baseline::Harmed(instead), None) => {
                complaints.push(format!(
                    "{accident}: does no harm with {instead}, so the baseline proves nothing"
                ));
            }
            (Baseline::Unharmed(why), Some(harm)) => {
                complaints
                    .push(format!("{accident}: the baseline did unexpected harm ({why}): {harm}"));
            }
            _ => {}
        }
        complaints
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| accident | times | harm without the protection | harm with it |")?;
        writeln!(f, "|---|---|---|---|")?;
        self.rows.iter().try_for_each(|row| {
            let Row { accident, baseline, with, without } = row;
            let (Baseline::Harmed(text) | Baseline::Unharmed(text) | Baseline::None(text)) =
                baseline;
            let without = match without {
                Some(tally) => format!("{} of {} ({text})", tally.harms.len(), tally.injected),
                None => format!("– ({text})"),
            };
            writeln!(f, "| {accident} | {} | {without} | {} |", with.injected, with.harms.len())
        })
    }
}

/// A ttl that is longer than a scenario takes, and shorter than each step of the wall clock.
const LONG_TTL: Duration = Duration::from_secs(10);
const HOUR_S: i64 = 3600;
const MINUTE_S: i64 = 60;
const GRANTED_WHILE_HELD: &str = "another client was granted the lock while it was held";

/// Returns how clients lock in a scenario whose baseline is plain `SET NX PX`.
const fn module_or_set_nx(protected: Protected) -> LockMethod {
    match protected {
        Protected::Yes => LockMethod::Module,
        Protected::No => LockMethod::SetNx,
    }
}

/// Returns the ttl of a lock whose end only the protected run awaits.
const fn ttl_of(protected: Protected, short: Duration) -> Duration {
    match protected {
        Protected::Yes => short,
        Protected::No => LONG_TTL,
    }
}

/// Settings of a scenario whose baseline is a node that votes at once after a start.
struct AbstentionSettings {
    /// The largest ttl, which is the length of the abstention. Long in a baseline, which does not
    /// wait for the end of the lock: the lock must outlast the start of the server.
    max_ttl: Duration,
    /// -1 for the largest ttl.
    rejoin_delay_ms: i64,
}

impl AbstentionSettings {
    const fn of(protected: Protected) -> Self {
        match protected {
            Protected::Yes => Self { max_ttl: Duration::from_millis(1500), rejoin_delay_ms: -1 },
            Protected::No => Self { max_ttl: LONG_TTL, rejoin_delay_ms: 0 },
        }
    }

    fn start_node(&self) -> Result<Node> {
        let max_ttl_ms = self.max_ttl.as_millis();
        Node::start(|builder| builder.arg("lock.max-ttl", max_ttl_ms))
    }

    /// Kills the node, and starts it again without `key`. Returns the time of the kill.
    fn restart_without(&self, node: &mut Node, key: &str, tally: &mut Tally) -> Result<Instant> {
        node.master.server.kill();
        let killed_at = Instant::now();
        node.restart(self.rejoin_delay_ms)?;
        ensure!(!node.exists(key)?, "the disk was not empty");
        tally.count_injected();
        Ok(killed_at)
    }

    /// Checks that a node abstains for this `reason`, because it may have forgotten a held lock.
    ///
    /// The node must abstain until the lock has ended, and for the largest ttl after `since`. Then
    /// it must vote. In a baseline, only one attempt of another client is checked.
    fn check(
        &self,
        node: &mut Node,
        protected: Protected,
        held: &Held,
        since: Instant,
        reason: &str,
        tally: &mut Tally,
    ) -> Result<()> {
        let tried = node.acquire(LockMethod::Module, &held.key, "another", self.max_ttl)?;
        let is_held = Instant::now() < held.must_last_until();
        match tried {
            Answer::Granted(_) if is_held => {
                tally.harm(GRANTED_WHILE_HELD);
            }
            Answer::Abstains(words) if words.contains(reason) => {}
            // The machine was so slow that the abstention may be over.
            _ if since.elapsed() >= self.max_ttl => return Ok(()),
            other if protected == Protected::Yes => {
                tally.harm(format!("the node does not abstain for its {reason}: {other:?}"));
            }
            _ => {}
        }
        if protected == Protected::No {
            return Ok(());
        }
        let until = held.must_end_by().max(since + self.max_ttl) + PATIENCE;
        let granted =
            node.acquire_until(LockMethod::Module, &held.key, "another", self.max_ttl, until)?;
        let granted_by = Instant::now();
        tally.check(granted.is_some(), "the node never votes again");
        tally.check(granted_by >= held.must_last_until(), GRANTED_WHILE_HELD);
        tally.check(granted_by >= since + self.max_ttl, "the node voted again too early");
        Ok(())
    }
}

/// Checks that a held lock is refused to others, that its holder can extend and release it, and
/// that it is free after that.
fn check_still_held(
    node: &mut Node,
    method: LockMethod,
    held: &Held,
    tally: &mut Tally,
) -> Result<()> {
    let other = node.acquire(method, &held.key, "another", LONG_TTL)?;
    tally.check(other.is_refused(), format!("another client was not refused the lock: {other:?}"));
    tally.check(node.extend(method, held)?.is_some(), "the holder could not extend the lock");
    tally.check(node.release(method, held)?, "the holder could not release the lock");
    let other = node.acquire(method, &held.key, "another", LONG_TTL)?;
    tally.check(other.is_granted(), format!("the lock was not free after its release: {other:?}"));
    Ok(())
}

/// Checks that the holder can extend the lock, and that another client is granted it after its
/// deadline, and not before.
fn check_ends_in_time(
    node: &mut Node,
    method: LockMethod,
    held: &Held,
    tally: &mut Tally,
) -> Result<()> {
    let extended = node.extend(method, held)?;
    // A slow machine may extend too late.
    let is_over = Instant::now() >= held.must_last_until();
    tally.check(extended.is_some() || is_over, "the holder could not extend the lock");
    let held = extended.as_ref().unwrap_or(held);
    let until = held.must_end_by() + PATIENCE;
    match node.acquire_until(method, &held.key, "another", Duration::from_millis(1), until)? {
        None => tally.harm("the lock did not end"),
        Some(_) => tally.check(Instant::now() >= held.must_last_until(), GRANTED_WHILE_HELD),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn baseline_without_its_accident_is_reported() {
        let row = Row {
            accident: "accident",
            baseline: Baseline::Unharmed("reason"),
            with: Tally { injected: 1, harms: Vec::new() },
            without: Some(Tally::default()),
        };
        assert_eq!(row.complaints(), ["accident: did not happen in the baseline"]);
    }
}
