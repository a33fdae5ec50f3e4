//! Clients in separate processes, which compete for a lock.
//!
//! A process prints `ready` when it is connected. When it reads the line [`ONCE`], it acquires the
//! lock once and prints one line about it. When it reads the line [`GO`], it acquires the lock
//! repeatedly until its input ends, and then prints a report of what followed [`GO`]. The process
//! ends when its input ends, and thus also when its parent has ended.

use std::env;
use std::io::{self, BufRead as _, Write as _};
use std::pin::pin;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use quorlock_faults::harness::{Grant, Process, now};
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::clients::{Contender, Held, Kind};
use super::timeline::{Acquisition, ClientReport, ReportLine, Timeline};

/// The subcommand of a process that competes.
pub(crate) const NAME: &str = "worker";

/// Delay between an acquisition and its report, which must not slow down the processes that still
/// wait for the lock.
const REPORT_DELAY: Duration = Duration::from_millis(100);

/// Pause after an error. Without the pause, a client whose requests fail at once might never yield
/// the thread, and so never notice that it must stop.
const ERROR_PAUSE: Duration = Duration::from_millis(1);

/// The order to acquire the lock once.
const ONCE: &str = "once";
/// The order to acquire the lock repeatedly.
const GO: &str = "go";

/// What a client does: the command line of its process.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Behaviour {
    /// The kind of the client
    #[arg(long, value_enum)]
    pub(crate) kind: Kind,
    /// The key of the lock
    #[arg(long)]
    pub(crate) key: String,
    /// How long it holds the lock
    #[arg(long, value_name = "US")]
    pub(crate) hold_us: u64,
    /// The nodes
    pub(crate) urls: Vec<String>,
}

impl Behaviour {
    /// Returns command-line arguments that parse to this value.
    fn args(&self) -> Vec<String> {
        let Self { kind, key, hold_us, urls } = self;
        let kind = format!("{kind:?}").to_lowercase();
        let mut args =
            vec![format!("--kind={kind}"), format!("--key={key}"), format!("--hold-us={hold_us}")];
        args.extend_from_slice(urls);
        args
    }
}

pub(crate) async fn acquire_and_release_once(
    contender: &Contender,
    behaviour: &Behaviour,
) -> anyhow::Result<Acquisition> {
    let asked = now();
    let held = contender.acquire(&behaviour.key).await?;
    hold(held, asked, behaviour).await
}

/// Acquires and releases the lock repeatedly until `stop` is done. If the client then holds the
/// lock, releases it before returning.
async fn compete(
    contender: &Contender,
    behaviour: &Behaviour,
    stop: impl Future<Output = ()>,
) -> ClientReport {
    let mut report = ClientReport::default();
    let mut stop = pin!(stop);
    loop {
        let asked = now();
        let held = tokio::select! {
            biased;
            () = &mut stop => {
                report.add(ReportLine::Unserved { asked, ended: now() });
                return report;
            }
            held = contender.acquire(&behaviour.key) => held,
        };
        let acquisition = match held {
            Ok(held) => hold(held, asked, behaviour).await,
            Err(error) => Err(error),
        };
        if acquisition.is_err() {
            sleep(ERROR_PAUSE).await;
        }
        report.add(report_line(acquisition));
    }
}

fn report_line(acquisition: anyhow::Result<Acquisition>) -> ReportLine {
    acquisition.map_or_else(|error| ReportLine::Failed(format!("{error:#}")), ReportLine::Acquired)
}

/// Holds the lock for a while, and releases it.
async fn hold(held: Held, asked: Duration, behaviour: &Behaviour) -> anyhow::Result<Acquisition> {
    let from = now();
    if behaviour.hold_us > 0 {
        sleep(Duration::from_micros(behaviour.hold_us)).await;
    }
    let fence = held.fence();
    let to = now();
    held.release().await?;
    let key = behaviour.key.clone();
    Ok(Acquisition { asked, grant: Grant { key, client: std::process::id(), from, to, fence } })
}

/// Runs the process until its input ends.
pub(crate) fn run(behaviour: &Behaviour) -> anyhow::Result<()> {
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut orders = listen();
        let contender = Contender::connect(behaviour.kind, &behaviour.urls).await?;
        say("ready")?;
        while let Some(order) = orders.recv().await {
            if order == ONCE {
                let acquisition = acquire_and_release_once(&contender, behaviour).await;
                sleep(REPORT_DELAY).await;
                say(&report_line(acquisition).to_string())?;
            } else {
                let report =
                    compete(&contender, behaviour, async { drop(orders.recv().await) }).await;
                say(&report.lines().map(|line| line.to_string()).collect::<Vec<_>>().join("\n"))?;
            }
        }
        contender.close().await;
        Ok(())
    })
}

fn say(what: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{what}")?;
    stdout.flush()
}

/// Returns the lines of the input as they arrive.
fn listen() -> mpsc::UnboundedReceiver<String> {
    let (orders, receiver) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if orders.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Time limit for a process to connect, to answer, or to end.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(20);

/// Processes that compete for one lock. They are killed when the `Crowd` is dropped.
pub(crate) struct Crowd {
    processes: Vec<Process>,
}

impl Crowd {
    /// Starts `n` processes, and returns when all of them are connected.
    pub(crate) fn start(n: usize, behaviour: &Behaviour) -> anyhow::Result<Self> {
        let program = env::current_exe().context("cannot find the path of this program")?;
        let args = || [NAME.to_owned()].into_iter().chain(behaviour.args());
        let processes =
            (0..n).map(|_| Process::start(&program, args())).collect::<anyhow::Result<Vec<_>>>()?;
        let ensure_ready = |process: &Process| {
            let line = process.next_line(PROCESS_TIMEOUT)?;
            ensure!(line.as_deref() == Some("ready"), "a client process did not connect");
            Ok(())
        };
        block_in_place(|| processes.iter().try_for_each(ensure_ready))?;
        Ok(Self { processes })
    }

    /// Lets each process acquire the lock repeatedly until [`Crowd::stop`].
    pub(crate) fn go(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().try_for_each(|process| process.send(GO))
    }

    /// Lets each process acquire the lock once; [`Crowd::reports`] waits for the results.
    pub(crate) fn once(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().try_for_each(|process| process.send(ONCE))
    }

    pub(crate) fn reports(&mut self) -> anyhow::Result<Vec<ClientReport>> {
        let report = |process: &Process| {
            let line = process
                .next_line(PROCESS_TIMEOUT)?
                .context("a client process ended before it reported")?;
            let mut report = ClientReport::default();
            report.add(line.parse()?);
            Ok(report)
        };
        block_in_place(|| self.processes.iter().map(report).collect())
    }

    /// Ends all processes, and returns what they did since [`GO`].
    pub(crate) fn stop(mut self) -> anyhow::Result<Timeline> {
        self.processes.iter_mut().for_each(Process::end_input);
        let report = |process: Process| {
            let mut report = ClientReport::default();
            while let Some(line) = process.next_line(PROCESS_TIMEOUT)? {
                report.add(line.parse()?);
            }
            process.wait()?;
            Ok(report)
        };
        let reports = || self.processes.into_iter().map(report).collect::<anyhow::Result<_>>();
        Ok(Timeline::new(block_in_place(reports)?))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use quorlock_client::Quorum;
    use quorlock_testkit::Server;

    use super::*;

    #[tokio::test]
    async fn client_pauses_after_an_error_that_returns_at_once() {
        let server = Server::builder().without_module().start().unwrap();
        let contender = Contender::Quorlock(Quorum::connect([server.url()]).await.unwrap());
        let behaviour =
            Behaviour { kind: Kind::Quorlock, key: "k".into(), hold_us: 0, urls: Vec::new() };
        let started = Instant::now();
        let report = compete(&contender, &behaviour, sleep(100 * ERROR_PAUSE)).await;
        let failed = report.lines().filter(|line| matches!(line, ReportLine::Failed(_))).count();
        let failed = u32::try_from(failed).unwrap();
        assert!(failed > 0);
        assert!(failed * ERROR_PAUSE <= started.elapsed(), "{failed} errors");
    }
}
