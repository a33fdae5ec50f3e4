//! What a command costs the server, as `INFO commandstats` counts it.
//!
//! The time to read a command and to write the answer does not count: it is about the same for all
//! commands. The time of a script includes the commands in it. The peer of a command is the plain
//! command or the script that does the same without the module. The figure is the mean of all calls
//! in the fastest round, because other processes can only make a round slower.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_testkit::Server;
use redis::{Cmd, Connection, Pipeline, Script, Value, cmd};

use crate::Effort;
use crate::instruments::command_stats;
use crate::report::Row;

/// Number of commands that are sent before an answer is read, so that the server is rarely idle.
const PIPELINED: usize = 500;
/// The rounds are spread over several servers, because their memory layouts differ.
const SERVERS: u32 = 3;
/// Time until the module, which checks once a second, has noticed that the server has no replica
/// and no append-only file. Until then it propagates its writes, to be safe.
pub(crate) const WARM_UP: Duration = Duration::from_millis(1500);

/// A ttl longer than a round.
const TTL_MS: u64 = 600_000;

/// Releases a lock that was acquired with `SET NX`: the script in the documentation of Redis.
const COMPARE_AND_DELETE: &str = r#"
if redis.call("get",KEYS[1]) == ARGV[1] then
    return redis.call("del",KEYS[1])
else
    return 0
end"#;

/// Extends a lock that was acquired with `SET NX`.
const COMPARE_AND_EXPIRE: &str = r#"
if redis.call("get",KEYS[1]) == ARGV[1] then
    return redis.call("pexpire",KEYS[1],ARGV[2])
else
    return 0
end"#;

/// One command for each key.
struct Workload {
    keys: u32,
    /// The name of the command in the server's statistics.
    command: &'static str,
    pipelines: Vec<Pipeline>,
    /// The mean time that the server spent on a call, in the best round.
    best: Duration,
}

/// Measures acquire, extend and release beside the plain commands or scripts that do the same.
pub(crate) fn measure(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let mut rows = on_keys(20_000, effort.count(30), [Some(1.2), None, Some(0.35)])?;
    rows.extend(on_keys(200_000, effort.count(9), [Some(1.4), None, None])?);
    Ok(rows)
}

/// Measures `rounds` rounds, over all servers.
fn on_keys(keys: u32, rounds: u32, ratio_max: [Option<f64>; 3]) -> anyhow::Result<Vec<Row>> {
    let (delete, expire) = (Script::new(COMPARE_AND_DELETE), Script::new(COMPARE_AND_EXPIRE));
    // In this order, the workloads leave all keys free twice.
    let mut workloads = workloads(keys, delete.get_hash(), expire.get_hash());
    for _ in 0..SERVERS {
        let server = Server::with_module().arg("lock.max-ttl", TTL_MS).start()?;
        let mut connection = server.connection();
        delete.load(&mut connection)?;
        expire.load(&mut connection)?;
        let warm_at = Instant::now() + WARM_UP;
        while Instant::now() < warm_at {
            workloads.iter().try_for_each(|workload| workload.run(&mut connection).map(drop))?;
        }
        for _ in 0..rounds / SERVERS {
            for workload in &mut workloads {
                workload.best = workload.best.min(workload.run(&mut connection)?);
            }
        }
    }
    let (ours, peers) = workloads.split_at(3);
    let names = ["LOCK.ACQUIRE", "LOCK.EXTEND", "LOCK.RELEASE"];
    let peer_names = ["`SET NX PX`", "script", "script"];
    let row = |index: usize| {
        Row::of_times(
            format!("server time of `{}`, {keys} keys", names[index]),
            ours[index].best,
            peer_names[index],
            peers[index].best,
            ratio_max[index],
        )
    };
    Ok((0..names.len()).map(row).collect())
}

/// Returns the workloads that acquire, extend and release all keys: first with Quorlock, and then
/// with the peer.
fn workloads(keys: u32, delete: &str, expire: &str) -> [Workload; 6] {
    let ttl = TTL_MS;
    [
        Workload::new(keys, "lock.acquire:", |key, token| {
            cmd("LOCK.ACQUIRE").arg(key).arg(token).arg(ttl).take()
        }),
        Workload::new(keys, "lock.extend:", |key, token| {
            cmd("LOCK.EXTEND").arg(key).arg(token).arg(ttl).take()
        }),
        Workload::new(keys, "lock.release:", |key, token| {
            cmd("LOCK.RELEASE").arg(key).arg(token).take()
        }),
        Workload::new(keys, "set:", |key, token| {
            cmd("SET").arg(key).arg(token).arg("NX").arg("PX").arg(ttl).take()
        }),
        Workload::new(keys, "evalsha:", |key, token| {
            cmd("EVALSHA").arg(expire).arg(1).arg(key).arg(token).arg(ttl).take()
        }),
        Workload::new(keys, "evalsha:", |key, token| {
            cmd("EVALSHA").arg(delete).arg(1).arg(key).arg(token).take()
        }),
    ]
}

impl Workload {
    fn new(keys: u32, command: &'static str, of: impl Fn(&str, &str) -> Cmd) -> Self {
        Self { keys, command, pipelines: pipelines(keys, of), best: Duration::MAX }
    }

    /// Returns the mean time that the server spent on a call.
    fn run(&self, connection: &mut Connection) -> anyhow::Result<Duration> {
        let before = command_stats(connection, self.command)?.spent;
        run_all(&self.pipelines, connection).context(self.command)?;
        let after = command_stats(connection, self.command)?.spent;
        Ok(after.checked_sub(before).context("the statistics were reset")? / self.keys)
    }
}

/// Returns a command for each of the keys, which has a token of its own.
pub(crate) fn pipelines(keys: u32, of: impl Fn(&str, &str) -> Cmd) -> Vec<Pipeline> {
    let keys: Vec<_> = (0..keys).collect();
    let pipeline = |keys: &[u32]| {
        let mut pipeline = Pipeline::with_capacity(keys.len());
        for n in keys {
            pipeline.add_command(of(&format!("lock:{n:06}"), &format!("{n:032x}")));
        }
        pipeline
    };
    keys.chunks(PIPELINED).map(pipeline).collect()
}

/// Fails if a command is refused: a refused command costs less.
pub(crate) fn run_all(pipelines: &[Pipeline], connection: &mut Connection) -> anyhow::Result<()> {
    for pipeline in pipelines {
        let answers: Vec<Value> = pipeline.query(connection)?;
        let is_done = |answer: &&Value| matches!(answer, Value::Okay | Value::Int(1..));
        let refused = answers.iter().find(|answer| !is_done(answer));
        ensure!(refused.is_none(), "the server answered {refused:?}");
    }
    Ok(())
}
