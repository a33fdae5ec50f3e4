use anyhow::{Context as _, Result};

use crate::harness::Protected;

/// One kind of accident, injected into a real server.
pub struct Scenario {
    /// The accident.
    pub fault: &'static str,
    /// The effect of the same accident without the protection.
    pub baseline: Baseline,
    /// Starts a server, injects the fault, and records the harm.
    pub(crate) round: fn(Protected, &mut Tally) -> Result<()>,
}

/// The effect of an accident without the protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// It does harm. The text names what replaces the protection.
    Harmed(&'static str),
    /// It does no harm either. The text names what replaces the protection, and the reason.
    Unharmed(&'static str),
    /// There is no baseline, for this reason.
    None(&'static str),
}

/// The result of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of faults that were injected.
    pub injected: u32,
    /// The harm to locks: at most one entry for each injected fault.
    pub harms: Vec<String>,
}

impl Tally {
    /// Counts a fault that was certainly injected.
    pub(crate) fn injected(&mut self) {
        self.injected += 1;
    }

    /// Records harm, unless each injected fault already has its harm.
    pub(crate) fn harm(&mut self, what: impl Into<String>) {
        assert!(self.injected > 0, "no fault has been injected yet");
        if self.harms.len() < self.injected as usize {
            self.harms.push(what.into());
        }
    }

    /// Records harm unless the condition holds.
    pub(crate) fn must(&mut self, holds: bool, else_what: impl FnOnce() -> String) {
        if !holds {
            self.harm(else_what());
        }
    }
}

impl Scenario {
    /// Runs the accident `rounds` times, each time on a new server.
    ///
    /// # Errors
    /// When the fault could not be injected, or the server failed in another way.
    pub fn run(&self, protected: Protected, rounds: u32) -> Result<Tally> {
        let mut tally = Tally::default();
        for _ in 0..rounds {
            (self.round)(protected, &mut tally).with_context(|| self.fault)?;
        }
        Ok(tally)
    }
}
