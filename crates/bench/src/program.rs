//! What `quorlock run` adds to the time of a command: its own start, the acquire and the release.

use std::env;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_testkit::Masters;

use crate::probes::Latencies;
use crate::report::{Progress, TargetRow};

const MASTERS: usize = 5;
const ROUNDS: u64 = 300;
/// These rounds do not count, because files are read for the first time in them.
const WARM_UP_ROUNDS: u64 = 20;
/// Largest time that a lock may add to the command.
const ADDED_MAX: Duration = Duration::from_millis(8);

pub(crate) const STEPS: u64 = WARM_UP_ROUNDS + ROUNDS;

/// Measures `true` under a lock and alone, in turn.
pub(crate) fn measure(progress: &Progress) -> anyhow::Result<[TargetRow; 1]> {
    progress.begin("quorlock run");
    let program = env::current_exe()?.with_file_name("quorlock");
    ensure!(program.exists(), "{} is not there: run `make bench-program`", program.display());
    let mut masters = Masters::start(MASTERS);
    masters[0].kill();
    let mut alone = Command::new("true");
    let mut under_lock = Command::new(program);
    under_lock.env("QUORLOCK_NODES", masters.urls().join(",")).args(["run", "bench", "--", "true"]);
    let [mut took_alone, mut took_under_lock] = [Latencies::new(), Latencies::new()];
    for round in 0..STEPS {
        for (command, took) in
            [(&mut alone, &mut took_alone), (&mut under_lock, &mut took_under_lock)]
        {
            let started = Instant::now();
            let status = command.stdin(Stdio::null()).status().context("cannot run a command")?;
            ensure!(status.success(), "{command:?} failed: {status}");
            if round >= WARM_UP_ROUNDS {
                took.record(started.elapsed());
            }
        }
        progress.step();
    }
    let longer = took_under_lock.p50().saturating_sub(took_alone.p50());
    Ok([TargetRow {
        case: "`quorlock run` of `true` on five masters, one of them down, beside `true` alone"
            .into(),
        measured: format!("{longer:.1?} longer"),
        target: "≤ 8 ms",
        met: longer <= ADDED_MAX,
    }])
}
