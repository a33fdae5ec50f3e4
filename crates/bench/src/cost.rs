//! What a command costs the server, as `INFO commandstats` counts it, and what locks and waiters
//! cost others: plain commands become slower, and waiters take memory.
//!
//! The time to read a command and to write the answer does not count: it is about the same for all
//! commands. The time of a script includes the commands in it. The peer of a command is the plain
//! command or the script that does the same without the module. The figure is the mean of all calls
//! in the fastest round, because other processes can only make a round slower.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_testkit::{Server, eventually, info};
use redis::{Cmd, Connection, Pipeline, Script, Value, cmd};

use crate::Effort;
use crate::instruments::{OTHER_FILES, Socket, require_files, time_of_command};
use crate::report::Row;

/// Number of held locks, and of other keys.
const LOCKS: u32 = 100_000;
const KEYS: u32 = 10_000;
/// A ttl longer than the measurement.
const PLAIN_TTL_MS: u64 = 3_600_000;
/// The default of `redis-benchmark`. So many connections keep the server busy.
const CONNECTIONS: usize = 50;
/// Number of commands that a connection sends before it reads an answer.
const PIPELINED: u32 = 16;
/// Number of batches of a connection in a round. A round takes about ten milliseconds.
const BATCHES: u32 = 20;
/// Number of rounds of each server. The best one counts: other processes can only make a round
/// slower.
const PLAIN_ROUNDS: u32 = 150;
/// Number of times that all servers are started anew, because the memory layout differs each time.
const SERVERS: u32 = 3;
/// Largest allowed ratio of times: the throughput is at least 0.97 × that without the module.
const PLAIN_RATIO_MAX: f64 = 1.0 / 0.97;

/// A plain command on many connections.
struct Load {
    name: &'static str,
    /// The batches of commands. A connection sends one batch at a time.
    requests: Vec<String>,
    /// The answers to one batch.
    answers: Vec<u8>,
    /// The shortest time of a command on each of the two servers.
    best: [Duration; 2],
}

/// Measures plain `SET` and `GET` of other keys on a server that also holds 100,000 leases.
///
/// The peer is a server without the module that holds the same locks as strings of `SET NX PX`.
pub(crate) fn plain(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let mut loads = [
        Load::new("SET", "+OK\r\n", |key| {
            format!("*3\r\n$3\r\nSET\r\n$10\r\n{key}\r\n$3\r\nxxx\r\n")
        }),
        Load::new("GET", "$3\r\nxxx\r\n", |key| format!("*2\r\n$3\r\nGET\r\n$10\r\n{key}\r\n")),
    ];
    for _ in 0..SERVERS {
        let servers = [
            Server::with_module().tcp().arg("lock.max-ttl", PLAIN_TTL_MS).start()?,
            Server::builder().tcp().start()?,
        ];
        let leases = pipelines(LOCKS, |key, token| {
            cmd("LOCK.ACQUIRE").arg(key).arg(token).arg(PLAIN_TTL_MS).take()
        });
        run_all(&leases, &mut servers[0].connection())?;
        let strings = pipelines(LOCKS, |key, token| {
            cmd("SET").arg(key).arg(token).arg("NX").arg("PX").arg(PLAIN_TTL_MS).take()
        });
        run_all(&strings, &mut servers[1].connection())?;
        let mut sockets = Vec::new();
        for server in &servers {
            sockets.push(Socket::connect_many(server, CONNECTIONS)?);
        }
        thread::sleep(WARM_UP);
        // SET comes first, so that GET finds the keys.
        for load in &mut loads {
            for _ in 0..effort.count(PLAIN_ROUNDS) / SERVERS {
                for (sockets, server) in sockets.iter_mut().zip(0..) {
                    load.best[server] = load.run(sockets)?.min(load.best[server]);
                }
            }
        }
        for server in &servers {
            let keys: u32 = cmd("DBSIZE").query(&mut server.connection())?;
            ensure!(keys == KEYS + LOCKS, "{keys} keys instead of {KEYS} and {LOCKS} locks");
        }
    }
    let row = |Load { name, best: [ours, locks], .. }: Load| {
        let case = format!("a plain `{name}` at full load, beside {LOCKS} leases");
        Row::of_times(case, ours, "beside as many `SET NX PX`", locks, Some(PLAIN_RATIO_MAX))
    };
    Ok(loads.map(row).into())
}

impl Load {
    fn new(name: &'static str, answer: &str, request: impl Fn(&str) -> String) -> Self {
        // 7919 has no factor in common with KEYS, so the batches contain each key once, unordered.
        let key = |n: u32| format!("plain:{:04}", n * 7919 % KEYS);
        let batch =
            |index: u32| (0..PIPELINED).map(|n| request(&key(index * PIPELINED + n))).collect();
        Self {
            name,
            requests: (0..KEYS / PIPELINED).map(batch).collect(),
            answers: answer.repeat(PIPELINED as usize).into_bytes(),
            best: [Duration::MAX; 2],
        }
    }

    /// Lets all connections send and read in turn, and returns the time of a command.
    fn run(&self, sockets: &mut [Socket]) -> anyhow::Result<Duration> {
        let mut buffer = vec![0; self.answers.len()];
        let mut requests = self.requests.iter().cycle();
        let began = Instant::now();
        for _ in 0..BATCHES {
            for (socket, request) in sockets.iter_mut().zip(&mut requests) {
                socket.send(request)?;
            }
            for socket in &mut *sockets {
                socket.expect_all(&self.answers, &mut buffer)?;
            }
        }
        let commands = BATCHES * PIPELINED * u32::try_from(sockets.len())?;
        Ok(began.elapsed() / commands)
    }
}

/// Time limit until all clients are connected or waiting.
const PATIENCE: Duration = Duration::from_secs(30);
const WAITERS: usize = 10_000;
/// The ttl of the lock and the limit of each wait: longer than the measurement.
const TTL_MS: u64 = 600_000;
/// Largest allowed memory of a waiter and its connection.
const KB_MAX: u64 = 64;

/// Measures the memory of ten thousand waiters on one server.
pub(crate) fn of_many_waiters() -> anyhow::Result<Vec<Row>> {
    require_files(WAITERS)?;
    let server = Server::with_module().tcp().arg("maxclients", WAITERS + OTHER_FILES);
    let server = server.arg("lock.max-waiters", WAITERS).arg("lock.max-ttl", TTL_MS).start()?;
    let connection = &mut server.connection();
    let unused = info(connection, "memory", "used_memory")?;
    let mut sockets = Socket::connect_many(&server, WAITERS + 1)?;
    eventually(PATIENCE, "all clients are connected", || {
        info(connection, "clients", "connected_clients")
            .is_ok_and(|clients| clients >= WAITERS as u64 + 2)
    });
    let connected = info(connection, "memory", "used_memory")?;
    for (client, socket) in sockets.iter_mut().enumerate() {
        socket.ask_for_the_lock(client, TTL_MS)?;
        if client == 0 {
            socket.read_grant()?;
        }
    }
    eventually(PATIENCE, "all clients but one wait", || {
        info(connection, "lock", "lock_waiters").is_ok_and(|waiters| waiters == WAITERS as u64)
    });
    let waiting = info(connection, "memory", "used_memory")?;
    let kb_each = |from: u64, to: u64| to.saturating_sub(from) / WAITERS as u64 / 1024;
    let (waiter, its_connection) = (kb_each(connected, waiting), kb_each(unused, connected));
    Ok(vec![Row::of_figure(
        format!("memory of each of {WAITERS} waiters on one server"),
        format!("{waiter} KB, and {its_connection} KB for its connection"),
        "≤ 64 KB together",
        waiter + its_connection <= KB_MAX,
    )])
}

/// Number of commands that are sent before an answer is read, so that the server is rarely idle.
const PIPELINE: usize = 500;
/// Time until the module, which checks once a second, has noticed that the server has no replica
/// and no append-only file. Until then it propagates its writes, to be safe.
const WARM_UP: Duration = Duration::from_millis(1500);

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
pub(crate) fn of_commands(effort: Effort) -> anyhow::Result<Vec<Row>> {
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
        let before = time_of_command(connection, self.command)?;
        run_all(&self.pipelines, connection).context(self.command)?;
        let after = time_of_command(connection, self.command)?;
        Ok(after.checked_sub(before).context("the statistics were reset")? / self.keys)
    }
}

/// Returns a command for each of the keys, which has a token of its own.
fn pipelines(keys: u32, of: impl Fn(&str, &str) -> Cmd) -> Vec<Pipeline> {
    let keys: Vec<_> = (0..keys).collect();
    let pipeline = |keys: &[u32]| {
        let mut pipeline = Pipeline::with_capacity(keys.len());
        for n in keys {
            pipeline.add_command(of(&format!("lock:{n:06}"), &format!("{n:032x}")));
        }
        pipeline
    };
    keys.chunks(PIPELINE).map(pipeline).collect()
}

/// Fails if a command is refused: a refused command costs less.
fn run_all(pipelines: &[Pipeline], connection: &mut Connection) -> anyhow::Result<()> {
    for pipeline in pipelines {
        let answers: Vec<Value> = pipeline.query(connection)?;
        let is_done = |answer: &&Value| matches!(answer, Value::Okay | Value::Int(1..));
        let refused = answers.iter().find(|answer| !is_done(answer));
        ensure!(refused.is_none(), "the server answered {refused:?}");
    }
    Ok(())
}
