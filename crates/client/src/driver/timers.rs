//! Times at which state machines have something to do.

use std::collections::BTreeSet;
use std::future::pending;
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use quorlock_core::quorum::Moment;

use crate::clock;

/// Waits until this moment. Never returns if there is none.
pub(crate) async fn sleep_until(wake_at: Option<Moment>) {
    match wake_at {
        Some(wake_at) => tokio::time::sleep(clock::now().until(wake_at)).await,
        None => pending().await,
    }
}

/// What is known by the number of a machine.
pub(super) type ByNumber<T> = HashMap<u64, T, FixedState>;

/// The timers of the machines of one shard, by the clock that stops while the computer sleeps.
/// After it has slept, they may be late: then all are due.
#[derive(Default)]
pub(super) struct Timers {
    by_machine: ByNumber<Duration>,
    in_order: BTreeSet<(Duration, u64)>,
}

impl Timers {
    /// Sets the timer of a machine. One that fires earlier stays: calling a machine that has
    /// nothing to do costs less than setting its timer at each event.
    pub(super) fn set(&mut self, machine: u64, at: Option<Moment>, now: Moment) {
        let before = self.by_machine.get(&machine).copied();
        let at = at.map(|at| now.raw.saturating_add(now.until(at)));
        if at.is_some_and(|at| before.is_some_and(|before| before <= at)) {
            return;
        }
        if let Some(before) = before {
            self.by_machine.remove(&machine);
            self.in_order.remove(&(before, machine));
        }
        if let Some(at) = at {
            self.by_machine.insert(machine, at);
            self.in_order.insert((at, machine));
        }
    }

    /// When the next timer fires; the largest time there is without a timer.
    pub(super) fn next(&self) -> Duration {
        self.in_order.first().map_or(Duration::MAX, |(at, _)| *at)
    }

    /// Removes and returns the machines whose timers fire by this time.
    pub(super) fn take_due(&mut self, by: Duration) -> Vec<u64> {
        let due = self.in_order.iter().take_while(|(at, _)| *at <= by);
        let due: Vec<u64> = due.map(|(_, machine)| *machine).collect();
        for machine in &due {
            if let Some(at) = self.by_machine.remove(machine) {
                self.in_order.remove(&(at, *machine));
            }
        }
        due
    }
}
