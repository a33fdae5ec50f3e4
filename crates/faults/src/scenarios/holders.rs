//! Accidents that happen alike to an exclusive lock, to a lock that readers share, and to a
//! semaphore whose permits are all held, and accidents that only readers meet.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::MINUTE_S;
use super::memory::evict;
use super::node::{Answer, Held, LockMethod, Node, PATIENCE};
use super::trial::{GRANTED_WHILE_HELD, LONG_TTL, Trial};
use crate::wait_until;

/// Who holds locks when the accident happens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holders {
    /// One client holds the lock [`KEY`].
    One,
    /// Two readers share the lock [`KEY`]. The first one's ttl is half as long.
    Readers,
    /// Two clients hold both permits of a semaphore.
    Permits,
}

pub(super) const KEY: &str = "key";
pub(super) const SLOTS: [&str; 2] = ["encoder:00", "encoder:01"];
/// Much shorter than the ttl of filler keys, and much longer than their writing takes.
const FILLED_TTL: Duration = Duration::from_secs(60);

impl Holders {
    pub(super) fn acquire(self, node: &mut Node, ttl: Duration) -> Result<Vec<Held>> {
        let answers = match self {
            Self::One => vec![node.acquire(KEY, "holder", ttl)?],
            Self::Readers => {
                vec![node.share(KEY, "first", ttl / 2)?, node.share(KEY, "second", ttl)?]
            }
            Self::Permits => vec![
                node.acquire_any(SLOTS, "first", ttl)?,
                node.acquire_any(SLOTS, "second", ttl)?,
            ],
        };
        let held: Vec<_> = answers.into_iter().map(Answer::granted).collect::<Result<_>>()?;
        let slots = held.iter().map(|held| held.key.as_str());
        ensure!(self != Self::Permits || slots.eq(SLOTS), "slots are not in order: {held:?}");
        Ok(held)
    }

    /// Lets a client ask that must be refused: beside readers, a writer.
    pub(super) fn ask_another(self, node: &mut Node, ttl: Duration) -> Result<Answer> {
        match self {
            Self::One | Self::Readers => node.acquire(KEY, "another", ttl),
            Self::Permits => node.acquire_any(SLOTS, "another", ttl),
        }
    }

    /// Returns when another client may be granted the lock, or a permit.
    fn free_at(self, held: &[Held]) -> Option<Instant> {
        let ends = held.iter().map(Held::must_last_until);
        if self == Self::Permits { ends.min() } else { ends.max() }
    }

    fn check_refused(self, node: &mut Node, trial: &mut Trial) -> Result<()> {
        let another = self.ask_another(node, LONG_TTL)?;
        trial.check(another.is_refused(), format!("another client was not refused: {another:?}"));
        Ok(())
    }

    /// Checks that another client is refused, that each holder can extend and release the lock, and
    /// that the lock is free after that. Another reader can join readers.
    pub(super) fn check_still_held(
        self,
        node: &mut Node,
        held: &[Held],
        trial: &mut Trial,
    ) -> Result<()> {
        self.check_refused(node, trial)?;
        let mut held = held.to_vec();
        if self == Self::Readers {
            if node.method == LockMethod::SetNx {
                // A set of readers cannot tell them apart.
                return Ok(());
            }
            match node.share(KEY, "joined", LONG_TTL)? {
                Answer::Granted(joined) => held.push(joined),
                other => trial.harm(format!("another reader was not granted the lock: {other:?}")),
            }
        }
        for (index, held) in held.iter().enumerate() {
            trial.check(node.extend(held)?.is_some(), "a holder could not extend the lock");
            if self == Self::Readers || index == 0 {
                self.check_refused(node, trial)?;
            }
            trial.check(node.release(held)?, "a holder could not release the lock");
        }
        let another = self.ask_another(node, LONG_TTL)?;
        trial.check(another.is_granted(), format!("the lock was not free at last: {another:?}"));
        Ok(())
    }
}

/// The wall clock jumps ahead by a minute. The locks end at their deadlines.
pub(super) fn stepped_ahead(trial: &mut Trial, holders: Holders) -> Result<()> {
    let mut node = Node::start(trial.method(), |builder| builder)?;
    let released = node.acquire("released", "holder", LONG_TTL)?.granted()?;
    let mut held = holders.acquire(&mut node, trial.ttl(Duration::from_millis(1200)))?;
    node.step_clock(MINUTE_S)?;
    trial.count_injected();
    if trial.is_protected() {
        wait_until(PATIENCE, "the keys are written again", || {
            Ok(node.get("released")?.is_some_and(|token| token == "holder")
                && node.info("lock", "lock_saved_from_clock_step")? >= 1)
        })?;
        for held in &mut held {
            let extended = node.extend(held)?;
            // A slow machine may extend too late.
            let is_over = Instant::now() >= held.must_last_until();
            trial.check(extended.is_some() || is_over, "a holder could not extend the lock");
            *held = extended.unwrap_or_else(|| held.clone());
        }
    }
    let until = held.iter().map(Held::must_end_by).max().unwrap_or_else(Instant::now) + PATIENCE;
    let granted = node.retry_until(until, |node| holders.ask_another(node, LONG_TTL))?;
    let granted_by = Instant::now();
    trial.check(granted.is_some(), "the lock did not end");
    let has_ended = holders.free_at(&held).is_some_and(|free_at| granted_by >= free_at);
    trial.check(has_ended, GRANTED_WHILE_HELD);
    trial.check(node.release(&released)?, "the holder could not release the lock");
    Ok(())
}

/// Memory is short, and the server evicts the key of the first holder: under `volatile-ttl` the one
/// that expires soonest, under `allkeys-lru` the one that was not used for longest.
pub(super) fn eviction(trial: &mut Trial, holders: Holders, policy: &str) -> Result<()> {
    // The more keys the server compares, the more surely it evicts the one that its policy names.
    let mut node = Node::start(trial.method(), |builder| {
        builder.arg("maxmemory-policy", policy).arg("maxmemory-samples", 64)
    })?;
    let held = holders.acquire(&mut node, FILLED_TTL)?;
    evict(&mut node, &held[0].key)?;
    trial.count_injected();
    holders.check_still_held(&mut node, &held, trial)
}

/// The server is killed, and starts with an empty disk.
pub(super) fn empty_disk(trial: &mut Trial, holders: Holders) -> Result<()> {
    let mut node = trial.start_abstaining_node()?;
    let held = holders.acquire(&mut node, trial.max_ttl())?;
    let last = &held[held.len() - 1];
    node.inner.server.kill();
    let killed_at = Instant::now();
    node.restart(trial.rejoin_delay_ms())?;
    ensure!(!node.exists(&last.key)?, "the disk was not empty");
    trial.count_injected();
    let another = holders.ask_another(&mut node, trial.max_ttl())?;
    if Instant::now() < last.must_last_until() {
        trial.check(!another.is_granted(), GRANTED_WHILE_HELD);
    }
    trial.check_abstains(&mut node, last, killed_at, "start")
}

/// The server loads its own data again, perhaps after a step of the wall clock, by which its
/// snapshot lacks the keys that have expired.
pub(super) fn reload(trial: &mut Trial, holders: Holders, how: &str, step_s: i64) -> Result<()> {
    let mut node = Node::start(trial.method(), |builder| builder.arg("appendonly", "yes"))?;
    let held = holders.acquire(&mut node, 2 * LONG_TTL)?;
    if step_s != 0 {
        node.step_clock(step_s)?;
    }
    let _: String = node.call(&["DEBUG", how])?;
    trial.count_injected();
    holders.check_still_held(&mut node, &held, trial)
}

/// No client knows the value of the key on the disk. The key keeps writers and readers out until
/// the last reader's deadline.
pub(super) fn kept_disk(trial: &mut Trial) -> Result<()> {
    let mut node = start_with_disk(trial.method())?;
    let first = node.share(KEY, "first", LONG_TTL)?.granted()?;
    let first_expiry_ms: u64 = node.call(&["PEXPIRETIME", KEY])?;
    let longer = Duration::from_millis(600);
    let last = node.share(KEY, "second", LONG_TTL + longer)?.granted()?;
    node.inner.server.kill();
    node.restart(0)?;
    ensure!(node.exists(KEY)?, "the disk is empty");
    trial.count_injected();
    // The key must expire at the deadline of the second reader, which is the later one.
    let expiry_ms: u64 = node.call(&["PEXPIRETIME", KEY])?;
    let later_ms = expiry_ms.saturating_sub(first_expiry_ms);
    trial.check(
        u128::from(later_ms) >= longer.as_millis(),
        format!("the key expires only {later_ms} ms after the first reader's deadline"),
    );
    if trial.is_protected() {
        let extended = node.extend(&first)?;
        trial.check(extended.is_none(), "the node accepted a reader's token for the loaded key");
        trial.check(!node.release(&first)?, "a reader ended the lock of both");
        // The key does not say that its holders share the lock.
        let reader = node.share(KEY, "third", LONG_TTL)?;
        trial.check(reader.is_refused(), format!("a third reader was not refused: {reader:?}"));
    }
    check_refuses_writers(&mut node, &last, trial)
}

/// A former writer's token must not end the lock for readers that joined after the downgrade.
pub(super) fn killed_after_a_downgrade(trial: &mut Trial) -> Result<()> {
    let mut node = start_with_disk(LockMethod::Module)?;
    let first = node.acquire(KEY, "first", LONG_TTL)?.granted()?;
    let ms = LONG_TTL.as_millis().to_string();
    let extended: Option<u64> = node.call(&["LOCK.EXTEND", KEY, "first", &ms, "SHARED"])?;
    ensure!(extended.is_some(), "the lock was not downgraded");
    let reader = node.share(KEY, "second", LONG_TTL)?.granted()?;
    let value = node.get(KEY)?;
    trial.count_injected();
    if trial.is_protected() {
        let is_random = value.is_some_and(|value| value != "first" && value != "second");
        trial.check(is_random, "the key shows the token of one of the holders");
    } else {
        // Like a module that writes the key only once, when it grants the lock.
        let _: String = node.call(&["SET", KEY, "first", "PX", &ms])?;
    }
    node.inner.server.kill();
    node.restart(0)?;
    ensure!(node.exists(KEY)?, "the disk is empty");
    trial.check(!node.release(&first)?, "one of the holders ended the lock of both");
    check_refuses_writers(&mut node, &reader, trial)
}

/// A module that alone knows the readers cannot be unloaded.
pub(super) fn unloaded(trial: &mut Trial) -> Result<()> {
    let mut node = Node::start(LockMethod::Module, |builder| builder)?;
    let readers = Holders::Readers.acquire(&mut node, LONG_TTL)?;
    let refused = node.call::<String>(&["MODULE", "UNLOAD", "lock"]);
    trial.count_injected();
    trial.check(refused.is_err(), "the module was unloaded");
    Holders::Readers.check_still_held(&mut node, &readers, trial)
}

/// Starts a node whose writes are on the disk before they are answered.
fn start_with_disk(method: LockMethod) -> Result<Node> {
    Node::start(method, |builder| builder.arg("appendonly", "yes").arg("appendfsync", "always"))
}

/// Checks once that a writer is refused, unless the lock of `last` has ended.
fn check_refuses_writers(node: &mut Node, last: &Held, trial: &mut Trial) -> Result<()> {
    let writer = node.acquire(KEY, "writer", LONG_TTL)?;
    if Instant::now() < last.must_last_until() {
        trial.check(writer.is_refused(), format!("a writer was granted the lock: {writer:?}"));
    }
    Ok(())
}
