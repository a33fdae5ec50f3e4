//! The clocks of the simulated machines, as functions of the true time.

use std::time::Duration;

use quorlock_core::node::{Monotonic, Now};
use quorlock_core::quorum::Moment;

/// True time in nanoseconds since the start of a run.
pub(super) type Ns = u64;

pub(super) const MS: Ns = 1_000_000;
pub(super) const SECOND: Ns = 1000 * MS;

/// The wall clock at the start of each run, in microseconds since 1970.
const EPOCH_US: u64 = 1_700_000_000_000_000;
/// No run reaches a deadline that lies further ahead than this.
const NEVER_NS: u64 = 1_000_000 * SECOND;

/// The clocks of the machine of a client process.
#[derive(Clone, Debug)]
pub(super) struct ClientClock {
    /// Rates of the raw and the boot clock above the true rate, in parts per million.
    raw_ppm: i64,
    boot_ppm: i64,
    /// Reading of the raw clock at the start.
    offset: Duration,
    wall_offset_us: i64,
    /// Total time of the past sleeps of the machine.
    slept: Ns,
    /// When the machine fell asleep, if it sleeps now.
    sleeps_since: Option<Ns>,
}

#[derive(Clone, Debug)]
pub(super) struct NodeClock {
    /// Rate above the true rate, in parts per million.
    ppm: i64,
    /// Reading of the monotonic clock at the start.
    offset_us: u64,
    /// Error of the wall clock at the start, plus all its steps.
    pub(super) wall_offset_us: i64,
}

impl ClientClock {
    pub(super) fn new(raw_ppm: i64, boot_ppm: i64, offset: Duration, wall_offset_us: i64) -> Self {
        Self { raw_ppm, boot_ppm, offset, wall_offset_us, slept: 0, sleeps_since: None }
    }

    pub(super) fn at(&self, now: Ns) -> Moment {
        let awake = self.sleeps_since.map_or(now, |since| now.min(since)) - self.slept;
        let boot = self.offset * 3 + Duration::from_nanos(scaled(now, self.boot_ppm));
        let raw = self.offset + Duration::from_nanos(scaled(awake, self.raw_ppm));
        Moment { boot, raw }
    }

    /// In microseconds since 1970.
    pub(super) fn wall_us(&self, now: Ns) -> u64 {
        (EPOCH_US + now / 1000).saturating_add_signed(self.wall_offset_us)
    }

    /// Returns the first time from `now` on at which either clock has reached the deadline, if the
    /// machine does not sleep until then. Returns `None` for a deadline that no run reaches.
    pub(super) fn when(&self, deadline: Moment, now: Ns) -> Option<Ns> {
        let left = self.at(now).until(deadline);
        let left = u64::try_from(left.as_nanos()).ok().filter(|left| *left < NEVER_NS)?;
        // The faster clock decides. The loop corrects rounding errors.
        let fastest = self.raw_ppm.max(self.boot_ppm);
        let mut at = now + unscaled(left, fastest);
        while !self.at(at).has_reached(deadline) {
            let left = u64::try_from(self.at(at).until(deadline).as_nanos()).unwrap_or(NEVER_NS);
            at += unscaled(left, fastest).max(1);
        }
        Some(at)
    }

    pub(super) fn sleep(&mut self, now: Ns) {
        self.sleeps_since.get_or_insert(now);
    }

    pub(super) fn wake(&mut self, now: Ns) {
        if let Some(since) = self.sleeps_since.take() {
            self.slept += now - since;
        }
    }
}

impl NodeClock {
    pub(super) fn new(ppm: i64, offset_us: u64, wall_offset_us: i64) -> Self {
        Self { ppm, offset_us, wall_offset_us }
    }

    pub(super) fn at(&self, now: Ns) -> Now {
        let us = scaled(now, self.ppm) / 1000;
        Now {
            monotonic: Monotonic::from_us(self.offset_us + us),
            wall_us: (EPOCH_US + us).saturating_add_signed(self.wall_offset_us),
        }
    }

    /// Returns the first time from `now` on at which the monotonic clock reads `at` or more.
    pub(super) fn when(&self, at: Monotonic, now: Ns) -> Ns {
        let left_us = at.us_since(self.at(now).monotonic);
        if left_us == 0 {
            return now;
        }
        let target = (at.us() - self.offset_us) * 1000;
        let mut time = unscaled(target, self.ppm).max(now);
        while self.at(time).monotonic < at {
            time += 1;
        }
        time
    }

    /// Returns the time at which the wall clock reads `ms`, if it is not stepped before.
    pub(super) fn when_wall(&self, ms: u64, now: Ns) -> Ns {
        let left_ms = ms.saturating_sub(self.at(now).wall_ms());
        now + unscaled(left_ms.saturating_mul(MS), self.ppm)
    }
}

/// Returns how far a clock of this rate advances in this true time.
fn scaled(time: Ns, ppm: i64) -> u64 {
    let change = i128::from(time) * i128::from(ppm) / 1_000_000;
    time.saturating_add_signed(i64::try_from(change).unwrap_or_default())
}

/// Returns the true time in which a clock of this rate advances by `time`.
fn unscaled(time: u64, ppm: i64) -> Ns {
    let per_million = 1_000_000 + ppm;
    let true_time = i128::from(time) * 1_000_000 / i128::from(per_million);
    u64::try_from(true_time).unwrap_or(NEVER_NS)
}
