use anyhow::{Context as _, Result};

use crate::harness::Protected;

/// One kind of accident, injected into a real server.
pub struct Scenario {
    /// The accident, as the table of results shows it.
    pub accident: &'static str,
    /// The expected effect of the same accident without the protection.
    pub baseline: Baseline,
    /// Starts a server, causes the accident, and records the harm.
    pub(crate) round: fn(Protected, &mut Tally) -> Result<()>,
}

/// What the baseline of a scenario must show: the effect of the accident without the protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// The accident does harm. The text says what the baseline uses instead of the protection.
    Harmed(&'static str),
    /// The accident does no harm even without the protection.
    ///
    /// The text says what the baseline uses instead, and why that is enough for this accident.
    Unharmed(&'static str),
    /// There is no baseline. The text says why.
    None(&'static str),
}

/// The result of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often the accident happened.
    pub injected: u32,
    /// The harm to locks: at most as many entries as accidents.
    pub harms: Vec<String>,
}

impl Tally {
    /// Counts an accident that has certainly happened.
    pub(crate) fn count_injected(&mut self) {
        self.injected += 1;
    }

    /// Records harm. Ignores it if there are as many entries as accidents already.
    pub(crate) fn harm(&mut self, what: impl Into<String>) {
        assert!(self.injected > 0, "no accident has happened yet");
        if self.harms.len() < self.injected as usize {
            self.harms.push(what.into());
        }
    }

    /// Records harm unless the condition holds.
    pub(crate) fn harm_unless(&mut self, holds: bool, else_what: impl FnOnce() -> String) {
        if !holds {
            self.harm(else_what());
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
            (self.round)(protected, &mut tally).with_context(|| self.accident)?;
        }
        Ok(tally)
    }
}
