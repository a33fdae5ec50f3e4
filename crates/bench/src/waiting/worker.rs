//! One client that competes for a lock until it is told to stop, in a process of its own where it matters.
//!
//! A process says `ready` when it is connected. At a line [`ONCE`] it takes the lock once and tells of it; at a line [`GO`]
//! it takes it again and again, to the end of its input, and tells of all of it then. It ends at the end of its input, and
//! thus also when whoever started it is gone.

use std::io::{self, BufRead as _, Write as _};
use std::pin::pin;
use std::thread;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::clock;
use super::contender::{Contender, Held, Kind};
use super::turns::{Account, Told, Turn};

/// The subcommand of a process that competes.
pub(crate) const NAME: &str = "worker";

/// How much later a process tells what it did.
const TELL_AFTER: Duration = Duration::from_millis(100);

/// To take the lock once.
pub(crate) const ONCE: &str = "once";
/// To take the lock again and again.
pub(crate) const GO: &str = "go";

/// What a client does. Also the command line of its process.
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
    /// The nodes
    pub(crate) urls: Vec<String>,
}

impl Behaviour {
    /// The arguments that make this.
    pub(crate) fn args(&self) -> Vec<String> {
        let Self { kind, key, hold_us, urls } = self;
        let kind = format!("{kind:?}").to_lowercase();
        let mut args = vec![format!("--kind={kind}"), format!("--key={key}"), format!("--hold-us={hold_us}")];
        args.extend_from_slice(urls);
        args
    }
}

/// Takes the lock once, and says how that went.
pub(crate) async fn take_turn(contender: &Contender, behaviour: &Behaviour) -> anyhow::Result<Turn> {
    let asked = clock::now();
    let held = contender.acquire(&behaviour.key).await?;
    let got = clock::now();
    hold(held, asked, got, behaviour).await
}

/// Takes the lock again and again until `stop` is done; if it is held then, it is released first.
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
        let turn = match held {
            Ok(held) => hold(held, asked, got, behaviour).await,
            Err(error) => Err(error),
        };
        account
            .add(turn.map_or_else(|error| Told::Failed { at: got, what: format!("{error:#}") }, Told::Turn));
    }
}

/// Has the lock for a while, and releases it.
async fn hold(held: Held, asked: Duration, got: Duration, behaviour: &Behaviour) -> anyhow::Result<Turn> {
    if behaviour.hold_us > 0 {
        sleep(Duration::from_micros(behaviour.hold_us)).await;
    }
    let fence = held.fence();
    let releasing = clock::now();
    held.release().await?;
    Ok(Turn { asked, got, releasing, fence })
}

/// The whole life of a process that competes.
pub(crate) fn run(behaviour: &Behaviour) -> anyhow::Result<()> {
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut orders = listen();
        let contender = Contender::connect(behaviour.kind, &behaviour.urls).await?;
        say("ready")?;
        while let Some(order) = orders.recv().await {
            if order == ONCE {
                let turn = take_turn(&contender, behaviour).await;
                // Not while others hand the lock over.
                sleep(TELL_AFTER).await;
                let failed = |error| Told::Failed { at: clock::now(), what: format!("{error:#}") };
                say(&turn.map_or_else(failed, Told::Turn).to_string())?;
            } else {
                let account = compete(&contender, behaviour, async { drop(orders.recv().await) }).await;
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

/// The lines of the input, as they come.
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
