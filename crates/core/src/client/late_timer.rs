use super::limits;
use crate::mutants::{ClientRule, is_broken};
use crate::quorum::Moment;

/// Lets a machine read answers before a timer that fired late expires requests.
///
/// A timer fires late if the process did not run: it was stopped, its machine slept, or it was
/// busy. Answers that arrived meanwhile are still in the sockets, so the nodes were not silent. The
/// machine waits for [`limits::LATE_TIMER`], once for each such timer, and the answers that
/// are read in this pause come first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LateTimer {
    /// The last timer that fired late, and the end of the pause that it caused.
    postponed: Option<(Moment, Moment)>,
}

impl LateTimer {
    /// When to call the machine, whose next timer is due at `due`.
    pub(super) fn next(&self, due: Option<Moment>) -> Option<Moment> {
        match self.postponed {
            Some((late, until)) if due == Some(late) => Some(until),
            _ => due,
        }
    }

    /// Whether the machine must not handle its timers yet. `due` is the time of the first one.
    pub(super) fn postpones(&mut self, due: Option<Moment>, now: Moment) -> bool {
        let Some(due) = due.filter(|due| now.has_reached(*due)) else { return false };
        match self.postponed {
            Some((late, until)) if late == due => !now.has_reached(until),
            _ if now.since(due) <= limits::LATE_TIMER || is_broken(ClientRule::PauseIsSilence) => {
                false
            }
            _ => {
                self.postponed = Some((due, now.plus(limits::LATE_TIMER)));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> Moment {
        Moment { raw: Duration::from_millis(ms), boot: Duration::from_millis(ms) }
    }

    #[test]
    fn timer_in_time_is_handled_at_once() {
        let mut late = LateTimer::default();
        assert_eq!(late.next(Some(at(50))), Some(at(50)));
        assert!(!late.postpones(Some(at(50)), at(50)));
        assert!(!late.postpones(Some(at(50)), at(50).plus(limits::LATE_TIMER)));
        assert!(!late.postpones(None, at(50)));
    }

    #[test]
    fn late_timer_is_postponed_once() {
        let mut late = LateTimer::default();
        let due = Some(at(50));
        assert!(late.postpones(due, at(200)));
        let until = at(200).plus(limits::LATE_TIMER);
        assert_eq!(late.next(due), Some(until));
        assert!(late.postpones(due, at(201)));
        assert!(!late.postpones(due, until));
        assert!(!late.postpones(due, at(900)), "a second pause expires it");
        assert_eq!(late.next(Some(at(950))), Some(at(950)));
        assert!(late.postpones(Some(at(950)), at(1000)), "another timer is another request");
    }
}
