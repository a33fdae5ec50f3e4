use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::node::{Answer, Held, Node, PATIENCE};
use crate::Protected;
use crate::fuzz::{Claim, table};

#[derive(Debug)]
pub struct Scenario {
    /// What the scenario shows. Its test has this name.
    pub claim: &'static str,
    /// As the table of results shows it.
    pub accident: &'static str,
    pub baseline: Baseline,
    pub(super) run: Run,
}

/// How a scenario causes the accident, and finds the harm.
#[derive(Clone, Copy, Debug)]
pub(super) enum Run {
    /// A claim of a table of steps, which cause the accident.
    Claim(&'static str),
    /// A claim about a lock, and one about its counterpart without the protection. The second one
    /// describes the harm if the baseline is [`Baseline::Harmed`].
    Claims(&'static str, &'static str),
    /// Starts a server, causes the accident, and records the harm.
    Code(fn(&mut Trial) -> Result<()>),
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

/// The runs of a scenario with the protection, or without it.
#[derive(Debug)]
pub struct Trial {
    pub(super) protected: Protected,
    /// How often the accident has certainly happened.
    pub injected: u32,
    /// The harm to locks.
    pub harms: Vec<String>,
}

/// A ttl that is longer than a scenario takes, and shorter than each step of the wall clock.
pub(super) const LONG_TTL: Duration = Duration::from_secs(10);
pub(super) const GRANTED_WHILE_HELD: &str = "another client was granted the lock while it was held";

/// Returns a claim of a table of steps.
fn claim(name: &str) -> Result<Claim> {
    const TABLES: [&str; 4] = ["accidents", "baselines", "locks", "shared"];
    let mut all = TABLES.into_iter().flat_map(table);
    all.find(|claim| claim.name == name).with_context(|| format!("no claim: {name}"))
}

impl Scenario {
    /// Runs the accident `rounds` times, each time on a new server.
    ///
    /// # Errors
    /// When the accident could not be caused, or the server failed in another way.
    pub fn run(&self, protected: Protected, rounds: u32) -> Result<Trial> {
        let mut trial = Trial { protected, injected: 0, harms: Vec::new() };
        for _ in 0..rounds {
            let ran = match (self.run, protected, self.baseline) {
                (Run::Code(run), ..) => run(&mut trial),
                (Run::Claims(_, harm), Protected::No, Baseline::Harmed(_)) => trial.show(harm),
                (Run::Claims(_, claim), Protected::No, _)
                | (Run::Claim(claim) | Run::Claims(claim, _), ..) => trial.check_claim(claim),
            };
            ran.with_context(|| self.accident)?;
        }
        Ok(trial)
    }
}

impl Trial {
    pub(super) fn is_protected(&self) -> bool {
        self.protected == Protected::Yes
    }

    pub(super) fn harm(&mut self, what: impl Into<String>) {
        assert!(self.injected > 0, "no accident has happened yet");
        self.harms.push(what.into());
    }

    /// Records the harm `what` unless the condition holds.
    pub(super) fn check(&mut self, holds: bool, what: impl Into<String>) {
        if !holds {
            self.harm(what);
        }
    }

    /// Checks a claim of a table of steps.
    fn check_claim(&mut self, name: &str) -> Result<()> {
        let held = claim(name)?.hold_on_a_server();
        self.injected += 1;
        if let Err(what) = held {
            self.harm(what);
        }
        Ok(())
    }

    /// Shows the harm that a claim describes.
    fn show(&mut self, harm: &str) -> Result<()> {
        claim(harm)?.hold_on_a_server().map_err(anyhow::Error::msg)?;
        self.injected += 1;
        self.harm(harm);
        Ok(())
    }

    /// Returns the largest ttl, which is the length of an abstention. It is long in a baseline,
    /// which does not wait for the end of the lock: the lock must outlast the start of the server.
    pub(super) fn max_ttl(&self) -> Duration {
        if self.is_protected() { Duration::from_millis(1500) } else { LONG_TTL }
    }

    /// Returns the `lock.rejoin-delay` of a restart: -1 for the largest ttl.
    pub(super) fn rejoin_delay_ms(&self) -> i64 {
        if self.is_protected() { -1 } else { 0 }
    }

    /// Checks that a node abstains for this `reason`, because it may have forgotten a held lock.
    ///
    /// The node must abstain until the lock has ended, and for the largest ttl after `since`. Then
    /// it must vote. In a baseline, only one attempt of another client is checked.
    pub(super) fn check_abstains(
        &mut self,
        node: &mut Node,
        held: &Held,
        since: Instant,
        reason: &str,
    ) -> Result<()> {
        let max_ttl = self.max_ttl();
        let tried = node.acquire(&held.key, "another", max_ttl)?;
        let is_held = Instant::now() < held.must_last_until();
        match tried {
            Answer::Granted(_) if is_held => self.harm(GRANTED_WHILE_HELD),
            Answer::Abstains(words) if words.contains(reason) => {}
            // The machine was so slow that the abstention may be over.
            _ if since.elapsed() >= max_ttl => return Ok(()),
            other if self.is_protected() => {
                self.harm(format!("the node does not abstain for its {reason}: {other:?}"));
            }
            _ => {}
        }
        if !self.is_protected() {
            return Ok(());
        }
        let granted_by = self.check_ends(node, held, since + max_ttl)?;
        self.check(granted_by >= since + max_ttl, "the node voted again too early");
        Ok(())
    }

    /// Checks that another client can acquire a lock once it has ended, and this time has come, and
    /// not while the lock is held. Returns the time of the grant.
    pub(super) fn check_ends(
        &mut self,
        node: &mut Node,
        held: &Held,
        not_before: Instant,
    ) -> Result<Instant> {
        let until = held.must_end_by().max(not_before) + PATIENCE;
        let is_granted = node.acquire_until(until, &held.key, self.max_ttl())?;
        let granted_by = Instant::now();
        self.check(is_granted, "no other client can acquire the lock");
        self.check(granted_by >= held.must_last_until(), GRANTED_WHILE_HELD);
        Ok(granted_by)
    }
}
