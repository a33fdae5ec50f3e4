//! A differential fuzzer: one real server and the model take the same steps, and must agree after
//! each of them.
//!
//! - `wire`: raw connections.
//! - `command`: the commands of a step.
//! - `step`: the steps of an episode.
//! - `draw`: draws the next step.
//! - `model`: the real node over keys in memory, and what plain commands do to those keys.
//! - `view`: the compared state.
//! - `episode`: one server, its clients, and the steps that they take.
//! - `accidents`: steps that concern the server as a whole.
//!
//! A seed decides all steps. Clocks and the order in which a server reads its sockets are not
//! decided by it, so that a seed repeats a run as far as a real server can. No step is taken while
//! something is about to happen by itself, and a step during which that happened all the same, on a
//! machine that is busy, ends the episode without a verdict.

mod accidents;
mod command;
mod draw;
mod episode;
mod model;
mod step;
mod view;
mod wire;

use anyhow::Result;

use self::episode::{Episode, Trouble};

/// The plan of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Decides all steps.
    pub seed: u64,
    /// The number of steps, at least.
    pub steps: u64,
    /// The first of the episodes that the seed decides.
    pub first_episode: u64,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The steps that were taken and compared.
    pub steps: u64,
    /// The servers that were started, each with its own configuration.
    pub episodes: u64,
    /// The episodes that ended early, since a step took so long that its result was open.
    pub cut_short: u64,
    /// How often each kind of step was taken.
    pub kinds: std::collections::BTreeMap<&'static str, u64>,
    /// The first difference between the server and the model, described for people to read.
    pub difference: Option<String>,
}

/// Takes steps until there are enough or the server and the model differ. Calls `progress` now and
/// then.
///
/// # Errors
/// When no server can be started.
pub fn run(plan: Plan, mut progress: impl FnMut(&Report)) -> Result<Report> {
    let mut report = Report::default();
    let mut number = plan.first_episode;
    while report.steps < plan.steps {
        let steps_before = report.steps;
        let mut episode = Episode::start(plan.seed, number)?;
        report.episodes += 1;
        let ended = episode.run(plan.steps - steps_before, draw::step, &mut |steps, kind| {
            report.steps = steps_before + steps;
            *report.kinds.entry(kind).or_default() += 1;
            progress(&report);
        });
        let difference = match ended {
            Ok(()) => None,
            Err(Trouble::Open) => {
                report.cut_short += 1;
                None
            }
            Err(Trouble::Difference(what)) => Some(what),
            Err(Trouble::Failed(error)) => Some(format!("the server cannot be queried: {error:#}")),
        };
        if let Some(what) = difference {
            let (seed, step, what) = (plan.seed, report.steps, episode.describe(&what));
            report.difference = Some(format!("seed {seed}, episode {number}, step {step}\n{what}"));
            break;
        }
        number += 1;
    }
    Ok(report)
}
