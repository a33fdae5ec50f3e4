//! What a command costs the server with one build of the module, beside another build.

use std::path::Path;
use std::time::{Duration, Instant};

use quorlock_testkit::Server;
use redis::Connection;

use crate::report::{Progress, TargetRow, median, readable};
use crate::server_time::{TTL_MS, WARM_UP, Workload, lock_workloads};

/// Number of keys that are locked, extended and released in a round.
const KEYS: u32 = 20_000;
/// Number of pairs of servers, one server for each build. There are many pairs, because the memory
/// layout differs from server to server.
const PAIRS: usize = 20;
/// Number of rounds of each server. The two servers of a pair take turns. The best round counts:
/// other processes can only make a round slower.
const ROUNDS: usize = 10;
/// Largest allowed median, over all pairs, of the ratio of this build's time to the other's.
const RATIO_MAX: f64 = 1.05;

pub(crate) const STEPS: u64 = PAIRS as u64;

struct MeasuredServer {
    connection: Connection,
    /// For each command, the mean time of a call in the best round.
    best: [Duration; 3],
    _server: Server,
}

pub(crate) fn measure(
    module: &Path,
    against: &Path,
    progress: &Progress,
) -> anyhow::Result<Vec<TargetRow>> {
    progress.begin("server time per call, two builds of the module");
    let workloads = lock_workloads(KEYS);
    let mut pairs = Vec::new();
    for pair in 0..PAIRS {
        let mut ours = MeasuredServer::start(module)?;
        let mut theirs = MeasuredServer::start(against)?;
        let warm_at = Instant::now() + WARM_UP;
        while Instant::now() < warm_at {
            ours.run(&workloads)?;
            theirs.run(&workloads)?;
        }
        (ours.best, theirs.best) = ([Duration::MAX; 3], [Duration::MAX; 3]);
        for round in 0..ROUNDS {
            let mut order = [&mut ours, &mut theirs];
            if (pair + round) % 2 == 1 {
                order.reverse();
            }
            for server in order {
                server.run(&workloads)?;
            }
        }
        pairs.push((ours.best, theirs.best));
        progress.step();
    }
    let row = |(command, name): (usize, &str)| {
        let ours = median(pairs.iter().map(|(ours, _)| ours[command].as_secs_f64()));
        let theirs = median(pairs.iter().map(|(_, theirs)| theirs[command].as_secs_f64()));
        let ratio = median(
            pairs.iter().map(|(ours, theirs)| ours[command].div_duration_f64(theirs[command])),
        );
        let [ours, theirs] = [ours, theirs].map(|time| readable(Duration::from_secs_f64(time)));
        TargetRow {
            case: format!("server time of `{name}`, {KEYS} keys, beside another build"),
            measured: format!("{ratio:.3}, the median of {PAIRS} ratios; {ours} beside {theirs}"),
            target: "≤ 1.05",
            met: ratio <= RATIO_MAX,
        }
    };
    let names = ["LOCK.ACQUIRE", "LOCK.EXTEND", "LOCK.RELEASE"];
    Ok(names.into_iter().enumerate().map(row).collect())
}

impl MeasuredServer {
    fn start(module: &Path) -> anyhow::Result<Self> {
        let server = Server::with_module().module(module).arg("lock.max-ttl", TTL_MS).start()?;
        Ok(Self { connection: server.connection(), best: [Duration::MAX; 3], _server: server })
    }

    fn run(&mut self, workloads: &[Workload; 3]) -> anyhow::Result<()> {
        for (workload, best) in workloads.iter().zip(&mut self.best) {
            *best = (*best).min(workload.run(&mut self.connection)?);
        }
        Ok(())
    }
}
