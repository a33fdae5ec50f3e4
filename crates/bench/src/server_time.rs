//! What a command costs the server, as `INFO commandstats` counts it.
//!
//! The time to read a command and to write the answer does not count: it is about the same for all
//! commands. The time of a script includes the commands in it. The peer of a command is the plain
//! command or the script that does the same without the module.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_testkit::Server;
use redis::{Cmd, Connection, Pipeline, Script, Value, cmd};

use crate::report::{Progress, Row};

/// Of each command, only the fastest round counts: other processes can only make a round slower.
const MEASUREMENTS: [Measurement; 2] = [
    Measurement { keys: 20_000, rounds: 30, targets: [Some(1.2), None, Some(0.35)] },
    Measurement { keys: 200_000, rounds: 9, targets: [Some(1.4), None, None] },
];
/// Number of commands that are sent before an answer is read, so that the server is rarely idle.
const PIPELINED: usize = 500;
/// The rounds are spread over several servers, because their memory layouts differ.
const SERVERS: u32 = 3;
/// Time until the module, which checks once a second, has noticed that the server has no replica
/// and no append-only file. Until then it propagates its writes, to be safe.
pub(crate) const WARM_UP: Duration = Duration::from_millis(1500);

/// A ttl longer than a round.
pub(crate) const TTL_MS: u64 = 600_000;

pub(crate) const STEPS: u64 = (MEASUREMENTS[0].rounds + MEASUREMENTS[1].rounds) as u64;

struct Measurement {
    keys: u32,
    /// Number of rounds, over all servers.
    rounds: u32,
    /// Largest allowed ratios to the peer's times, for acquire, extend and release.
    targets: [Option<f64>; 3],
}

/// Releases a lock that was acquired with `SET NX`: the script in the documentation of Redis.
pub(crate) const COMPARE_AND_DELETE: &str = r#"
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

/// One operation on each key, with Quorlock and with its peer.
struct Case {
    name: String,
    ours: Workload,
    peer_name: &'static str,
    peer: Workload,
    target: Option<f64>,
}

/// One command for each key.
pub(crate) struct Workload {
    keys: u32,
    /// The name of the command in the server's statistics.
    command: &'static str,
    pipelines: Vec<Pipeline>,
    /// The mean time that the server spent on a call, in the best round.
    best: Duration,
}

/// Measures acquire, extend and release beside the plain commands or scripts that do the same.
pub(crate) fn measure(progress: &Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("server time per call");
    let mut rows = Vec::new();
    for measurement in &MEASUREMENTS {
        rows.extend(measurement.measure(progress)?);
    }
    Ok(rows)
}

impl Measurement {
    fn measure(&self, progress: &Progress) -> anyhow::Result<Vec<Row>> {
        let (delete, expire) = (Script::new(COMPARE_AND_DELETE), Script::new(COMPARE_AND_EXPIRE));
        let mut cases = self.cases(delete.get_hash(), expire.get_hash());
        for _ in 0..SERVERS {
            let server = Server::with_module().arg("lock.max-ttl", TTL_MS).start()?;
            let mut connection = server.connection();
            delete.load(&mut connection)?;
            expire.load(&mut connection)?;

            let warm_at = Instant::now() + WARM_UP;
            while Instant::now() < warm_at {
                run_all(&cases, &mut connection)?;
            }
            for _ in 0..self.rounds / SERVERS {
                let costs = run_all(&cases, &mut connection)?;
                for (case, (ours, peer)) in cases.iter_mut().zip(costs) {
                    case.ours.best = case.ours.best.min(ours);
                    case.peer.best = case.peer.best.min(peer);
                }
                progress.step();
            }
        }
        let row = |case: Case| Row {
            case: case.name,
            ours: case.ours.best,
            peer_name: case.peer_name,
            peer: case.peer.best,
            target: case.target,
        };
        Ok(cases.into_iter().map(row).collect())
    }

    fn cases(&self, delete: &str, expire: &str) -> [Case; 3] {
        let &Self { keys, targets: [acquire_target, extend_target, release_target], .. } = self;
        let [acquire, extend, release] = lock_workloads(keys);
        let case = |command: &str, ours, peer_name, peer, target| {
            let name = format!("server time of `{command}`, {keys} keys");
            Case { name, ours, peer_name, peer, target }
        };
        let set = Workload::new(keys, "set", |key, token| {
            cmd("SET").arg(key).arg(token).arg("NX").arg("PX").arg(TTL_MS).take()
        });
        let expire = Workload::new(keys, "evalsha", |key, token| {
            cmd("EVALSHA").arg(expire).arg(1).arg(key).arg(token).arg(TTL_MS).take()
        });
        let delete = Workload::new(keys, "evalsha", |key, token| {
            cmd("EVALSHA").arg(delete).arg(1).arg(key).arg(token).take()
        });
        [
            case("LOCK.ACQUIRE", acquire, "`SET NX PX`", set, acquire_target),
            case("LOCK.EXTEND", extend, "script", expire, extend_target),
            case("LOCK.RELEASE", release, "script", delete, release_target),
        ]
    }
}

/// Returns the workloads that acquire, extend and release. In this order, they leave all keys free.
pub(crate) fn lock_workloads(keys: u32) -> [Workload; 3] {
    [
        Workload::new(keys, "lock.acquire", |key, token| {
            cmd("LOCK.ACQUIRE").arg(key).arg(token).arg(TTL_MS).take()
        }),
        Workload::new(keys, "lock.extend", |key, token| {
            cmd("LOCK.EXTEND").arg(key).arg(token).arg(TTL_MS).take()
        }),
        Workload::new(keys, "lock.release", |key, token| {
            cmd("LOCK.RELEASE").arg(key).arg(token).take()
        }),
    ]
}

/// Acquires, extends and releases all locks with Quorlock and then with the peer.
///
/// Returns the mean time that the server spent on a call, for each case and its peer.
fn run_all(
    cases: &[Case],
    connection: &mut Connection,
) -> anyhow::Result<Vec<(Duration, Duration)>> {
    let ours: Vec<_> =
        cases.iter().map(|case| case.ours.run(connection)).collect::<Result<_, _>>()?;
    let peer: Vec<_> =
        cases.iter().map(|case| case.peer.run(connection)).collect::<Result<_, _>>()?;
    Ok(ours.into_iter().zip(peer).collect())
}

impl Workload {
    fn new(keys: u32, command: &'static str, of: impl Fn(&str, &str) -> Cmd) -> Self {
        let commands: Vec<_> =
            (0..keys).map(|n| of(&format!("lock:{n:06}"), &format!("{n:032x}"))).collect();
        let bundle = |commands: &[Cmd]| {
            let mut pipeline = Pipeline::with_capacity(commands.len());
            for command in commands {
                pipeline.add_command(command.clone());
            }
            pipeline
        };
        let pipelines = commands.chunks(PIPELINED).map(bundle).collect();
        Self { keys, command, pipelines, best: Duration::MAX }
    }

    /// Returns the mean time that the server spent on a call.
    pub(crate) fn run(&self, connection: &mut Connection) -> anyhow::Result<Duration> {
        let before = spent(connection, self.command)?;
        for pipeline in &self.pipelines {
            let answers: Vec<Value> = pipeline.query(connection)?;
            // A refused command costs less, so a refusal fails the run.
            let done = |answer: &&Value| matches!(answer, Value::Okay | Value::Int(1..));
            let refused = answers.iter().find(|answer| !done(answer));
            ensure!(refused.is_none(), "{} was answered {refused:?}", self.command);
        }
        let after = spent(connection, self.command)?;
        Ok(after.checked_sub(before).context("the statistics were reset")? / self.keys)
    }
}

/// Returns the time that the server has spent on a command so far.
fn spent(connection: &mut Connection, command: &str) -> anyhow::Result<Duration> {
    let info: String = cmd("INFO").arg("commandstats").query(connection)?;
    let field = |line: &str| -> Option<u64> {
        let fields = line.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(':')?;
        fields.split(',').find_map(|field| field.strip_prefix("usec="))?.parse().ok()
    };
    ensure!(info.starts_with("# Commandstats"), "the server keeps no statistics");
    // A command that was never called is not listed: its time is zero.
    Ok(Duration::from_micros(info.lines().find_map(field).unwrap_or_default()))
}
