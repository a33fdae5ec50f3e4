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
#[derive(Default)]
pub(super) struct Timers {
    by_machine: ByNumber<(Moment, Duration)>,
    in_order: BTreeSet<(Duration, u64)>,
    /// How far the two clocks are apart. They move apart while the computer sleeps.
    apart: Duration,
}

impl Timers {
    /// Sets the timer of a machine. One that fires earlier stays: calling a machine that has
    /// nothing to do costs less than setting its timer at each event.
    pub(super) fn set(&mut self, machine: u64, at: Option<Moment>) {
        let before = self.by_machine.get(&machine).map(|(_, fires_at)| *fires_at);
        // One of the clocks reaches the moment first.
        let at = at.map(|at| (at, at.raw.min(at.boot.saturating_sub(self.apart))));
        if at.is_some_and(|(_, at)| before.is_some_and(|before| before <= at)) {
            return;
        }
        if let Some(before) = before {
            self.by_machine.remove(&machine);
            self.in_order.remove(&(before, machine));
        }
        if let Some((at, fires_at)) = at {
            self.by_machine.insert(machine, (at, fires_at));
            self.in_order.insert((fires_at, machine));
        }
    }

    /// When the next timer fires.
    pub(super) fn next(&self) -> Option<Duration> {
        self.in_order.first().map(|(at, _)| *at)
    }

    /// Records how far the two clocks are apart after the computer has slept.
    pub(super) fn set_apart(&mut self, apart: Duration) {
        self.apart = apart;
        self.in_order.clear();
        for (machine, (at, _)) in std::mem::take(&mut self.by_machine) {
            self.set(machine, Some(at));
        }
    }

    /// Removes and returns the machines whose timers fire now.
    pub(super) fn take_due(&mut self, now: Moment) -> Vec<u64> {
        let due = self.in_order.iter().take_while(|(at, _)| *at <= now.raw);
        let due: Vec<u64> = due.map(|(_, machine)| *machine).collect();
        for &machine in &due {
            self.set(machine, None);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(boot_ms: u64, raw_ms: u64) -> Moment {
        Moment { boot: Duration::from_millis(boot_ms), raw: Duration::from_millis(raw_ms) }
    }

    #[test]
    fn timer_fires_when_the_first_of_the_clocks_reaches_it() {
        let mut timers = Timers::default();
        timers.set(1, Some(at(20, 20)));
        timers.set(2, Some(at(30, 30)));
        assert_eq!(timers.take_due(at(19, 19)), [0_u64; 0]);
        // The computer sleeps for 10 ms.
        timers.set_apart(Duration::from_millis(10));
        timers.set(3, Some(at(31, 21)));
        assert_eq!(timers.next(), Some(Duration::from_millis(10)));
        assert_eq!(timers.take_due(at(29, 19)), [1]);
        assert_eq!(timers.take_due(at(30, 20)), [2]);
        assert_eq!(timers.take_due(at(31, 21)), [3]);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn earlier_timer_stays_until_it_is_cleared() {
        let mut timers = Timers::default();
        timers.set(1, Some(at(20, 20)));
        timers.set(1, Some(at(30, 30)));
        assert_eq!(timers.next(), Some(Duration::from_millis(20)));
        timers.set(1, Some(at(10, 10)));
        assert_eq!(timers.next(), Some(Duration::from_millis(10)));
        timers.set(1, None);
        assert_eq!(timers.next(), None);
    }
}
