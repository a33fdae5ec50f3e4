//! What it costs that the nodes agree on a fence: acquire on three nodes whose clocks agree, beside the same client that
//! reports at a majority of grants whatever their fences.
//!
//! Both are the one client of this repository. What is put between it and one of its two sets of connections replaces the
//! fence in every grant by the one that was proposed, so that it never sees any others.

use std::time::{Duration, Instant};

use anyhow::ensure;
use quorlock_client::redis::Connections;
use quorlock_client::{Quorum, Released};
use quorlock_testkit::Masters;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Arg, AsyncConnectionConfig, Client, Cmd, Pipeline, RedisFuture, Value};

use crate::latencies::Latencies;
use crate::progress::Progress;
use crate::quorum::{BLOCK, NODES};
use crate::table::Row;

/// How long a lock lasts: longer than the run.
const TTL: Duration = Duration::from_secs(30);
/// How long one node may take.
const NODE_LIMIT: Duration = Duration::from_millis(500);
/// How often it is each one's turn.
const ROUNDS: u64 = 1000;
/// Rounds that do not count.
const WARM_UP_ROUNDS: u64 = 50;

/// How many steps of [`Progress`] this takes.
pub(crate) const STEPS: u64 = ROUNDS + WARM_UP_ROUNDS;

/// Measures both on the same servers in turn.
pub(crate) async fn measure(progress: Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("agreement on a fence");
    // What a start adds to the counters would take as long to pass as this says.
    let masters = Masters::start_with(NODES, |_, builder| builder.tcp().arg("lock.max-clock-skew", 1))?;
    let agreeing = connect(&masters, Fences::AsGranted).await?;
    let indifferent = connect(&masters, Fences::AsProposed).await?;

    let (mut with, mut without) = (Latencies::new(), Latencies::new());
    for round in 0..STEPS {
        if round == WARM_UP_ROUNDS {
            (with, without) = (Latencies::new(), Latencies::new());
        }
        // Each time another lock: what is still being released on the third node is in nobody's way.
        for order in 0..BLOCK {
            with.record(acquire(&agreeing, &format!("orders/{round}/{order}")).await?);
        }
        for order in 0..BLOCK {
            without.record(acquire(&indifferent, &format!("orders/{round}/{order}/again")).await?);
        }
        progress.step();
    }
    Ok(vec![Row {
        case: "three nodes, acquire alone".into(),
        ours: with.p50(),
        peer_name: "without agreement on a fence",
        peer: without.p50(),
        target: Some(1.05),
    }])
}

/// How long it takes to take a lock, which is given back afterwards.
async fn acquire(quorum: &Quorum, key: &str) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let lock = quorum.lock(key).ttl(TTL).node_timeout(NODE_LIMIT).try_acquire().await?;
    let took = started.elapsed();
    ensure!(lock.release().await? == Released::Released, "a lock had ended before it was released");
    Ok(took)
}

async fn connect(masters: &Masters, fences: Fences) -> anyhow::Result<Quorum> {
    let mut connections = Connections::new();
    for master in masters {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = Client::open(master.url())?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        connections = connections.node(&master.url(), Between { connection, fences });
    }
    Ok(connections.into_quorum()?)
}

/// Which fences a client sees.
#[derive(Clone, Copy)]
enum Fences {
    AsGranted,
    AsProposed,
}

/// Stands between a client and a node.
#[derive(Clone)]
struct Between {
    connection: MultiplexedConnection,
    fences: Fences,
}

impl Between {
    fn see(&self, proposed: Option<i64>, answer: Value) -> Value {
        match (self.fences, proposed, answer) {
            (Fences::AsProposed, Some(proposed), Value::Int(_)) => Value::Int(proposed),
            (_, _, answer) => answer,
        }
    }
}

impl ConnectionLike for Between {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let proposed = proposed(command);
        Box::pin(async move {
            let answer = self.connection.req_packed_command(command).await?;
            Ok(self.see(proposed, answer))
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

/// The fence in a command that has one.
fn proposed(command: &Cmd) -> Option<i64> {
    let mut words = command.args_iter().filter_map(|word| match word {
        Arg::Simple(word) => Some(word),
        _ => None,
    });
    words.find(|word| *word == b"FENCE")?;
    std::str::from_utf8(words.next()?).ok()?.parse().ok()
}
