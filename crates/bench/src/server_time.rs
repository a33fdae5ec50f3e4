//! What a command costs the server, by the server's own account: `INFO commandstats`.
//!
//! That leaves out reading the command and writing the answer, which are the same for all. The time of a script has that
//! of the commands in it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_testkit::Server;
use redis::{Cmd, Connection, Pipeline, Script, Value, cmd};

use crate::progress::Progress;
use crate::table::Row;

/// How many keys are locked, and then released, in each round.
pub(crate) const KEYS: usize = 20_000;
/// How many commands are sent before an answer is read, so that the server is never idle.
const PIPELINED: usize = 500;
/// The best one counts: whatever else the machine does can only make a round slower.
pub(crate) const ROUNDS: u64 = 30;
/// The module looks once a second whether anybody listens to what it would replicate, and leaves that out if not, as the
/// server does for its own commands.
const WARM_UP: Duration = Duration::from_millis(1500);

/// Long enough for no lock to end during a round.
const TTL_MS: u64 = 30_000;

/// How many steps of [`Progress`] this takes.
pub(crate) const STEPS: u64 = ROUNDS;

/// To release a lock that was taken with `SET NX`, as the documentation of Redis has it.
const COMPARE_AND_DELETE: &str = r#"
if redis.call("get",KEYS[1]) == ARGV[1] then
    return redis.call("del",KEYS[1])
else
    return 0
end"#;

/// To extend one.
const COMPARE_AND_EXPIRE: &str = r#"
if redis.call("get",KEYS[1]) == ARGV[1] then
    return redis.call("pexpire",KEYS[1],ARGV[2])
else
    return 0
end"#;

/// One thing that is done to every key, in our way and in theirs.
struct Case {
    name: &'static str,
    ours: Load,
    peer_name: &'static str,
    peer: Load,
    target: Option<f64>,
}

/// One command for every key, and the least that it has cost the server so far.
struct Load {
    /// As the server's statistics call it.
    command: &'static str,
    pipelines: Vec<Pipeline>,
    best: Duration,
}

/// Measures each command beside what does the same without the module.
pub(crate) fn measure(progress: &Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("server time per call");
    let server = Server::with_module().start()?;
    let mut connection = server.connection();
    let mut cases = cases(&mut connection)?;

    let warm = Instant::now() + WARM_UP;
    while Instant::now() < warm {
        round(&mut connection, cases.iter_mut().map(|case| &mut case.ours))?;
        round(&mut connection, cases.iter_mut().map(|case| &mut case.peer))?;
    }
    for case in &mut cases {
        (case.ours.best, case.peer.best) = (Duration::MAX, Duration::MAX);
    }
    for _ in 0..ROUNDS {
        round(&mut connection, cases.iter_mut().map(|case| &mut case.ours))?;
        round(&mut connection, cases.iter_mut().map(|case| &mut case.peer))?;
        progress.step();
    }
    let row = |case: Case| Row {
        case: case.name.into(),
        ours: case.ours.best,
        peer_name: case.peer_name,
        peer: case.peer.best,
        target: case.target,
    };
    Ok(cases.into_iter().map(row).collect())
}

/// In this order: every lock is free again at the end.
fn cases(connection: &mut Connection) -> anyhow::Result<[Case; 3]> {
    let delete = Script::new(COMPARE_AND_DELETE).load(connection)?;
    let expire = Script::new(COMPARE_AND_EXPIRE).load(connection)?;
    Ok([
        Case {
            name: "server time of `LOCK.ACQUIRE`",
            ours: Load::new("lock.acquire", |key, token| {
                cmd("LOCK.ACQUIRE").arg(key).arg(token).arg(TTL_MS).take()
            }),
            peer_name: "`SET NX PX`",
            peer: Load::new("set", |key, token| {
                cmd("SET").arg(key).arg(token).arg("NX").arg("PX").arg(TTL_MS).take()
            }),
            target: Some(1.25),
        },
        Case {
            name: "server time of `LOCK.EXTEND`",
            ours: Load::new("lock.extend", |key, token| {
                cmd("LOCK.EXTEND").arg(key).arg(token).arg(TTL_MS).take()
            }),
            peer_name: "script",
            peer: Load::new("evalsha", |key, token| {
                cmd("EVALSHA").arg(&expire).arg(1).arg(key).arg(token).arg(TTL_MS).take()
            }),
            target: None,
        },
        Case {
            name: "server time of `LOCK.RELEASE`",
            ours: Load::new("lock.release", |key, token| cmd("LOCK.RELEASE").arg(key).arg(token).take()),
            peer_name: "script",
            peer: Load::new("evalsha", |key, token| {
                cmd("EVALSHA").arg(&delete).arg(1).arg(key).arg(token).take()
            }),
            target: Some(0.5),
        },
    ])
}

/// Takes, extends and releases all locks in one way.
fn round<'a>(connection: &mut Connection, loads: impl Iterator<Item = &'a mut Load>) -> anyhow::Result<()> {
    for load in loads {
        load.run(connection)?;
    }
    Ok(())
}

impl Load {
    fn new(command: &'static str, of: impl Fn(&str, &str) -> Cmd) -> Self {
        let commands: Vec<_> = (0..KEYS).map(|n| of(&format!("lock:{n:05}"), &format!("{n:032x}"))).collect();
        let pipelined = |commands: &[Cmd]| {
            let mut pipeline = Pipeline::with_capacity(commands.len());
            for command in commands {
                pipeline.add_command(command.clone());
            }
            pipeline
        };
        Self { command, pipelines: commands.chunks(PIPELINED).map(pipelined).collect(), best: Duration::MAX }
    }

    fn run(&mut self, connection: &mut Connection) -> anyhow::Result<()> {
        let before = spent(connection, self.command)?;
        for pipeline in &self.pipelines {
            let answers: Vec<Value> = pipeline.query(connection)?;
            // A command that was refused is a cheap one.
            let done = |answer: &&Value| matches!(answer, Value::Okay | Value::Int(1..));
            let refused = answers.iter().find(|answer| !done(answer));
            ensure!(refused.is_none(), "{} was answered {refused:?}", self.command);
        }
        let took =
            spent(connection, self.command)?.checked_sub(before).context("the statistics were reset")?;
        self.best = self.best.min(took / u32::try_from(KEYS)?);
        Ok(())
    }
}

/// How much time the server has spent so far on a command.
fn spent(connection: &mut Connection, command: &str) -> anyhow::Result<Duration> {
    let info: String = cmd("INFO").arg("commandstats").query(connection)?;
    let field = |line: &str| -> Option<u64> {
        let fields = line.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(':')?;
        fields.split(',').find_map(|field| field.strip_prefix("usec="))?.parse().ok()
    };
    // A command that was never called is not in there.
    ensure!(info.starts_with("# Commandstats"), "the server keeps no statistics");
    Ok(Duration::from_micros(info.lines().find_map(field).unwrap_or_default()))
}
