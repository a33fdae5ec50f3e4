use std::time::Duration;

use futures_util::future::join_all;
use indicatif::{ProgressBar, ProgressStyle};
use quorlock_client::{AcquireError, Quorum};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout_at};

use super::report::Measurements;
use crate::nodes::NodeSettings;
use crate::run::waiting_cannot_help;
use crate::{advice, say};

const TTL: Duration = Duration::from_secs(10);
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
const ERROR_PAUSE: Duration = Duration::from_millis(10);

pub(super) struct Load<'a> {
    pub(super) nodes: &'a NodeSettings,
    pub(super) tasks: u16,
    pub(super) duration: Duration,
    /// No other program uses this prefix.
    pub(super) key_prefix: String,
}

/// The clients and their tasks. They outlive [`Load::measure`], which a signal may interrupt.
#[derive(Default)]
pub(super) struct Clients {
    quorums: Vec<Quorum>,
    tasks: JoinSet<anyhow::Result<Measurements>>,
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
    /// Measures both parts. The inner `Err` is why the nodes did not grant the first lock, if
    /// waiting may help.
    pub(super) async fn measure(
        &self,
        clients: &mut Clients,
    ) -> anyhow::Result<Result<Vec<Measurements>, AcquireError>> {
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
            Err(error) if waiting_cannot_help(&error) => return Err(advice::acquire_error(error)),
            Err(error) => return Ok(Err(error)),
        }
        let uncontended = self.run("uncontended", |task| task.to_string(), clients).await?;
        // Makes one client per task, as separate processes would have.
        while clients.quorums.len() < self.tasks.into() {
            clients.quorums.push(self.nodes.connect().await?);
        }
        let contended = self.run("contended", |_| "all".to_owned(), clients).await?;
        Ok(Ok(vec![uncontended, contended]))
    }

    /// Measures one part. `key` returns how the key of each task ends.
    async fn run(
        &self,
        name: &'static str,
        key: impl Fn(usize) -> String,
        clients: &mut Clients,
    ) -> anyhow::Result<Measurements> {
        let Clients { quorums, tasks } = clients;
        let started = Instant::now();
        let until = started + self.duration;
        for (index, quorum) in quorums.iter().cycle().take(self.tasks.into()).enumerate() {
            let key = format!("{}{}", self.key_prefix, key(index));
            tasks.spawn(work(quorum.clone(), key, until));
        }
        let watching = async {
            let bar = progress_bar(name, self.duration);
            let mut ticks = interval(PROGRESS_EVERY);
            loop {
                ticks.tick().await;
                bar.set_position(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
            }
        };
        let working = async {
            let mut measured = Measurements::new(name);
            while let Some(done) = tasks.join_next().await {
                measured.add(&done??);
            }
            anyhow::Ok(measured)
        };
        let mut measured = tokio::select! {
            measured = working => measured?,
            () = watching => unreachable!("the loop has no end"),
        };
        measured.took = started.elapsed();
        Ok(measured)
    }
}

/// Acquires and releases one key until the time is over.
async fn work(quorum: Quorum, key: String, until: Instant) -> anyhow::Result<Measurements> {
    let lock = quorum.lock(key).ttl(TTL).wait(Duration::MAX);
    let mut measured = Measurements::new("");
    loop {
        let asked = Instant::now();
        // A wait that is interrupted at `until` leaves the queue, and is not measured.
        let Ok(acquired) = timeout_at(until, lock.acquire()).await else { return Ok(measured) };
        let acquire = asked.elapsed();
        match acquired {
            Ok(lock) => {
                let asked = Instant::now();
                if lock.release().await.is_ok() {
                    measured.record(acquire, asked.elapsed());
                } else {
                    measured.failed += 1;
                }
            }
            Err(error) if waiting_cannot_help(&error) => return Err(advice::acquire_error(error)),
            Err(error) => {
                measured.record_error(&error);
                sleep(ERROR_PAUSE).await;
            }
        }
        if Instant::now() >= until {
            return Ok(measured);
        }
    }
}

fn progress_bar(name: &'static str, duration: Duration) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:11} {bar:30} {percent:>3} %")
        .expect("the template is well-formed");
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    ProgressBar::new(millis).with_style(style).with_message(name)
}
