//! One client that competes for a lock until it is told to stop, in a process of its own where it matters.
//!
//! A process says `ready` when it is connected, goes at the first line it reads, and stops at the end of its input: also
//! when whoever started it is gone. Then it tells what it did.

use std::io::{self, BufRead as _, Write as _};
use std::pin::pin;
use std::thread;
use std::time::Duration;

use rand::RngExt as _;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::clock;
use super::contender::{Contender, Kind};
use super::turns::{Account, Told, Turn};

/// The subcommand of a process that competes.
pub(crate) const NAME: &str = "worker";

/// What a client does, again and again. Also the command line of its process.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Behaviour {
    /// Which client
    #[arg(long, value_enum)]
    pub(crate) kind: Kind,
    /// What it locks
    #[arg(long)]
    pub(crate) key: String,
    /// How long it holds the lock
    #[arg(long, value_name = "US")]
    pub(crate) hold_us: u64,
    /// How long it does something else before it asks again, on average
    #[arg(long, value_name = "US")]
    pub(crate) rest_us: u64,
    /// The nodes
    pub(crate) urls: Vec<String>,
}

impl Behaviour {
    /// The arguments that make this.
    pub(crate) fn args(&self) -> Vec<String> {
        let Self { kind, key, hold_us, rest_us, urls } = self;
        let kind = format!("{kind:?}").to_lowercase();
        let mut args = vec![
            format!("--kind={kind}"),
            format!("--key={key}"),
            format!("--hold-us={hold_us}"),
            format!("--rest-us={rest_us}"),
        ];
        args.extend_from_slice(urls);
        args
    }
}

/// Competes until `stop` is done; a lock that is held then is released first.
pub(crate) async fn compete(
    contender: &Contender,
    behaviour: &Behaviour,
    stop: impl Future<Output = ()>,
) -> Account {
    let mut account = Account::default();
    let mut stop = pin!(stop);
    loop {
        let asked = clock::now();
        let held = tokio::select! {
            biased;
            () = &mut stop => {
                account.add(Told::Unserved { asked, ended: clock::now() });
                return account;
            }
            held = contender.acquire(&behaviour.key) => held,
        };
        let got = clock::now();
        let held = match held {
            Ok(held) => held,
            Err(error) => {
                account.add(Told::Failed { at: got, what: format!("{error:#}") });
                continue;
            }
        };
        pause(Duration::from_micros(behaviour.hold_us)).await;
        let fence = held.fence();
        let releasing = clock::now();
        account.add(Told::Turn(Turn { asked, got, releasing, fence }));
        if let Err(error) = held.release().await {
            account.add(Told::Failed { at: releasing, what: format!("{error:#}") });
        }
        // So that those who rest do not all come back in the order in which they left.
        let rest = rand::rng().random_range(0..=2 * behaviour.rest_us);
        tokio::select! {
            biased;
            () = &mut stop => return account,
            () = pause(Duration::from_micros(rest)) => {}
        }
    }
}

async fn pause(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

/// The whole life of a process that competes.
pub(crate) fn run(behaviour: &Behaviour) -> anyhow::Result<()> {
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let (go, stop) = listen();
        let contender = Contender::connect(behaviour.kind, &behaviour.urls).await?;
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "ready")?;
        stdout.flush()?;
        if go.await.is_err() {
            return Ok(());
        }
        let account = compete(&contender, behaviour, async { drop(stop.await) }).await;
        contender.close().await;
        let Account { turns, unserved, failures } = account;
        for told in turns.into_iter().map(Told::Turn) {
            writeln!(stdout, "{told}")?;
        }
        if let Some((asked, ended)) = unserved {
            writeln!(stdout, "{}", Told::Unserved { asked, ended })?;
        }
        for what in failures {
            writeln!(stdout, "{}", Told::Failed { at: clock::now(), what })?;
        }
        Ok(())
    })
}

/// When to go, and when to stop.
fn listen() -> (oneshot::Receiver<()>, oneshot::Receiver<()>) {
    let (send_go, go) = oneshot::channel();
    let (send_stop, stop) = oneshot::channel();
    thread::spawn(move || {
        let mut lines = io::stdin().lock().lines();
        if let Some(Ok(_)) = lines.next() {
            let _ = send_go.send(());
            while let Some(Ok(_)) = lines.next() {}
        }
        drop(send_stop);
    });
    (go, stop)
}
