//! The steps of a node: a real server and a model of it take the same steps, and must agree after
//! each step. Tables write the steps and their results down; a fuzzer draws them.
//!
//! - `wire`: raw connections
//! - `command`: the steps of an episode, and the commands in them
//! - [`Claim`], `table`: steps with their results, as text
//! - `executor`: runs a table in memory and on a real server
//! - `draw`: draws the next step
//! - `model`: a node's state machine over keys in memory, and the effects of plain commands on them
//! - `view`: the compared state: replies, keys, and figures
//! - `episode`: one server, its clients, and the steps that they take
//! - `accidents`: steps that affect the whole server
//!
//! A seed decides all random choices, but neither the clocks nor the order in which the server
//! reads its sockets. Two runs with the same seed may therefore take different steps.
//!
//! No step begins while a timed event, such as an expiry, is near. On a busy machine such an event
//! may still fall into a step. Then the episode ends without a verdict.

mod accidents;
mod command;
mod draw;
mod episode;
mod executor;
mod model;
mod table;
mod view;
mod wire;

use anyhow::{Result, ensure};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use self::episode::{Config, Episode, Trouble};
pub use self::table::{Claim, table};

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub steps: u64,
    /// The number of the first episode.
    pub first_episode: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub steps: u64,
    /// Number of episodes, each with a server and a configuration of its own.
    pub episodes: u64,
    /// Number of episodes that ended early because the result of a step was not certain.
    pub cut_short: u64,
    /// How often each kind of step was taken.
    pub kinds: std::collections::BTreeMap<String, u64>,
    /// The first difference between the server and the model.
    pub difference: Option<String>,
}

/// Takes the steps of a plan, or fewer if the server and the model differ. Calls `progress` after
/// each step.
///
/// # Errors
/// When a server cannot be started, or the run fails, for example because the server does not
/// answer.
pub fn run(plan: Plan, mut progress: impl FnMut(&Report)) -> Result<Report> {
    let mut report = Report::default();
    let mut number = plan.first_episode;
    while report.steps < plan.steps {
        let steps_before = report.steps;
        let seed = plan.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut rng = StdRng::seed_from_u64(seed);
        let mut episode = Episode::start(Config::draw(&mut rng), rng)?;
        report.episodes += 1;
        let ended = episode.run(plan.steps - steps_before, |steps, kind| {
            report.steps = steps_before + steps;
            *report.kinds.entry(kind).or_default() += 1;
            progress(&report);
        });
        let described =
            || format!("episode {number}, step {}\n{}", report.steps, episode.describe());
        match ended {
            Ok(()) => {}
            Err(Trouble::Undecided) => {
                report.cut_short += 1;
                let is_stuck = report.cut_short > report.steps + 100;
                ensure!(!is_stuck, "this machine is too slow: too few steps have a certain result");
            }
            Err(Trouble::Difference(what)) => {
                let what = format!("seed {}, {}\nThe difference: {what}", plan.seed, described());
                report.difference = Some(what);
                break;
            }
            Err(Trouble::Failed(error)) => {
                return Err(error.context(format!("{}\nThe failure", described())));
            }
        }
        number += 1;
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `make fuzz-node` takes more steps.
    #[test]
    fn server_and_model_agree_after_each_step() {
        let plan = Plan { seed: 1, steps: 1200, first_episode: 0 };
        let report = run(plan, |_| {}).unwrap_or_else(|error| panic!("{error:#}"));
        let difference = report.difference.as_deref();
        assert_eq!(difference, None, "{}", difference.unwrap_or_default());
        assert!(report.steps >= plan.steps, "{report:?}");
    }
}
