use std::time::Duration;

use crate::Ttl;
use crate::quorum::Moment;

/// The ttl divided by this is the time between SIGKILL and the end of the validity.
const KILL_MARGIN_PER_TTL: u32 = 20;
/// Without `kill_after`, the ttl divided by this is the time between SIGTERM and the end of the
/// validity.
const TERMINATE_PER_TTL: u32 = 3;
/// The ttl divided by this is the longest grace after a loss that the nodes reported: another
/// client may already hold the lock.
const LOST_GRACE_PER_TTL: u32 = 20;

/// When to terminate and when to kill a command that runs under a lock.
///
/// The command is terminated when the lock was not extended in time, when it is lost, or when the
/// process that extends it is gone. The kill follows after a grace, and before the validity ends.
/// An extension after the termination does not prevent the kill.
#[derive(Clone, Debug)]
pub struct StopSchedule {
    ttl: Ttl,
    grace: Duration,
    terminate_at: Moment,
    kill_at: Moment,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// An extension still moves `terminate_at` and `kill_at`.
    Running,
    /// The command must be terminated now.
    Ending,
    Terminated,
    Killed,
}

/// What to do with the command and all processes that it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopAction {
    /// Send SIGTERM.
    Terminate,
    /// Send SIGKILL.
    Kill,
}

/// The grace leaves too little time to extend the lock before the command is terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the grace must be at most {} ms, two fifths of the ttl", longest.as_millis())]
pub struct GraceTooLong {
    /// The longest grace for this ttl.
    pub longest: Duration,
}

impl StopSchedule {
    /// Starts the schedule of a command under a lock of `ttl` that is valid until `deadline`.
    ///
    /// `kill_after` is the grace between termination and kill. By default, the command is
    /// terminated when a third of the ttl is left.
    pub fn new(
        ttl: Ttl,
        kill_after: Option<Duration>,
        deadline: Moment,
    ) -> Result<Self, GraceTooLong> {
        let longest = ttl.duration() * 2 / 5;
        let default_grace = (ttl.duration() / TERMINATE_PER_TTL).saturating_sub(margin(ttl));
        let grace = kill_after.unwrap_or(default_grace);
        if grace > longest {
            return Err(GraceTooLong { longest });
        }
        let (terminate_at, kill_at) = (deadline, deadline);
        let mut schedule = Self { ttl, grace, terminate_at, kill_at, stage: Stage::Running };
        schedule.handle_extended(deadline);
        Ok(schedule)
    }

    /// Records that the lock was extended and is now valid until `deadline`.
    pub fn handle_extended(&mut self, deadline: Moment) {
        if self.stage == Stage::Running {
            self.kill_at = before(deadline, margin(self.ttl));
            self.terminate_at = before(self.kill_at, self.grace);
        }
    }

    /// Records that the lock has ended on the nodes. Another client may hold it.
    pub fn handle_lost(&mut self, now: Moment) {
        self.end(now, self.grace.min(self.ttl.duration() / LOST_GRACE_PER_TTL));
    }

    /// Records that the process that extends the lock is gone.
    pub fn handle_abandoned(&mut self, now: Moment) {
        self.end(now, self.grace);
    }

    fn end(&mut self, now: Moment, grace: Duration) {
        self.kill_at = self.kill_at.earlier(now.plus(grace));
        if self.stage == Stage::Running {
            self.terminate_at = self.terminate_at.earlier(now);
            self.stage = Stage::Ending;
        }
    }

    /// Returns what to do now; `None` if nothing is due.
    pub fn poll(&mut self, now: Moment) -> Option<StopAction> {
        match self.stage {
            Stage::Killed => None,
            _ if now.has_reached(self.kill_at) => {
                self.stage = Stage::Killed;
                Some(StopAction::Kill)
            }
            Stage::Running | Stage::Ending if now.has_reached(self.terminate_at) => {
                self.stage = Stage::Terminated;
                self.kill_at = self.kill_at.earlier(now.plus(self.grace));
                Some(StopAction::Terminate)
            }
            _ => None,
        }
    }

    /// When to call [`poll`](Self::poll) again; `None` after the kill.
    pub fn poll_timeout(&self) -> Option<Moment> {
        match self.stage {
            Stage::Running | Stage::Ending => Some(self.terminate_at),
            Stage::Terminated => Some(self.kill_at),
            Stage::Killed => None,
        }
    }

    /// Whether the command was terminated or killed.
    pub fn has_acted(&self) -> bool {
        matches!(self.stage, Stage::Terminated | Stage::Killed)
    }

    /// When the kill is overdue: after it is due, and before the validity ends.
    ///
    /// A second process with the same schedule then kills a command that the first has not killed.
    pub fn overdue_at(&self) -> Moment {
        self.kill_at.plus(margin(self.ttl) / 2)
    }
}

fn margin(ttl: Ttl) -> Duration {
    ttl.duration() / KILL_MARGIN_PER_TTL
}

fn before(moment: Moment, by: Duration) -> Moment {
    Moment { boot: moment.boot.saturating_sub(by), raw: moment.raw.saturating_sub(by) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TTL: Ttl = match Ttl::from_ms(10_000) {
        Ok(ttl) => ttl,
        Err(_) => unreachable!(),
    };

    fn at(ms: u64) -> Moment {
        Moment::default().plus(Duration::from_millis(ms))
    }

    fn schedule(kill_after_ms: Option<u64>) -> StopSchedule {
        StopSchedule::new(TTL, kill_after_ms.map(Duration::from_millis), at(10_000)).unwrap()
    }

    /// Returns when a schedule without further events terminates and kills.
    fn times(mut schedule: StopSchedule, mut now: Moment) -> (Option<Moment>, Moment) {
        let mut terminated = None;
        loop {
            match schedule.poll(now) {
                Some(StopAction::Terminate) => terminated = Some(now),
                Some(StopAction::Kill) => return (terminated, now),
                None => {
                    let next = schedule.poll_timeout().unwrap();
                    assert!(!now.has_reached(next), "{schedule:?} does nothing at {now:?}");
                    now = next;
                }
            }
        }
    }

    #[test]
    fn kill_is_due_before_the_deadline_and_termination_a_grace_before_the_kill() {
        let third_left = before(at(10_000), TTL.duration() / 3);
        for (kill_after_ms, polled_from, terminated, killed) in [
            (None, 0, Some(third_left), 9500),
            (Some(4000), 0, Some(at(5500)), 9500),
            (Some(1000), 0, Some(at(8500)), 9500),
            (Some(0), 0, None, 9500),
            // A late termination does not delay the kill.
            (Some(1000), 9000, Some(at(9000)), 9500),
            (Some(1000), 9500, None, 9500),
            (None, 60_000, None, 60_000),
        ] {
            let times = times(schedule(kill_after_ms), at(polled_from));
            assert_eq!(times, (terminated, at(killed)), "{kill_after_ms:?} from {polled_from}");
        }
    }

    #[test]
    fn grace_above_two_fifths_of_the_ttl_is_refused() {
        let error =
            StopSchedule::new(TTL, Some(Duration::from_millis(4001)), at(10_000)).unwrap_err();
        assert_eq!(error.longest, Duration::from_secs(4));
    }

    #[test]
    fn extension_moves_both_times_until_the_command_is_terminated() {
        let mut extended = schedule(None);
        extended.handle_extended(at(20_000));
        assert_eq!(extended.poll(at(19_000 - 2500)), None);
        assert_eq!(times(extended.clone(), at(0)).1, at(19_500));

        assert_eq!(extended.poll(at(16_700)), Some(StopAction::Terminate));
        extended.handle_extended(at(30_000));
        assert_eq!(times(extended, at(16_700)).1, at(19_500));
    }

    #[test]
    fn grace_is_short_for_a_lost_lock_and_full_for_an_abandoned_one() {
        let mut lost = schedule(None);
        lost.handle_lost(at(1000));
        lost.handle_extended(at(20_000));
        assert_eq!(times(lost, at(1000)), (Some(at(1000)), at(1500)));

        let mut bounded = schedule(Some(100));
        bounded.handle_lost(at(1000));
        assert_eq!(times(bounded, at(1000)), (Some(at(1000)), at(1100)));

        let mut abandoned = schedule(Some(2000));
        abandoned.handle_abandoned(at(1000));
        assert_eq!(times(abandoned, at(1000)), (Some(at(1000)), at(3000)));

        let mut late = schedule(Some(2000));
        late.handle_abandoned(at(9000));
        assert_eq!(times(late, at(9000)), (Some(at(9000)), at(9500)));
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Extended,
        Lost,
        Abandoned,
    }

    /// A simulated schedule. One of the two clocks is fast, and timers are late.
    #[derive(Clone, Debug)]
    struct Run {
        ttl: Ttl,
        kill_after: Option<Duration>,
        fast_ppm: u64,
        /// How late timers fire, in thousandths of the ttl, at most 4.
        timers_late: u64,
        /// Each event with the time since the previous one, in twentieths of the ttl.
        events: Vec<(u64, Event)>,
    }

    fn runs() -> impl Strategy<Value = Run> {
        let event = prop_oneof![4 => Just(Event::Extended), 1 => Just(Event::Lost), 1 => Just(Event::Abandoned)];
        let events = prop::collection::vec((0_u64..12, event), 0..20);
        let kill_after = prop::option::of(0_u32..=400);
        (100_u64..60_000, kill_after, 0_u64..10_000, 0_u64..5, events).prop_map(
            |(ttl_ms, kill_after, fast_ppm, timers_late, events)| {
                let ttl = Ttl::from_ms(ttl_ms).unwrap();
                let kill_after = kill_after.map(|per_mille| ttl.duration() * per_mille / 1000);
                Run { ttl, kill_after, fast_ppm, timers_late, events }
            },
        )
    }

    impl Run {
        fn moment(&self, us: u64) -> Moment {
            let fast_us = us + us * self.fast_ppm / 1_000_000;
            Moment { boot: Duration::from_micros(fast_us), raw: Duration::from_micros(us) }
        }

        /// Returns when the command is terminated and killed, when the kill is overdue, and when
        /// the validity ends.
        fn simulate(&self) -> (Option<Moment>, Moment, Moment, Moment) {
            let ttl = self.ttl.duration();
            let (mut us, mut events) = (0, self.events.iter());
            let mut valid_until = self.moment(us).plus(ttl);
            let mut schedule = StopSchedule::new(self.ttl, self.kill_after, valid_until).unwrap();
            let (mut terminated, mut is_ending) = (None, false);
            let mut next = events.next().map(|(after, event)| (after * self.ttl.us() / 20, event));
            loop {
                let now = self.moment(us);
                let overdue = schedule.overdue_at();
                match schedule.poll(now) {
                    Some(StopAction::Terminate) => (terminated, is_ending) = (Some(now), true),
                    Some(StopAction::Kill) => return (terminated, now, overdue, valid_until),
                    None => {}
                }
                let due = schedule.poll_timeout().expect("the command is not killed yet");
                let left_us = u64::try_from(now.until(due).as_micros()).unwrap();
                let timer = us + left_us + 1 + self.timers_late * self.ttl.us() / 1000;
                let Some((at, event)) = next.filter(|(at, _)| *at < timer) else {
                    us = timer;
                    continue;
                };
                us = us.max(at);
                let now = self.moment(us);
                match event {
                    Event::Extended if is_ending || now.has_reached(valid_until) => {}
                    Event::Extended => {
                        valid_until = now.plus(ttl);
                        schedule.handle_extended(valid_until);
                    }
                    Event::Lost => schedule.handle_lost(now),
                    Event::Abandoned => schedule.handle_abandoned(now),
                }
                is_ending |= !matches!(event, Event::Extended);
                next = events.next().map(|(after, event)| (us + after * self.ttl.us() / 20, event));
            }
        }
    }

    proptest! {
        #[test]
        fn kill_is_before_the_validity_ends_and_at_most_kill_after_later(run in runs()) {
            let (terminated, killed, overdue, valid_until) = run.simulate();
            prop_assert!(!killed.has_reached(valid_until));
            prop_assert!(!overdue.has_reached(valid_until));
            prop_assert!(!killed.has_reached(overdue), "the kill was overdue");
            if let (Some(terminated), Some(kill_after)) = (terminated, run.kill_after) {
                let lateness = run.ttl.duration() / 100;
                prop_assert!(killed.since(terminated) <= kill_after + lateness);
            }
        }
    }
}
