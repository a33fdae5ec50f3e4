use anyhow::{Context as _, Result};

use crate::harness::Protected;

/// One kind of accident, injected into a real server.
pub struct Scenario {
    /// The accident.
    pub fault: &'static str,
    /// The result of the same accident without the protection.
    pub baseline: Baseline,
    pub(crate) round: fn(Protected, &mut Tally) -> Result<()>,
}

/// The same accident without the protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// It does harm, with locks that are kept this way.
    Harmed(&'static str),
    /// It does no harm either, for this reason.
    Unharmed(&'static str),
    /// There is no baseline, for this reason.
    None(&'static str),
}

/// The result of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of faults that were injected.
    pub injected: u32,
    /// The harm of each fault to a lock: at most one for each fault.
    pub harms: Vec<String>,
}

impl Tally {
    /// Counts a fault that was certainly injected.
    pub(crate) fn injected(&mut self) {
        self.injected += 1;
    }

    /// Records harm. Only the first of a round counts.
    pub(crate) fn harm(&mut self, what: impl Into<String>) {
        assert!(self.injected > 0, "what comes before the first fault is not its harm");
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
    /// Injects the fault in each round into a new server.
    ///
    /// # Errors
    /// When it could not be injected, or the server did something unrelated and unexpected.
    pub fn run(&self, protected: Protected, rounds: u32) -> Result<Tally> {
        let mut tally = Tally::default();
        for _ in 0..rounds {
            (self.round)(protected, &mut tally).with_context(|| self.fault)?;
        }
        Ok(tally)
    }
}
