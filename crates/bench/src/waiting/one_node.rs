//! Handing a lock over on one node, beside a PING.
//!
//! One thread has the sockets of all clients. It writes the RELEASE of the holder and then blocks until the next in the
//! queue has its answer, exactly as it blocks until a PING is answered: the two differ by what the server does.

use std::time::{Duration, Instant};

use quorlock_testkit::Server;
use tokio::task::yield_now;

use super::effort::Effort;
use crate::latencies::Latencies;
use crate::limits::Row;
use crate::progress::Progress;
use crate::socket::Socket;
use crate::table::readable;

/// How many wait for the lock.
const WAITERS: usize = 16;
/// How often it is each one's turn.
const ROUNDS: u64 = 400;
/// Rounds that do not count.
const WARM_UP_ROUNDS: u64 = 20;
/// How many handovers, or PINGs, there are in one turn.
const BLOCK: usize = 64;
/// How many times as long as a PING a handover may take.
const TARGET: f64 = 1.3;
/// How much longer than a PING a handover may take.
const TARGET_BEYOND: Duration = Duration::from_micros(15);

pub(crate) async fn measure(effort: Effort, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("handing over on one node");
    let server = Server::with_module().tcp().start()?;
    let mut pinging = Socket::connect(&server)?;
    let mut sockets = (0..=WAITERS).map(|_| Socket::connect(&server)).collect::<anyhow::Result<Vec<_>>>()?;
    for (client, socket) in sockets.iter_mut().enumerate() {
        socket.ask_for_the_lock(client)?;
    }
    sockets[0].read_grant()?;

    let (mut handovers, mut pings) = (Latencies::new(), Latencies::new());
    let mut holder = 0;
    for round in 0..effort.count(ROUNDS) + WARM_UP_ROUNDS {
        if round == WARM_UP_ROUNDS {
            (handovers, pings) = (Latencies::new(), Latencies::new());
        }
        for _ in 0..BLOCK {
            let next = (holder + 1) % sockets.len();
            let started = Instant::now();
            sockets[holder].release(holder)?;
            sockets[next].read_grant()?;
            handovers.record(started.elapsed());
            // The last holder goes to the end of the queue. The server has seen to that when it answers a PING.
            sockets[holder].expect(":1")?;
            sockets[holder].ask_for_the_lock(holder)?;
            pinging.ping()?;
            holder = next;
        }
        for _ in 0..BLOCK {
            let started = Instant::now();
            pinging.ping()?;
            pings.record(started.elapsed());
        }
        yield_now().await;
    }

    let (handover, ping) = (handovers.p50(), pings.p50());
    let ratio = handover.as_secs_f64() / ping.as_secs_f64();
    let beyond = handover.saturating_sub(ping);
    Ok(vec![
        Row {
            case: format!("handover on one node, {WAITERS} waiters, p50"),
            measured: format!("{}, {ratio:.2} × a PING's {}", readable(handover), readable(ping)),
            target: "≤ 1.3 × a PING",
            met: ratio <= TARGET,
        },
        Row {
            case: "the same, beyond a PING".into(),
            measured: readable(beyond),
            target: "≤ 15 µs",
            met: beyond <= TARGET_BEYOND,
        },
    ])
}
