//! What the module costs clients that use no locks.
//!
//! Measures plain `SET` and `GET` of other keys on a server that also holds 100,000 leases, beside
//! a server without the module that holds the same locks as strings of `SET NX PX`. A third server,
//! also without the module, holds no locks. It is faster than the others: as soon as any key has an
//! expiry, a server looks up the expiry of each requested key.
//!
//! Fifty connections, the default of `redis-benchmark`, keep the server busy. The time of a command
//! is the duration divided by the number of commands.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use quorlock_testkit::Server;
use redis::{Cmd, Pipeline, Value, cmd};

use crate::probes::connect_tcp;
use crate::report::{Progress, Row};
use crate::server_time::WARM_UP;

/// Number of held locks.
const LOCKS: u32 = 100_000;
/// A ttl longer than the measurement.
const TTL_MS: u64 = 3_600_000;
/// Number of other keys.
const KEYS: u32 = 10_000;
const CONNECTIONS: u32 = 50;
/// Number of commands that a connection sends before it reads an answer.
const PIPELINED: u32 = 16;
/// Number of batches of a connection in a round. A round takes about ten milliseconds.
const BATCHES: u32 = 20;
/// Number of rounds of each server. The best one counts, as in [`server_time`](crate::server_time).
pub(crate) const ROUNDS: u32 = 150;
/// Number of times that all servers are started anew, because the memory layout differs each time.
const SERVERS: u32 = 3;
/// Largest allowed ratio of times: the throughput is at least 0.97 × that without the module.
const TARGET: f64 = 1.0 / 0.97;

pub(crate) const STEPS: u64 = SERVERS as u64;

/// A plain command on many connections.
struct Load {
    name: &'static str,
    /// The batches of commands. A connection sends one batch at a time.
    requests: Vec<Vec<u8>>,
    /// The answers to one batch.
    answers: Vec<u8>,
    /// The shortest time of a command on each of the [`servers`].
    best: [Duration; 3],
}

pub(crate) fn measure(progress: &Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("plain commands beside 100,000 leases");
    let mut loads = [
        Load::new("SET", "+OK\r\n", |key| {
            format!("*3\r\n$3\r\nSET\r\n$10\r\n{key}\r\n$3\r\nxxx\r\n")
        }),
        Load::new("GET", "$3\r\nxxx\r\n", |key| format!("*2\r\n$3\r\nGET\r\n$10\r\n{key}\r\n")),
    ];
    for _ in 0..SERVERS {
        let servers = servers()?;
        let mut connections = servers.iter().map(connect).collect::<anyhow::Result<Vec<_>>>()?;
        thread::sleep(WARM_UP);
        // SET comes first, so that GET finds the keys.
        for load in &mut loads {
            for _ in 0..ROUNDS / SERVERS {
                for (connections, server) in connections.iter_mut().zip(0..) {
                    load.best[server] = load.run(connections)?.min(load.best[server]);
                }
            }
        }
        for (server, locks) in servers.iter().zip([LOCKS, LOCKS, 0]) {
            let keys: u32 = cmd("DBSIZE").query(&mut server.connection())?;
            ensure!(
                keys == KEYS + locks,
                "there are {keys} keys instead of {KEYS} and {locks} locks"
            );
        }
        progress.step();
    }
    let rows = |Load { name, best: [ours, locks, empty], .. }: Load| {
        let row = |peer_name, peer, target| Row {
            case: format!("a plain `{name}` at full load, beside {LOCKS} leases"),
            ours,
            peer_name,
            peer,
            target,
        };
        [
            row("beside as many `SET NX PX`", locks, Some(TARGET)),
            row("on an empty server", empty, None),
        ]
    };
    Ok(loads.into_iter().flat_map(rows).collect())
}

/// Starts a server with leases, one with the same locks and no module, and one with neither.
fn servers() -> anyhow::Result<[Server; 3]> {
    let leases =
        Server::with_module().tcp().module_arg("max-ttl").module_arg(TTL_MS.to_string()).start()?;
    acquire_all(&leases, |key, token| cmd("LOCK.ACQUIRE").arg(key).arg(token).arg(TTL_MS).take())?;
    let locks = Server::builder().without_module().tcp().start()?;
    acquire_all(&locks, |key, token| {
        cmd("SET").arg(key).arg(token).arg("NX").arg("PX").arg(TTL_MS).take()
    })?;
    Ok([leases, locks, Server::builder().without_module().tcp().start()?])
}

fn acquire_all(server: &Server, acquire: impl Fn(&str, &str) -> Cmd) -> anyhow::Result<()> {
    let connection = &mut server.connection();
    for first in (0..LOCKS).step_by(1000) {
        let mut pipeline = Pipeline::new();
        for n in first..first + 1000 {
            pipeline.add_command(acquire(&format!("lock:{n:06}"), &format!("{n:032x}")));
        }
        let answers: Vec<Value> = pipeline.query(connection)?;
        let refused =
            answers.iter().find(|answer| !matches!(answer, Value::Okay | Value::Int(1..)));
        ensure!(refused.is_none(), "the server answered a lock command with {refused:?}");
    }
    Ok(())
}

fn connect(server: &Server) -> anyhow::Result<Vec<TcpStream>> {
    (0..CONNECTIONS).map(|_| connect_tcp(server)).collect()
}

impl Load {
    fn new(name: &'static str, answer: &str, request: impl Fn(&str) -> String) -> Self {
        // 7919 has no factor in common with KEYS, so the batches contain each key once, unordered.
        let key = |n: u32| format!("plain:{:04}", n * 7919 % KEYS);
        let batch = |index: u32| {
            (0..PIPELINED)
                .map(|n| request(&key(index * PIPELINED + n)))
                .collect::<String>()
                .into_bytes()
        };
        Self {
            name,
            requests: (0..KEYS / PIPELINED).map(batch).collect(),
            answers: answer.repeat(PIPELINED as usize).into_bytes(),
            best: [Duration::MAX; 3],
        }
    }

    /// Lets all connections send and read in turn, and returns the time of a command.
    fn run(&self, connections: &mut [TcpStream]) -> anyhow::Result<Duration> {
        let mut answers = vec![0; self.answers.len()];
        let mut requests = self.requests.iter().cycle();
        let began = Instant::now();
        for _ in 0..BATCHES {
            for (connection, request) in connections.iter_mut().zip(&mut requests) {
                connection.write_all(request)?;
            }
            for connection in &mut *connections {
                connection.read_exact(&mut answers)?;
                ensure!(answers == self.answers, "{} got an unexpected answer", self.name);
            }
        }
        Ok(began.elapsed() / (BATCHES * CONNECTIONS * PIPELINED))
    }
}
