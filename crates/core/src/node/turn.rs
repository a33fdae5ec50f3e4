//! The work of a turn: what a node does without a command.

use super::key_state::KeyState;
use super::leases::MirrorState;
use super::wheel::Step;
use super::{Access, Change, Keyspace, Kind, Monotonic, Node, Now, Reason, Release};

/// How much work a turn of the server's loop, or a command, may still do.
///
/// A unit is well below a microsecond of the server's time. Every piece of work pays for itself: no
/// unit pays for work that grows with the number of leases, holders or waiters.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    left: u32,
}

/// Units of one turn, which answers at most fourteen clients.
const TURN_UNITS: u32 = 800;
/// Units of one job that can stop at any point. Between two jobs, the caller may
/// [end](Budget::end) the turn.
const JOB_UNITS: u32 = 300;
/// How long the jobs of a turn take, in microseconds, before the caller ends it: what they touch
/// may be in no cache of the processor.
pub const TURN_LIMIT_US: u64 = 200;
/// Units that a command may spend on waiters. The jobs of the turn follow in the same turn.
pub(super) const COMMAND_UNITS: u32 = 500;

/// Units for a client that is answered: the server unblocks it and writes to its connection, which
/// takes ten to twenty-five microseconds.
pub(super) const ANSWER_UNITS: u32 = 60;
/// Units for each queue that a waiter leaves.
const LEAVE_UNITS: u32 = 2;
/// Units for opening a key and writing it; see [`write_units`].
const WRITE_UNITS: u32 = 8;
/// Bytes of a key that cost a unit, because they are copied, compared and propagated.
pub(super) const BYTES_PER_UNIT: usize = 64;
/// Units for moving a lease in the wheel, removing a holder of a shared lock, or a step of a sweep.
const STEP_UNITS: u32 = 1;

const SWEEP_SLOTS: u32 = 16;

/// How soon to check again while the server must not write, in microseconds.
const PAUSE_CHECK_INTERVAL_US: u64 = 10_000;
/// How soon to retry a lost mirror that could not be written, in microseconds.
const MIRROR_REWRITE_INTERVAL_US: u64 = 1_000_000;
/// The largest difference between two times that counts as noise, in microseconds.
/// A lease that ends this soon needs no new mirror. When a mirror expires only this much before its
/// lease, the cause was no step of the clock.
pub(super) const CLOCK_NOISE_US: u64 = 20_000;

/// What [`Node::next_job`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Ended an abstention, which had this reason.
    Rejoined(Reason),
    /// Did any other piece of work.
    Done,
}

impl Budget {
    /// The budget of one turn.
    pub const fn turn() -> Self {
        Self::units(TURN_UNITS)
    }

    pub(super) const fn units(left: u32) -> Self {
        Self { left }
    }

    pub(super) fn spend(&mut self, units: u32) {
        self.left = self.left.saturating_sub(units);
    }

    pub(super) const fn is_spent(self) -> bool {
        self.left == 0
    }

    /// Ends the turn: no job follows.
    pub fn end(&mut self) {
        self.left = 0;
    }

    /// Gives one job its part of the budget.
    fn for_job<T>(&mut self, job: impl FnOnce(&mut Self) -> T) -> T {
        let part = self.left.min(JOB_UNITS);
        let mut budget = Self::units(part);
        let result = job(&mut budget);
        self.spend(part - budget.left);
        result
    }
}

/// The cost of opening a key and writing it.
pub(super) fn write_units(key: &[u8]) -> u32 {
    WRITE_UNITS.saturating_add(units(key.len() / BYTES_PER_UNIT))
}

/// One unit for each of a number of things.
pub(super) fn units(things: usize) -> u32 {
    u32::try_from(things).unwrap_or(u32::MAX)
}

impl Node {
    /// Does the next due job within the budget of this turn; `None` if none is left.
    ///
    /// The caller repeats the call until it returns `None`, right before the server sleeps.
    /// Refusals of waiters come first, even while the server must not write. Then come releases for
    /// disconnected clients, handovers, leases that need attention, sweeps, the end of an
    /// abstention, and the check for listeners.
    pub fn next_job<K: Keyspace>(
        &mut self,
        now: Now,
        budget: &mut Budget,
        keyspace: &mut K,
    ) -> Option<Job> {
        if self.loading {
            return None;
        }
        self.handle_events(now, keyspace);
        self.settle_flush();
        let job = if budget.is_spent() { None } else { self.job(now, budget, keyspace) };
        if job.is_none() {
            self.answers.wake_deferred(keyspace);
        }
        job
    }

    fn job<K: Keyspace>(&mut self, now: Now, budget: &mut Budget, keyspace: &mut K) -> Option<Job> {
        if let Some(job) = self.refuse_next(now, budget, keyspace) {
            return Some(job);
        }
        self.pause_check_at = None;
        if keyspace.writes_are_paused() {
            self.pause_check_at = Some(now.monotonic.plus_us(PAUSE_CHECK_INTERVAL_US));
            return None;
        }
        if let Some(grant) = self.answers.undelivered.pop() {
            budget.spend(write_units(&grant.key));
            let (key, token) = (keyspace.name(&grant.key), keyspace.name(&grant.token));
            let release = Release { db: grant.db, keys: std::slice::from_ref(&key), token: &token };
            // If the token no longer holds the key, nothing is left to release.
            let _ = self.release(now, &release, budget, keyspace);
            return Some(Job::Done);
        }
        if let Some((at, place)) = self.queues.next_impatient()
            && at <= now.monotonic
        {
            self.spend_on_leaving(place, budget);
            self.queues.keep_keys(place);
            return Some(Job::Done);
        }
        if let Some((at, queue)) = self.queues.next_check()
            && at <= now.monotonic
        {
            budget.spend(write_units(self.queues.key(queue).2));
            budget.for_job(|budget| self.hand_over(now, queue, None, budget, keyspace));
            return Some(Job::Done);
        }
        let job = self.attend(now, budget, keyspace).or_else(|| self.sweep(budget));
        if job.is_some() {
            return job;
        }
        if self.queues.waiters() == 0
            && let Some(reason) = self.abstention.end_if_due(now.monotonic)
        {
            self.fences.raise_all_to_ceiling(now.wall_us);
            return Some(Job::Rejoined(reason));
        }
        // A replica's own replicas receive what its master sends.
        if !self.abstention.is_replica && self.propagation.begin_check(now.monotonic) {
            self.propagation.learn(keyspace.listeners());
            return Some(Job::Done);
        }
        None
    }

    /// Refuses the next waiter that timed out or whose token was released.
    /// While the node abstains, refuses any waiter.
    fn refuse_next<K: Keyspace>(
        &mut self,
        now: Now,
        budget: &mut Budget,
        keyspace: &mut K,
    ) -> Option<Job> {
        let (blocked_id, refusal) = if let Some(blocked_id) = self.queues.dismissed.pop_first() {
            (blocked_id, None)
        } else {
            let (at, place) = self.queues.next_time_out()?;
            if !self.abstention.is_on() && at > now.monotonic {
                return None;
            }
            // Once for the refusal, which reads the same queues, and once for leaving them.
            self.spend_on_leaving(place, budget);
            self.spend_on_leaving(place, budget);
            let refusal = self.held_after_wait(now, place);
            (self.queues.remove(place).blocked_id, refusal)
        };
        budget.spend(ANSWER_UNITS);
        let error = self.abstention_error(now.monotonic).or(refusal);
        self.answers.refuse(blocked_id, error, keyspace);
        Some(Job::Done)
    }

    /// Spends the cost of removing a waiter from all its queues.
    pub(super) fn spend_on_leaving(&self, place: u32, budget: &mut Budget) {
        let queues = units(self.queues.queues_of(place).len());
        budget.spend(LEAVE_UNITS.saturating_mul(queues));
    }

    fn attend<K: Keyspace>(
        &mut self,
        now: Now,
        budget: &mut Budget,
        keyspace: &mut K,
    ) -> Option<Job> {
        let lease = match self.leases.step(now.monotonic) {
            Step::Idle => return None,
            Step::Sorted => {
                budget.spend(STEP_UNITS);
                return Some(Job::Done);
            }
            Step::Due(lease) => lease,
        };
        if self.leases.is_stale(self.leases.get(lease)) {
            self.spend_on_end(lease, budget);
            self.end_by_operator(lease);
            return Some(Job::Done);
        }
        if let Some(holder) = self.leases.ended_holder(lease, now.monotonic) {
            budget.spend(STEP_UNITS);
            self.stats.ended_by_deadline += 1;
            self.leases.leave(lease, holder);
            return Some(Job::Done);
        }
        let is_live = now.monotonic < self.leases.get(lease).deadline;
        if is_live
            && self.leases.get(lease).mirror() == MirrorState::Lost
            && keyspace.memory_is_short()
        {
            budget.spend(STEP_UNITS);
            self.rewrite_mirror_later(now, lease);
            return Some(Job::Done);
        }
        budget.spend(write_units(&self.leases.get(lease).key));
        self.spend_on_end(lease, budget);
        let held = self.leases.get(lease);
        let (key, name) = ((held.hash(), held.db), keyspace.name(&held.key));
        let (state, mut entry) = self.open_key(now, key, &name, Access::Write, keyspace);
        match state {
            KeyState::Ended { lease, mirrored } => {
                let expired = !self.leases.get(lease).ended_with_another();
                self.end_by_deadline(lease);
                if mirrored {
                    keyspace.delete(&mut entry);
                    let change = if expired { Change::Expired } else { Change::Delete };
                    self.publish(keyspace, &name, change);
                }
            }
            KeyState::Held { lease, mirrored: false } => {
                self.rewrite_mirror(now, lease, &name, &mut entry, keyspace);
            }
            _ => {}
        }
        Some(Job::Done)
    }

    /// Spends the cost of ending a lease, which also ends the lock on its other keys.
    fn spend_on_end(&self, lease: u32, budget: &mut Budget) {
        let keys = units(self.leases.ring(lease).count());
        budget.spend(STEP_UNITS.saturating_mul(keys));
    }

    /// Writes a lost mirror again, if its key is missing.
    fn rewrite_mirror<K: Keyspace>(
        &mut self,
        now: Now,
        lease: u32,
        name: &K::Name,
        entry: &mut K::Entry,
        keyspace: &mut K,
    ) {
        let left_us = self.leases.get(lease).deadline.us_since(now.monotonic);
        if keyspace.kind(entry) != Kind::Missing || left_us <= CLOCK_NOISE_US {
            return self.rewrite_mirror_later(now, lease);
        }
        let value = keyspace.name(self.leases.get(lease).mirror_value());
        let expires_at_ms = now.wall_ms_after(left_us);
        if keyspace.set(entry, &value, expires_at_ms).is_err() {
            return self.rewrite_mirror_later(now, lease);
        }
        self.leases.regain_mirror(lease);
        self.publish(keyspace, name, Change::Set { value: &value, expires_at_ms });
    }

    fn rewrite_mirror_later(&mut self, now: Now, lease: u32) {
        let at = now.monotonic.plus_us(MIRROR_REWRITE_INTERVAL_US);
        self.leases.set_mirror(lease, MirrorState::Lost, at);
    }

    /// Takes one step of a sweep: plans checks of queues or mirrors, or removes ended leases and
    /// holders.
    fn sweep(&mut self, budget: &mut Budget) -> Option<Job> {
        if self.queues.is_sweeping() {
            let queues = units(self.queues.sweep(SWEEP_SLOTS));
            budget.spend(STEP_UNITS.saturating_mul(1 + queues));
            return Some(Job::Done);
        }
        if self.leases.is_doubting() {
            budget.spend(STEP_UNITS);
            self.leases.doubt_next(SWEEP_SLOTS);
            return Some(Job::Done);
        }
        if !self.leases.is_sweeping() {
            return None;
        }
        budget.spend(STEP_UNITS);
        if let Some(lease) = self.leases.sweep(SWEEP_SLOTS) {
            self.spend_on_end(lease, budget);
            self.end_by_operator(lease);
        }
        Some(Job::Done)
    }

    /// When to call [`Node::next_job`] next, unless a command or an event comes first.
    ///
    /// `None` if no job is planned; a time in the past if the budget did not suffice.
    pub fn next_wake(&self) -> Option<Monotonic> {
        if self.loading {
            return None;
        }
        let at_once = Some(Monotonic::default());
        let must_refuse = !self.queues.dismissed.is_empty()
            || (self.abstention.is_on() && self.queues.waiters() > 0);
        let refuse_at =
            if must_refuse { at_once } else { self.queues.next_time_out().map(|(at, _)| at) };
        let write_at = if self.answers.has_work() || self.queues.is_sweeping() {
            at_once
        } else {
            let check_at = self.queues.next_check().map(|(at, _)| at);
            let keep_at = self.queues.next_impatient().map(|(at, _)| at);
            [check_at, keep_at, self.leases.next_step_at()].into_iter().flatten().min()
        };
        let work_at = [write_at, self.abstention.until()].into_iter().flatten().min();
        let work_at = work_at.map(|at| self.pause_check_at.map_or(at, |check_at| at.max(check_at)));
        [refuse_at, work_at].into_iter().flatten().min()
    }
}
