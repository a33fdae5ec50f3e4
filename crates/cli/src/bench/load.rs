use std::time::Duration;

use futures_util::future::join_all;
use indicatif::{ProgressBar, ProgressStyle};
use quorlock_client::{AcquireError, Quorum};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout_at};

use super::report::Part;
use crate::nodes::Nodes;
use crate::run::waiting_cannot_help;
use crate::{advice, say};

/// The ttl of the benchmark's locks.
const TTL: Duration = Duration::from_secs(10);
/// How often the progress bar moves.
const TICK: Duration = Duration::from_millis(100);
/// The pause of a task after an error.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Contention {
    /// Each task has its own key.
    None,
    /// All tasks acquire the same key.
    All,
}

pub(super) struct Load<'a> {
    pub(super) nodes: &'a Nodes,
    pub(super) tasks: u16,
    pub(super) duration: Duration,
    /// The prefix of the keys. No other program uses it.
    pub(super) key_prefix: String,
}

/// The clients and their tasks. They outlive [`Load::measure`], which a signal may interrupt.
#[derive(Default)]
pub(super) struct Clients {
    quorums: Vec<Quorum>,
    tasks: JoinSet<anyhow::Result<Part>>,
}

impl Clients {
    /// Stops the tasks, and releases what they hold.
    pub(super) async fn clean_up(&mut self, limit: Duration) {
        // Ending a task releases its lock, and the flush waits for the release.
        self.tasks.shutdown().await;
        let flushed = join_all(self.quorums.iter().map(|quorum| quorum.flush(limit))).await;
        flushed.into_iter().filter_map(Result::err).for_each(say);
    }
}

impl Load<'_> {
    /// Measures both parts. The inner `Err` says why the nodes did not grant the first lock, when
    /// waiting may help. The outer `Err` is any other error.
    pub(super) async fn measure(
        &self,
        clients: &mut Clients,
    ) -> anyhow::Result<Result<Vec<Part>, AcquireError>> {
        clients.quorums.push(self.nodes.connect().await?);
        // Tries one lock first: if the nodes granted nothing, all tasks would wait to the end.
        let first = clients.quorums[0]
            .lock(format!("{}first", self.key_prefix))
            .ttl(TTL)
            .try_acquire()
            .await;
        match first {
            Ok(lock) => {
                lock.release().await?;
            }
            Err(error) if waiting_cannot_help(&error) => return Err(advice::on_acquire(error)),
            Err(error) => return Ok(Err(error)),
        }
        let uncontended = self.run(Contention::None, clients).await?;
        // Makes one client per task, as separate processes would have.
        while clients.quorums.len() < self.tasks.into() {
            clients.quorums.push(self.nodes.connect().await?);
        }
        let contended = self.run(Contention::All, clients).await?;
        Ok(Ok(vec![uncontended, contended]))
    }

    /// Spawns the tasks, and waits until they have ended.
    async fn run(&self, contention: Contention, clients: &mut Clients) -> anyhow::Result<Part> {
        let Clients { quorums, tasks } = clients;
        let name = match contention {
            Contention::None => "uncontended",
            Contention::All => "contended",
        };
        let started = Instant::now();
        let until = started + self.duration;
        for (index, quorum) in quorums.iter().cycle().take(self.tasks.into()).enumerate() {
            let key = match contention {
                Contention::None => format!("{}{index}", self.key_prefix),
                Contention::All => format!("{}all", self.key_prefix),
            };
            tasks.spawn(work(quorum.clone(), key, until));
        }
        let watching = async {
            let bar = progress_bar(name, self.duration);
            let mut ticks = interval(TICK);
            loop {
                ticks.tick().await;
                bar.set_position(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
            }
        };
        let working = async {
            let mut part = Part::new(name);
            while let Some(done) = tasks.join_next().await {
                part.add(&done??);
            }
            anyhow::Ok(part)
        };
        let mut part = tokio::select! {
            part = working => part?,
            () = watching => unreachable!("the loop has no end"),
        };
        part.took = started.elapsed();
        Ok(part)
    }
}

/// Acquires and releases one key until the time is over.
async fn work(quorum: Quorum, key: String, until: Instant) -> anyhow::Result<Part> {
    let lock = quorum.lock(key).ttl(TTL).wait(Duration::MAX);
    let mut part = Part::new("");
    loop {
        let asked = Instant::now();
        // A wait that is interrupted at `until` leaves the queue, and is not measured.
        let Ok(acquired) = timeout_at(until, lock.acquire()).await else { return Ok(part) };
        let acquire = asked.elapsed();
        match acquired {
            Ok(lock) => {
                let asked = Instant::now();
                if lock.release().await.is_ok() {
                    part.record(acquire, asked.elapsed());
                } else {
                    part.failed += 1;
                }
            }
            Err(error) if waiting_cannot_help(&error) => return Err(advice::on_acquire(error)),
            Err(error) => {
                part.record_error(&error);
                sleep(ERROR_PAUSE).await;
            }
        }
        if Instant::now() >= until {
            return Ok(part);
        }
    }
}

fn progress_bar(name: &'static str, duration: Duration) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:11} {bar:30} {percent:>3} %")
        .expect("the template is well-formed");
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    ProgressBar::new(millis).with_style(style).with_message(name)
}
