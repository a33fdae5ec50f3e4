//! Clients in processes of their own, which compete for a lock.
//!
//! A process prints `ready` when it is connected. At a line [`ONCE`] it acquires the lock once and
//! reports it. At a line [`GO`] it acquires the lock again and again until its input ends, and then
//! reports all of it. It ends with its input, and thus also when its parent has ended.

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
use super::turns::{Account, Course, Told, Turn};

/// The subcommand of a process that competes.
pub(crate) const NAME: &str = "worker";

/// Delay of a report.
const TELL_AFTER: Duration = Duration::from_millis(100);

/// Acquire the lock once.
pub(crate) const ONCE: &str = "once";
/// Acquire the lock again and again.
pub(crate) const GO: &str = "go";

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
    /// Returns the arguments that parse to this.
    pub(crate) fn args(&self) -> Vec<String> {
        let Self { kind, key, hold_us, urls } = self;
        let kind = format!("{kind:?}").to_lowercase();
        let mut args =
            vec![format!("--kind={kind}"), format!("--key={key}"), format!("--hold-us={hold_us}")];
        args.extend_from_slice(urls);
        args
    }
}

/// Acquires and releases the lock once.
pub(crate) async fn take_turn(
    contender: &Contender,
    behaviour: &Behaviour,
) -> anyhow::Result<Turn> {
    let asked = now();
    let held = contender.acquire(&behaviour.key).await?;
    hold(held, asked, behaviour).await
}

/// Acquires and releases the lock until `stop` is done. A held lock is released first.
pub(crate) async fn compete(
    contender: &Contender,
    behaviour: &Behaviour,
    stop: impl Future<Output = ()>,
) -> Account {
    let mut account = Account::default();
    let mut stop = pin!(stop);
    loop {
        let asked = now();
        let held = tokio::select! {
            biased;
            () = &mut stop => {
                account.add(Told::Unserved { asked, ended: now() });
                return account;
            }
            held = contender.acquire(&behaviour.key) => held,
        };
        let turn = match held {
            Ok(held) => hold(held, asked, behaviour).await,
            Err(error) => Err(error),
        };
        account.add(turn.map_or_else(
            |error| Told::Failed { at: now(), what: format!("{error:#}") },
            Told::Turn,
        ));
    }
}

/// Holds the lock for a while, and releases it.
async fn hold(held: Held, asked: Duration, behaviour: &Behaviour) -> anyhow::Result<Turn> {
    let from = now();
    if behaviour.hold_us > 0 {
        sleep(Duration::from_micros(behaviour.hold_us)).await;
    }
    let fence = held.fence();
    let to = now();
    held.release().await?;
    let key = behaviour.key.clone();
    Ok(Turn { asked, grant: Grant { key, client: std::process::id(), from, to, fence } })
}

/// Runs the process until its input ends.
pub(crate) fn run(behaviour: &Behaviour) -> anyhow::Result<()> {
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut orders = listen();
        let contender = Contender::connect(behaviour.kind, &behaviour.urls).await?;
        say("ready")?;
        while let Some(order) = orders.recv().await {
            if order == ONCE {
                let turn = take_turn(&contender, behaviour).await;
                // Not while other processes hand the lock over.
                sleep(TELL_AFTER).await;
                let failed = |error| Told::Failed { at: now(), what: format!("{error:#}") };
                say(&turn.map_or_else(failed, Told::Turn).to_string())?;
            } else {
                let account =
                    compete(&contender, behaviour, async { drop(orders.recv().await) }).await;
                say(&account.told().map(|told| told.to_string()).collect::<Vec<_>>().join("\n"))?;
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
const PATIENCE: Duration = Duration::from_secs(20);

/// Processes that compete for one lock. They are killed when this is dropped.
pub(crate) struct Crowd {
    processes: Vec<Process>,
}

impl Crowd {
    /// Starts `n` processes, and returns when all of them are connected.
    pub(crate) fn start(n: usize, behaviour: &Behaviour) -> anyhow::Result<Self> {
        let program = env::current_exe().context("cannot tell what program this is")?;
        let args = || [NAME.to_owned()].into_iter().chain(behaviour.args());
        let processes =
            (0..n).map(|_| Process::start(&program, args())).collect::<anyhow::Result<Vec<_>>>()?;
        block_in_place(|| {
            processes.iter().try_for_each(|process| {
                let line = process.next_line(PATIENCE)?;
                ensure!(line.as_deref() == Some("ready"), "a client could not connect");
                Ok(())
            })
        })?;
        Ok(Self { processes })
    }

    /// Lets each process acquire the lock again and again, until it is told to stop.
    pub(crate) fn go(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().try_for_each(|process| process.send(GO))
    }

    /// Lets each process acquire the lock once; [`Crowd::turns`] waits for the results.
    pub(crate) fn once(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().try_for_each(|process| process.send(ONCE))
    }

    /// Waits for what each process did at [`Crowd::once`].
    pub(crate) fn turns(&mut self) -> anyhow::Result<Vec<Account>> {
        let account = |process: &Process| {
            let line = process.next_line(PATIENCE)?.context("a client has ended")?;
            let mut account = Account::default();
            account.add(line.parse()?);
            Ok(account)
        };
        block_in_place(|| self.processes.iter().map(account).collect())
    }

    /// Lets all processes end, and returns what they did.
    pub(crate) fn stop(mut self) -> anyhow::Result<Course> {
        self.processes.iter_mut().for_each(Process::end_input);
        let account = |process: Process| {
            let mut account = Account::default();
            while let Some(line) = process.next_line(PATIENCE)? {
                account.add(line.parse()?);
            }
            process.wait()?;
            Ok(account)
        };
        let accounts: anyhow::Result<_> =
            block_in_place(|| self.processes.into_iter().map(account).collect());
        Ok(Course::new(accounts?))
    }
}
