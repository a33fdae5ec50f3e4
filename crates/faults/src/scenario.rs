use anyhow::{Context as _, Result};

use crate::harness::Protected;

/// One kind of accident, done to a real server.
pub struct Scenario {
    /// What is done.
    pub fault: &'static str,
    /// What the same accident does without the protection.
    pub baseline: Baseline,
    pub(crate) round: fn(Protected, &mut Tally) -> Result<()>,
}

/// The same accident where the protection is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// It does harm there: with locks that are kept so.
    Harmed(&'static str),
    /// It does no harm there either, for this reason.
    Unharmed(&'static str),
    /// There is none, for this reason.
    None(&'static str),
}

/// What has come of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often the fault was injected.
    pub injected: u32,
    /// What each of them has done to a lock that it should not have: at most one for each fault.
    pub harms: Vec<String>,
}

impl Tally {
    /// The fault was injected, for certain.
    pub(crate) fn injected(&mut self) {
        self.injected += 1;
    }

    /// It has done harm. Only the first of a round counts.
    pub(crate) fn harm(&mut self, what: impl Into<String>) {
        assert!(self.injected > 0, "what comes before the first fault is not its harm");
        if self.harms.len() < self.injected as usize {
            self.harms.push(what.into());
        }
    }

    /// It has done harm unless this holds.
    pub(crate) fn must(&mut self, holds: bool, else_what: impl FnOnce() -> String) {
        if !holds {
            self.harm(else_what());
        }
    }
}

impl Scenario {
    /// Injects the fault so many times, each time into a server that is new.
    ///
    /// # Errors
    /// When it could not be injected, or the server did something that has nothing to do with it.
    pub fn run(&self, protected: Protected, rounds: u32) -> Result<Tally> {
        let mut tally = Tally::default();
        for _ in 0..rounds {
            (self.round)(protected, &mut tally).with_context(|| self.fault)?;
        }
        Ok(tally)
    }
}
