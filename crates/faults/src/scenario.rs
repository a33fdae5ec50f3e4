use anyhow::{Context as _, Result};

use crate::harness::Protected;

pub struct Scenario {
    /// As the table of results shows it.
    pub accident: &'static str,
    pub baseline: Baseline,
    /// Starts a server, causes the accident, and records the harm.
    pub(crate) run: fn(Protected, &mut Tally) -> Result<()>,
}

/// What the baseline of a scenario must show: the effect of the accident without the protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// The accident does harm. The text says what the baseline uses instead of the protection.
    Harmed(&'static str),
    /// The accident does no harm even without the protection. The text says what the baseline uses
    /// instead, and why that is enough for this accident.
    Unharmed(&'static str),
    /// There is no baseline. The text says why.
    None(&'static str),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often the accident has certainly happened.
    pub injected: u32,
    /// The harm to locks: at most as many entries as accidents.
    pub harms: Vec<String>,
}

impl Tally {
    pub(crate) fn count_injected(&mut self) {
        self.injected += 1;
    }

    /// Records harm, unless there are as many entries as accidents already.
    pub(crate) fn harm(&mut self, what: impl Into<String>) {
        assert!(self.injected > 0, "no accident has happened yet");
        if self.harms.len() < self.injected as usize {
            self.harms.push(what.into());
        }
    }

    /// Records the harm `what` unless the condition holds.
    pub(crate) fn check(&mut self, holds: bool, what: impl Into<String>) {
        if !holds {
            self.harm(what);
        }
    }
}

impl Scenario {
    /// Runs the accident `rounds` times, each time on a new server.
    ///
    /// # Errors
    /// When the accident could not be caused, or the server failed in another way.
    pub fn run(&self, protected: Protected, rounds: u32) -> Result<Tally> {
        let mut tally = Tally::default();
        for _ in 0..rounds {
            (self.run)(protected, &mut tally).with_context(|| self.accident)?;
        }
        Ok(tally)
    }
}
