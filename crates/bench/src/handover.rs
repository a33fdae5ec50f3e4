//! Handovers of a lock: on one node beside a PING, and between clients, with the number of
//! commands, and a node that fails.

use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use quorlock_testkit::{Accident, Direction, Disk, Nodes, Server};
use tokio::runtime::{self, Handle};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Effort;
use crate::clients::{FailingNodes, Held, Kind, LockClient, start_nodes};
use crate::instruments::{Latencies, Socket, lock_calls};
use crate::report::{Row, readable};

/// Number of clients that compete.
const CLIENTS: usize = 16;
const KEY: &str = "orders/42";
/// Time before a measurement: all clients start at once, and then wait in one queue.
const WARM_UP: Duration = Duration::from_secs(1);

/// A lock from the request to the release, as its client saw it.
#[derive(Clone, Copy, Debug)]
struct Acquisition {
    client: usize,
    /// A moment before the request.
    asked: Instant,
    /// A moment after the grant.
    from: Instant,
    /// A moment before the release.
    to: Instant,
    fence: u64,
}

impl Acquisition {
    fn wait(&self) -> Duration {
        self.from - self.asked
    }
}

/// Clients that compete for one lock. Each has connections and a thread of its own, as a process
/// would.
struct Crowd {
    clients: Vec<LockClient>,
    /// The runtimes of the threads, which end when the senders are dropped.
    threads: Vec<(Handle, oneshot::Sender<()>)>,
}

impl Crowd {
    async fn start(kind: Kind, urls: &[String]) -> anyhow::Result<Self> {
        let mut crowd = Self { clients: Vec::new(), threads: Vec::new() };
        for _ in 0..CLIENTS {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let (handle, (end, ended)) = (runtime.handle().clone(), oneshot::channel());
            // An error means that the sender was dropped.
            thread::spawn(move || runtime.block_on(ended).unwrap_or_default());
            crowd.clients.push(handle.spawn(LockClient::connect(kind, urls.to_vec())).await??);
            crowd.threads.push((handle, end));
        }
        Ok(crowd)
    }

    /// Lets each client work in its thread. The number of the client is the second argument.
    fn each<F>(&self, work: impl Fn(LockClient, usize) -> F) -> Working
    where
        F: Future<Output = anyhow::Result<Vec<Acquisition>>> + Send + 'static,
    {
        let mut working = JoinSet::new();
        for (index, (client, (thread, _))) in self.clients.iter().zip(&self.threads).enumerate() {
            working.spawn_on(work(client.clone(), index), thread);
        }
        Working(working)
    }

    /// Lets each client acquire the lock once.
    fn once(&self) -> Working {
        self.each(|client, index| async move {
            let (asked, held) = (Instant::now(), client.acquire(KEY).await?);
            Ok(vec![hold_and_release(held, index, asked, Duration::ZERO).await?])
        })
    }

    /// Lets each client acquire the lock again as soon as it has released it, until `meanwhile` is
    /// over. Returns what the clients did.
    async fn compete<T>(
        &self,
        hold_for: Duration,
        meanwhile: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<(Vec<Acquisition>, T)> {
        let (stop, stopped) = watch::channel(false);
        let working = self.each(|client, index| {
            let mut stopped = stopped.clone();
            async move {
                let mut acquisitions = Vec::new();
                let mut stop = pin!(stopped.wait_for(|stop| *stop));
                loop {
                    let asked = Instant::now();
                    let held = tokio::select! {
                        biased;
                        _ = &mut stop => break,
                        held = client.acquire(KEY) => held?,
                    };
                    acquisitions.push(hold_and_release(held, index, asked, hold_for).await?);
                }
                client.flush().await;
                Ok(acquisitions)
            }
        });
        let result = meanwhile.await?;
        stop.send_replace(true);
        Ok((working.in_order().await?, result))
    }
}

async fn hold_and_release(
    held: Held,
    client: usize,
    asked: Instant,
    hold_for: Duration,
) -> anyhow::Result<Acquisition> {
    let from = Instant::now();
    if !hold_for.is_zero() {
        sleep(hold_for).await;
    }
    let (fence, to) = (held.fence(), Instant::now());
    held.release().await?;
    Ok(Acquisition { client, asked, from, to, fence })
}

/// Clients at work.
struct Working(JoinSet<anyhow::Result<Vec<Acquisition>>>);

impl Working {
    /// Returns the acquisitions of all clients, in the order of their grants.
    async fn in_order(self) -> anyhow::Result<Vec<Acquisition>> {
        let all = self.0.join_all().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let mut acquisitions = all.concat();
        acquisitions.sort_unstable_by_key(|acquisition| acquisition.from);
        Ok(acquisitions)
    }
}

/// Times for which the lock is held while commands are counted.
const HOLDS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(5), Duration::from_millis(200)];
/// Time for which another client holds the lock first, so that all clients are in the queue before
/// it is released.
const QUEUE_FILL_TIME: Duration = Duration::from_millis(300);
/// Duration of each measurement. Polling clients take four times as long, because their handovers
/// vary at random.
const TIME: Duration = Duration::from_secs(4);
/// Largest allowed p50 of the handovers between clients: this many times the p50 of a PING to one
/// idle node, and the constant part.
const HANDOVER_PER_PING: f64 = 1.6;
const HANDOVER_CONSTANT: Duration = Duration::from_micros(100);
const PINGS: u32 = 5000;
/// Largest allowed number of commands that a node executes for one lock, on average, if waiters do
/// not have to repeat their waits.
const COMMANDS_PER_NODE_MAX: f64 = 3.2;

/// Measures handovers on three and on five nodes, and counts the commands of a lock.
pub(crate) async fn on_nodes(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for count in [3, 5] {
        let nodes = start_nodes(count)?;
        let crowd = Crowd::start(Kind::Quorlock, &nodes.urls()).await?;
        let mut commands = Vec::new();
        for hold in HOLDS {
            commands.push(commands_per_lock(&nodes, &crowd, hold, effort.time(TIME)).await?);
        }
        let handovers = |kind, time| handovers(&nodes, kind, effort.time(time));
        drop(crowd);
        let ours = handovers(Kind::Quorlock, TIME).await?.p50();
        let rslock = handovers(Kind::Rslock, 4 * TIME).await?.p50();
        let mut pings = Latencies::new();
        Socket::connect(&nodes[0])?.time_pings(PINGS, &mut pings)?;
        let ping = pings.p50();
        let limit = COMMANDS_PER_NODE_MAX * f64::from(u32::try_from(count)?);
        let row = Row::of_figure(
            format!("handover on {count} nodes, {CLIENTS} clients, p50"),
            format!("{}, PING {}", readable(ours), readable(ping)),
            "≤ 1.6 × a PING + 100 µs",
            ours <= ping.mul_f64(HANDOVER_PER_PING) + HANDOVER_CONSTANT,
        );
        rows.push(row.beside(format!("rslock 0.10 {}", readable(rslock))));
        rows.push(Row::of_figure(
            format!("commands per lock, on all {count} nodes together, held for 0, 5 and 200 ms"),
            commands.iter().map(|calls| format!("{calls:.1}")).collect::<Vec<_>>().join(", "),
            "≤ 3.2 per node, held for 0 and 5 ms",
            commands[..2].iter().all(|calls| *calls <= limit),
        ));
    }
    Ok(rows)
}

/// Counts the commands of all nodes for a lock for which clients compete.
async fn commands_per_lock(
    nodes: &Nodes,
    crowd: &Crowd,
    hold_for: Duration,
    time: Duration,
) -> anyhow::Result<f64> {
    let counting = async {
        sleep(WARM_UP).await;
        let (from, before) = (Instant::now(), lock_calls(nodes)?);
        sleep(time).await;
        Ok((from..Instant::now(), lock_calls(nodes)? - before))
    };
    let (acquisitions, (during, calls)) = crowd.compete(hold_for, counting).await?;
    let grants = acquisitions.iter().filter(|acquisition| during.contains(&acquisition.from));
    Ok(f64::from(u32::try_from(calls)?) / f64::from(u32::try_from(grants.count())?))
}

/// Measures handovers from client to client until each client has held the lock once, and repeats
/// this for `time`.
async fn handovers(nodes: &Nodes, kind: Kind, time: Duration) -> anyhow::Result<Latencies> {
    let first_holder = LockClient::connect(kind, nodes.urls()).await?;
    let crowd = Crowd::start(kind, &nodes.urls()).await?;
    let mut latencies = Latencies::new();
    let until = Instant::now() + time;
    while Instant::now() < until {
        let held = first_holder.acquire(KEY).await?;
        let working = crowd.once();
        sleep(QUEUE_FILL_TIME).await;
        let mut released = Instant::now();
        held.release().await?;
        for next in working.in_order().await? {
            // Only a client that waited already when the release began was handed the lock.
            if next.asked < released {
                latencies.record(next.from.saturating_duration_since(released));
            }
            released = next.to;
        }
    }
    Ok(latencies)
}

/// Time for which each client holds the lock while a node fails.
const HOLD: Duration = Duration::from_millis(5);
/// Time from the failure of the node to its recovery.
const FAILED_FOR: Duration = Duration::from_secs(10);
/// Longest allowed time from a release to the next grant.
const STALL_MAX: Duration = Duration::from_millis(50);
const ACCIDENTS: [(Accident, &str); 5] = [
    (Accident::Kill(Disk::Kept), "killed"),
    (Accident::Pause, "paused"),
    (Accident::Cut, "cut off"),
    (Accident::Drop(Direction::ToServer), "sent nothing"),
    (Accident::Drop(Direction::ToClient), "not heard"),
];

/// Lets one node fail while clients wait.
pub(crate) async fn with_a_lost_node(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (accident, name) in ACCIDENTS {
        let mut nodes = FailingNodes::start(matches!(accident, Accident::Cut | Accident::Drop(_)))?;
        let crowd = Crowd::start(Kind::Quorlock, &nodes.urls()).await?;
        let failing = async {
            sleep(WARM_UP).await;
            let failed = Instant::now();
            nodes.inject(accident)?;
            sleep(effort.time(FAILED_FOR)).await;
            let recovered = Instant::now();
            nodes.recover(accident)?;
            Ok((failed, recovered))
        };
        let (acquisitions, (failed, recovered)) = crowd.compete(HOLD, failing).await?;
        rows.push(row_of_a_lost_node(name, &acquisitions, failed, recovered));
    }
    Ok(rows)
}

fn row_of_a_lost_node(
    name: &str,
    acquisitions: &[Acquisition],
    failed: Instant,
    recovered: Instant,
) -> Row {
    let during: Vec<_> = acquisitions
        .iter()
        .filter(|acquisition| (failed..recovered).contains(&acquisition.from))
        .collect();
    let served = (0..CLIENTS)
        .filter(|client| {
            during.iter().any(|served| served.client == *client && served.asked > failed)
        })
        .count();
    // A free lock at the end of the failure counts too.
    let free_at_the_end = during
        .last()
        .map_or(recovered - failed, |last| recovered.saturating_duration_since(last.to));
    let pairs = || acquisitions.windows(2).map(|pair| (pair[0], pair[1]));
    let stall = pairs()
        .filter(|(_, next)| (failed..recovered).contains(&next.from))
        .map(|(last, next)| next.from.saturating_duration_since(last.to))
        .chain([free_at_the_end])
        .max()
        .unwrap_or_default();
    let violations =
        pairs().filter(|(last, next)| next.from < last.to || next.fence <= last.fence).count();
    Row::of_figure(
        format!("one node of {} is {name} while {CLIENTS} wait", FailingNodes::NODES),
        format!(
            "{served} of {CLIENTS} served, longest stall {}, longest wait {}, {violations} violations",
            readable(stall),
            readable(during.iter().map(|served| served.wait()).max().unwrap_or_default()),
        ),
        "all served, no stall > 50 ms, no violation",
        served == CLIENTS && stall <= STALL_MAX && violations == 0,
    )
}

/// A ttl and a wait longer than a handover on one node takes.
const TTL_MS: u64 = 60_000;
const ROUNDS: u32 = 400;
/// Number of rounds that do not count, before the [`ROUNDS`] that do.
const WARM_UP_ROUNDS: u32 = 20;
/// Number of handovers, and then of PINGs, in a round.
const EVENTS_PER_ROUND: u32 = 64;
/// Largest allowed ratio of the p50 of a handover to that of a PING.
const PING_RATIO_MAX: f64 = 1.3;
/// Largest allowed difference between these p50s.
const BEYOND_PING_MAX: Duration = Duration::from_micros(15);

/// Measures handovers on one node, through plain sockets, beside PINGs.
pub(crate) fn on_one_node(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let server = Server::with_module().tcp().start()?;
    let mut pinging = Socket::connect(&server)?;
    let mut sockets = Socket::connect_many(&server, CLIENTS + 1)?;
    for (client, socket) in sockets.iter_mut().enumerate() {
        socket.ask_for_the_lock(client, TTL_MS)?;
    }
    sockets.first_mut().context("there are sockets")?.read_grant()?;

    let (mut handovers, mut pings) = (Latencies::new(), Latencies::new());
    let mut holder = 0;
    for round in 0..effort.count(ROUNDS) + WARM_UP_ROUNDS {
        if round == WARM_UP_ROUNDS {
            (handovers, pings) = (Latencies::new(), Latencies::new());
        }
        for _ in 0..EVENTS_PER_ROUND {
            let next = (holder + 1) % sockets.len();
            let started = Instant::now();
            sockets[holder].release(holder)?;
            sockets[next].read_grant()?;
            handovers.record(started.elapsed());
            // The previous holder requests the lock again. The PING waits until the server has
            // queued this request, so that the queue is full at the next handover.
            sockets[holder].expect(":1")?;
            sockets[holder].ask_for_the_lock(holder, TTL_MS)?;
            pinging.ping()?;
            holder = next;
        }
        pinging.time_pings(EVENTS_PER_ROUND, &mut pings)?;
    }

    let (handover, ping) = (handovers.p50(), pings.p50());
    let (ratio, beyond) = (handover.div_duration_f64(ping), handover.saturating_sub(ping));
    Ok(vec![
        Row::of_figure(
            format!("handover on one node, {CLIENTS} waiters, p50"),
            format!("{}, {ratio:.2} × a PING's {}", readable(handover), readable(ping)),
            "≤ 1.3 × a PING",
            ratio <= PING_RATIO_MAX,
        ),
        Row::of_figure(
            "difference between that handover and a PING, p50",
            readable(beyond),
            "≤ 15 µs",
            beyond <= BEYOND_PING_MAX,
        ),
    ])
}
