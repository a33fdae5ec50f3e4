//! Waiting for a lock: how fast it is handed over, how fairly, at what cost, and what becomes of those who wait when
//! something breaks.
//!
//! - [`one_node`]: a handover beside a PING
//! - [`masters`]: handovers between processes, and the commands they take, beside clients that poll
//! - [`throughput`]: locks per second of one key
//! - [`held`]: what waiting processes cost while a lock is held
//! - [`fairness`]: who waits how long
//! - [`one_process`]: a thousand tasks of one process
//! - [`lost_node`]: the node on which all wait goes away
//! - [`many_waiters`]: what ten thousand cost their server
//! - [`stress`]: clients that wait and are killed, cut off, or out of time
//!
//! What these share:
//!
//! - [`contender`], [`polling`]: the clients that compete
//! - [`worker`], [`crowd`]: competing, in processes of their own
//! - [`turns`], [`clock`]: who had the lock when
//! - [`info`]: what servers say of themselves
//! - [`effort`]: how long all of this takes

mod clock;
mod contender;
mod crowd;
mod effort;
mod fairness;
mod held;
pub(crate) mod info;
mod lost_node;
mod many_waiters;
mod masters;
mod one_node;
mod one_process;
mod polling;
mod stress;
mod throughput;
mod turns;
pub(crate) mod worker;

use clap::ValueEnum;

use self::effort::Effort;
use crate::limits::Row;
use crate::progress::Progress;

/// How, and what of it, to measure.
#[derive(Clone, clap::Args)]
pub(crate) struct Waiting {
    /// Measure waiting for a third of the time
    #[arg(long)]
    quick: bool,

    /// Measure only this of waiting; may be repeated
    #[arg(long, value_enum)]
    part: Vec<Part>,
}

/// What can be measured by itself.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A handover on one node
    OneNode,
    /// Handovers between processes on three and five masters
    Masters,
    /// Locks per second of one key
    Throughput,
    /// What waiting processes cost while a lock is held
    Held,
    /// Who waits how long
    Fairness,
    /// A thousand tasks of one process
    OneProcess,
    /// The node on which all wait goes away
    LostNode,
    /// Ten thousand clients that wait on one server
    ManyWaiters,
    /// Clients that wait and are killed, cut off, or out of time
    Stress,
}

impl Waiting {
    pub(crate) async fn measure(self, progress: Progress) -> anyhow::Result<Vec<Row>> {
        let effort = if self.quick { Effort::Quick } else { Effort::Full };
        let mut rows = Vec::new();
        for part in self.parts() {
            rows.extend(match part {
                Part::OneNode => one_node::measure(effort, &progress).await?,
                Part::Masters => masters::measure(effort, &progress).await?,
                Part::Throughput => throughput::measure(effort, &progress).await?,
                Part::Held => held::measure(effort, &progress).await?,
                Part::Fairness => fairness::measure(effort, &progress).await?,
                Part::OneProcess => one_process::measure(effort, &progress).await?,
                Part::LostNode => lost_node::measure(effort, &progress).await?,
                Part::ManyWaiters => many_waiters::measure(effort, &progress).await?,
                Part::Stress => stress::measure(effort, &progress).await?,
            });
            progress.step();
        }
        Ok(rows)
    }

    /// How many steps of [`Progress`] this takes.
    pub(crate) fn steps(&self) -> u64 {
        self.parts().len() as u64
    }

    fn parts(&self) -> Vec<Part> {
        if self.part.is_empty() { Part::value_variants().to_vec() } else { self.part.clone() }
    }
}

/// How many times as many.
#[expect(clippy::cast_precision_loss, reason = "nothing here is counted beyond 2^52")]
fn ratio(many: u64, few: u64) -> f64 {
    many as f64 / few as f64
}
