//! The programs of a fleet: callers that acquire locks, hold them, and end them in several ways.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Ttl;
use quorlock_core::client::{Mode, Spec};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::clock::Ns;
use super::events::Event;
use super::notes::Call;
use super::plan::{Habits, Plan};
use super::process::Process;
use super::world::World;

/// The callers of one process.
pub(super) struct Callers {
    process: usize,
    callers: Vec<Caller>,
}

/// A task of a program, which uses one lock after another.
struct Caller {
    rng: StdRng,
    state: State,
    /// The number of the caller's next event. Events with smaller numbers are ignored.
    number: u64,
    /// What the caller will do with its present lock; `None` before the first call.
    usage: Option<Usage>,
}

/// What a caller does. The number is that of the call, the lock or the release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Resting,
    Calling(u64),
    Holding(u64),
    Extending(u64),
    Releasing(u64),
    Finished,
}

#[derive(Clone, Debug)]
struct Usage {
    held_for: Ns,
    /// Number of extensions that are left, including the downgrade.
    extends: u32,
    /// How many extensions follow the one that makes the lock shared; `None` if no extension does.
    downgrade: Option<u32>,
    end: End,
    waits_without_limit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Release,
    Drop,
    Detach,
}

impl Caller {
    fn new(seed: u64) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), state: State::Resting, number: 0, usage: None }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn between(&mut self, (from, to): (Ns, Ns)) -> Ns {
        // Draws half of the times from the lowest eighth of the range.
        let (from, to) = (from.max(1), to.max(from + 1));
        if self.chance(50) {
            self.rng.random_range(from..=to)
        } else {
            self.rng.random_range(from..=from + (to - from) / 8)
        }
    }

    fn ttl(&mut self, habits: &Habits) -> Ttl {
        let ms = habits.ttls_ms[self.rng.random_range(0..habits.ttls_ms.len())];
        Ttl::from_ms(ms).expect("a plan has sensible ttls")
    }

    fn wait(&mut self, habits: &Habits) -> Option<Duration> {
        let [none, short, long] = habits.waits_percent;
        match self.rng.random_range(0..100) {
            n if n < none => Some(Duration::ZERO),
            n if n < none + short => Some(Duration::from_millis(self.rng.random_range(1..=300))),
            n if n < none + short + long => {
                Some(Duration::from_millis(self.rng.random_range(300..=10_000)))
            }
            _ => None,
        }
    }

    /// Returns the part of the time of the present lock that precedes its next extension or its
    /// end.
    fn time_until_next_step(&self) -> Ns {
        self.usage.as_ref().map_or(0, |usage| usage.held_for / u64::from(usage.extends + 1))
    }

    fn choose_key_set(&mut self, plan: &Plan) -> usize {
        let first = plan.habits.first_set_percent;
        if first > 0 && self.chance(first) {
            return 0;
        }
        self.rng.random_range(0..plan.key_indexes.len())
    }
}

impl Callers {
    pub(super) fn new(process: usize, seeds: impl Iterator<Item = u64>) -> Self {
        Self { process, callers: seeds.map(Caller::new).collect() }
    }

    pub(super) fn are_finished(&self) -> bool {
        self.callers.iter().all(|caller| caller.state == State::Finished)
    }

    pub(super) fn wake(&mut self, caller: usize, at: Ns, world: &mut World) {
        let this = &mut self.callers[caller];
        this.number += 1;
        let event = Event::Caller { process: self.process, caller, number: this.number };
        world.events.add(at, event);
    }

    pub(super) fn act(
        &mut self,
        caller: usize,
        number: u64,
        process: &mut Process,
        world: &mut World,
    ) {
        if self.callers[caller].number != number {
            return;
        }
        match self.callers[caller].state {
            State::Resting => self.call(caller, process, world),
            State::Calling(call) => {
                process.cancel(call, world);
                self.rest(caller, world);
            }
            State::Holding(lock) => self.extend_or_end(caller, lock, process, world),
            State::Extending(_) | State::Releasing(_) | State::Finished => {}
        }
    }

    fn call(&mut self, caller: usize, process: &mut Process, world: &mut World) {
        if world.ended_at.is_some() {
            self.callers[caller].state = State::Finished;
            return;
        }
        let plan = Arc::clone(&world.plan);
        let this = &mut self.callers[caller];
        let habits = &plan.habits;
        let usage = Usage {
            held_for: this.between(habits.hold),
            extends: if this.chance(habits.extend_percent) {
                this.rng.random_range(1..4)
            } else {
                0
            },
            downgrade: None,
            end: match this.rng.random_range(0..100) {
                n if n < habits.detach_percent => End::Detach,
                n if n < habits.detach_percent + habits.drop_percent => End::Drop,
                _ => End::Release,
            },
            waits_without_limit: false,
        };
        if this.chance(50)
            && let Some(detached) = world.detached.pop()
        {
            this.usage = Some(usage);
            let (key_set, token, spec) = detached;
            let call = Call::new(key_set, spec, world.now, plan.nodes);
            let call = Call { attaches: Some(token), ..call };
            this.state = State::Calling(process.call(call, Some(Duration::ZERO), world));
            return;
        }
        let (key_set, ttl, wait) =
            (this.choose_key_set(&plan), this.ttl(habits), this.wait(habits));
        let renews = this.chance(habits.renew_percent);
        let cancels = this.chance(habits.cancel_percent);
        let min_validity = if this.chance(80) { ttl.duration() / 2 } else { Duration::ZERO };
        let cancel_after = this.between((1, 2 * habits.hold.1 + 10 * plan.round_trip));
        let may_share = habits.share_percent > 0 && plan.key_indexes[key_set].len() == 1;
        let mode = if may_share && this.chance(habits.share_percent) {
            Mode::Shared
        } else {
            Mode::Exclusive
        };
        let downgrades =
            may_share && mode == Mode::Exclusive && this.chance(habits.downgrade_percent);
        let downgrade = downgrades.then(|| this.rng.random_range(0..=usage.extends));
        let extends = usage.extends + u32::from(downgrades);
        let waits_without_limit = wait.is_none();
        this.usage = Some(Usage { extends, downgrade, waits_without_limit, ..usage });
        let keys = plan.keys(key_set);
        let any = plan.any_sets.contains(&key_set).then(|| keys.clone());
        let spec = Spec { mode, any, min_validity, ..Spec::exclusive(keys, ttl) };
        if let Err(error) = spec.check() {
            world.violate(format!("a plan has an impossible lock: {error}"));
        }
        let call = Call::new(key_set, Arc::new(spec), world.now, plan.nodes);
        this.state = State::Calling(process.call(Call { renews, ..call }, wait, world));
        if cancels {
            self.wake(caller, world.now + cancel_after, world);
        }
    }

    /// Goes on after the calls, extensions and releases that the last event has ended.
    pub(super) fn go_on(&mut self, process: &mut Process, world: &mut World) {
        while let Some(number) = process.ended.pop_front() {
            let waits = |caller: &Caller| match caller.state {
                State::Calling(of) | State::Extending(of) | State::Releasing(of) => of == number,
                State::Resting | State::Holding(_) | State::Finished => false,
            };
            let Some(caller) = self.callers.iter().position(waits) else { continue };
            if process.lock(number).is_none() {
                self.rest(caller, world);
                continue;
            }
            let this = &mut self.callers[caller];
            world.report.locks += u64::from(this.state == State::Calling(number));
            this.state = State::Holding(number);
            let at = world.now + this.time_until_next_step();
            self.wake(caller, at, world);
        }
    }

    /// Extends the lock, or ends it after the last extension.
    fn extend_or_end(
        &mut self,
        caller: usize,
        lock: u64,
        process: &mut Process,
        world: &mut World,
    ) {
        let this = &mut self.callers[caller];
        if let Some(usage) = &mut this.usage
            && usage.extends > 0
        {
            usage.extends -= 1;
            let downgrades = usage.downgrade == Some(usage.extends);
            this.state = State::Extending(lock);
            if process.extend(lock, downgrades, world) {
                return;
            }
        }
        let this = &mut self.callers[caller];
        match this.usage.as_ref().map_or(End::Release, |usage| usage.end) {
            End::Release => {
                if let Some(release) = process.release(lock, true, world) {
                    this.state = State::Releasing(release);
                }
            }
            End::Drop => {
                process.release(lock, false, world);
                self.rest(caller, world);
            }
            End::Detach => {
                process.detach(lock, world);
                self.rest(caller, world);
            }
        }
    }

    fn rest(&mut self, caller: usize, world: &mut World) {
        let plan = Arc::clone(&world.plan);
        let this = &mut self.callers[caller];
        this.state = State::Resting;
        let calls_at_once = this.chance(plan.habits.at_once_percent);
        let rest = if calls_at_once { 0 } else { this.between(plan.habits.rest) };
        let at = world.now + rest;
        self.wake(caller, plan.next_meeting(at).unwrap_or(at), world);
    }

    /// Ends the work of all callers: they start no new calls, and cancel waits without a limit.
    pub(super) fn end(&mut self, process: &mut Process, world: &mut World) {
        for this in &mut self.callers {
            let waits_without_limit =
                this.usage.as_ref().is_some_and(|usage| usage.waits_without_limit);
            match this.state {
                State::Calling(call) if waits_without_limit => {
                    process.cancel(call, world);
                    this.state = State::Finished;
                }
                State::Resting => this.state = State::Finished,
                _ => {}
            }
        }
    }
}
