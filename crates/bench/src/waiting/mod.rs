//! Waiting for a lock: how fast it is handed over, how fairly, at what cost, and what happens to
//! waiters when something fails.
//!
//! - [`handover`]: from holder to waiter, on one node and between processes
//! - [`throughput`]: locks per second on one key, and a thousand tasks of one process
//! - [`cost`]: what waiters cost the masters
//! - [`accidents`]: a node that fails, and waiters that are cut off, hang up or time out
//! - [`clients`]: the clients that compete
//! - [`processes`]: clients in separate processes
//! - [`timeline`]: which client held the lock at which time

mod accidents;
mod clients;
mod cost;
mod handover;
pub(crate) mod processes;
mod throughput;
mod timeline;

use std::time::Duration;

use clap::ValueEnum;

use crate::report::{Progress, TargetRow};

/// Options of the measurements of waiting.
#[derive(Clone, clap::Args)]
pub(crate) struct Waiting {
    /// Shorten each measurement of waiting to a third
    #[arg(long)]
    quick: bool,

    /// Measure only this part of waiting; may be repeated
    #[arg(long, value_enum)]
    part: Vec<Part>,
}

/// A part that can be measured alone.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A handover on one node
    OneNode,
    /// Handovers between processes on three and five masters
    Masters,
    /// Locks per second on one key
    Throughput,
    /// What waiting clients cost while a lock is held
    Held,
    /// Fairness between processes
    Fairness,
    /// Locks per second of a thousand tasks of one process
    OneProcess,
    /// One node fails
    LostNode,
    /// Ten thousand clients that wait on one server
    ManyWaiters,
    /// Waiters that are cut off, hang up or time out
    Stress,
}

impl Waiting {
    pub(crate) async fn measure(self, progress: Progress) -> anyhow::Result<Vec<TargetRow>> {
        let effort = if self.quick { Effort::Quick } else { Effort::Full };
        let mut rows = Vec::new();
        for part in self.parts() {
            rows.extend(match part {
                Part::OneNode => handover::measure_on_one_node(effort, &progress).await?,
                Part::Masters => handover::measure_between_processes(effort, &progress).await?,
                Part::Throughput => throughput::measure(effort, &progress).await?,
                Part::Held => cost::measure_commands(effort, &progress).await?,
                Part::Fairness => handover::measure_fairness(effort, &progress).await?,
                Part::OneProcess => throughput::measure_one_process(effort, &progress).await?,
                Part::LostNode => accidents::measure_lost_node(effort, &progress).await?,
                Part::ManyWaiters => cost::measure_many_waiters(effort, &progress).await?,
                Part::Stress => accidents::measure_stress(effort, &progress).await?,
            });
            progress.step();
        }
        Ok(rows)
    }

    pub(crate) fn steps(&self) -> u64 {
        self.parts().len() as u64
    }

    fn parts(&self) -> Vec<Part> {
        if self.part.is_empty() { Part::value_variants().to_vec() } else { self.part.clone() }
    }
}

fn ratio(numerator: u64, denominator: u64) -> f64 {
    as_f64(numerator) / as_f64(denominator)
}

#[expect(clippy::cast_precision_loss, reason = "nothing here is counted beyond 2^52")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Length of a measurement: full, or a third for a rough figure.
#[derive(Clone, Copy)]
pub(crate) enum Effort {
    Full,
    Quick,
}

impl Effort {
    pub(crate) fn time(self, full: Duration) -> Duration {
        match self {
            Self::Full => full,
            Self::Quick => full / 3,
        }
    }

    pub(crate) fn count(self, full: u64) -> u64 {
        match self {
            Self::Full => full,
            Self::Quick => full / 3,
        }
    }
}
