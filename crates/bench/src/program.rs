//! What `quorlock run` adds to the time of a command: its own start, the acquire and the release.

use std::env;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_testkit::Nodes;

use crate::Effort;
use crate::instruments::Latencies;
use crate::report::Row;

const ROUNDS: u32 = 300;
/// These rounds do not count, because files are read for the first time in them.
const WARM_UP_ROUNDS: u32 = 20;
/// Largest time that a lock may add to the command.
const ADDED_MAX: Duration = Duration::from_millis(8);

/// Measures `true` under a lock and alone, in turn.
pub(crate) fn measure(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let program = env::current_exe()?.with_file_name("quorlock");
    ensure!(program.exists(), "{} is not there: run `make bench-program`", program.display());
    let mut nodes = Nodes::start(5);
    nodes[0].kill();
    let mut under_lock = Command::new(program);
    under_lock.env("QUORLOCK_NODES", nodes.urls().join(",")).args(["run", "bench", "--", "true"]);
    let mut commands = [Command::new("true"), under_lock];
    let mut took = [Latencies::new(), Latencies::new()];
    for round in 0..WARM_UP_ROUNDS + effort.count(ROUNDS) {
        for (command, took) in commands.iter_mut().zip(&mut took) {
            let started = Instant::now();
            let status = command.stdin(Stdio::null()).status().context("cannot run a command")?;
            ensure!(status.success(), "{command:?} failed: {status}");
            if round >= WARM_UP_ROUNDS {
                took.record(started.elapsed());
            }
        }
    }
    let [alone, under_lock] = took.each_ref().map(Latencies::p50);
    let longer = under_lock.saturating_sub(alone);
    Ok(vec![Row::of_figure(
        "`quorlock run` of `true` on five nodes, one of them down, beside `true` alone",
        format!("{longer:.1?} longer"),
        "≤ 8 ms",
        longer <= ADDED_MAX,
    )])
}
