//! `quorlock acquire`; and what it shares with `quorlock run`: options, and the wait for the lock.

use std::convert::Infallible;
use std::ffi::OsString;
use std::future::pending;
use std::io::{IsTerminal as _, stderr};
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::ensure;
use quorlock_client::{AcquireError, Lock, LockBuilder, Quorum};
use tokio::time::sleep;

use crate::config::Defaults;
use crate::exit::Ended;
use crate::nodes::{self, NodeArgs, NodeSettings};
use crate::output::{escape_short, say, say_in_background};
use crate::system::Signals;
use crate::values::duration;
use crate::{exit, handle, values};

/// The default ttl of a lock.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// A fraction of the ttl must be enough time to start a process, extend the lock, or stop the
/// command.
const TTL_MIN: Duration = Duration::from_millis(100);
/// How long to wait for a lock that is in use before saying who holds it. Most waits are shorter.
const NOTICE_AFTER: Duration = Duration::from_secs(1);
/// How long to wait for silent nodes at the end. A lease that remains on one of them ends by its
/// ttl.
pub(crate) const FLUSH_LIMIT: Duration = Duration::from_millis(250);

/// Acquires a lock for a script, and prints its handle.
///
/// The lock lasts for its ttl. `quorlock extend` makes it last longer, and `quorlock release`
/// frees it. For one command that may take long, use `quorlock run`, which renews the lock and
/// stops the command when the lock is lost.
///
/// The handle contains the lock's token. A program that knows the handle can extend and release the
/// lock. Treat the handle as a password, and give it to the other subcommands on standard input.
#[derive(clap::Args)]
#[command(
    after_help = [EXIT_CODES, nodes::SEE_ALSO].join("\n\n"),
    after_long_help = [EXIT_CODES, EXAMPLE, nodes::SEE_ALSO].join("\n\n"),
)]
pub(crate) struct Acquire {
    #[command(flatten)]
    lock: LockArgs,

    /// Print JSON: handle, key, fence, `ttl_ms`, `expires_unix_ms`
    ///
    /// If the lock is a permit of a semaphore, also permit: the number of its slot, from 0.
    #[arg(long)]
    json: bool,
}

const EXIT_CODES: &str = "Exit codes:
  0    the lock is held until its ttl is over
  121  another client holds the lock
  122  no majority of the nodes voted in time
  125  quorlock itself failed, its arguments are not understood, or too many
       nodes fail permanently: a wrong password, no module, a replica
  128 + the signal that ended the wait";

const EXAMPLE: &str = "Example:
  handle=$(quorlock acquire report --ttl 30s --wait 10s) || exit
  trap 'echo \"$handle\" | quorlock release -' EXIT
  echo first step
  new=$(echo \"$handle\" | quorlock extend -) || exit
  handle=$new
  echo second step";

pub(crate) async fn acquire(mut args: Acquire) -> anyhow::Result<ExitCode> {
    // Listens first: a signal must not end this program while it holds a lock.
    let mut signals = Signals::listen()?;
    let nodes = args.lock.load()?;
    args.lock.owner.get_or_insert_with(handle::default_owner);
    let called_at = Instant::now();
    let acquire = async |quorum: &Quorum| {
        let acquired = Box::pin(args.lock.acquire(quorum, called_at, None, false)).await;
        acquired.map_err(|error| not_acquired(&error, exit::CONFLICT, true))
    };
    let connecting = nodes.connect_before_call(None);
    handle::lock_and_print(&mut signals, connecting, acquire, args.json).await
}

/// The options of `run` and `acquire`: the lock, and how long to wait for it.
#[derive(clap::Args)]
pub(crate) struct LockArgs {
    /// The lock's name: the key on every node
    #[arg(value_parser = values::key_parser())]
    pub(crate) key: OsString,

    #[command(flatten)]
    nodes: NodeArgs,

    /// The ttl: the lock ends this long after its last extension [default: 10s]
    ///
    /// Give at least 100ms. `quorlock run` extends the lock whenever a third of the ttl has passed.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    ttl: Option<Duration>,

    /// Wait at most this long [default: for ever]
    ///
    /// The time includes connecting.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    wait: Option<Duration>,

    /// The same in seconds or a fraction, as in flock
    #[arg(short = 'w', value_parser = seconds, value_name = "SECONDS", conflicts_with = "wait")]
    wait_seconds: Option<Duration>,

    /// Do not wait: try once, as with --wait 0
    ///
    /// Connecting to the nodes may take 1s. With --node-timeout, which `quorlock run` has, it may
    /// take four times that time.
    #[arg(short = 'n', long, conflicts_with_all = ["wait", "wait_seconds"])]
    no_wait: bool,

    /// Share the lock with others that have --shared
    ///
    /// For commands that only read. Without this option, the lock is exclusive.
    #[arg(long)]
    shared: bool,

    /// Let at most N, 1 to 64, hold KEY at a time
    ///
    /// KEY is then a semaphore. Give the same number everywhere.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64), conflicts_with = "shared")]
    permits: Option<u8>,

    /// The owner label of the lock [default: HOST:PID]
    ///
    /// `quorlock inspect` and LOCK.INSPECT show it. `quorlock acquire` ends before the lock does:
    /// its default is `HOST:PID (detached)`, with the PID of the calling process, usually a script.
    #[arg(long, value_name = "LABEL")]
    owner: Option<String>,
}

impl LockArgs {
    /// Finds the nodes, and the values of missing options in configuration files.
    pub(crate) fn load(&mut self) -> anyhow::Result<NodeSettings> {
        let nodes = self.nodes.load()?;
        let Defaults { ttl, wait, owner } = &nodes.defaults;
        self.ttl = self.ttl.or(*ttl);
        self.wait = self.wait.or(self.wait_seconds).or(*wait);
        self.owner = self.owner.take().or_else(|| owner.clone());
        check_ttl(self.ttl())?;
        Ok(nodes)
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(DEFAULT_TTL)
    }

    /// Tries once, and then waits for the lock. The wait counts from `called_at`, and so includes
    /// the time to connect.
    ///
    /// Prints why it waits: at once, or after [`NOTICE_AFTER`] if the lock is merely in use. Then
    /// it prints this only on a terminal or if `verbose`, so that cron sends no mail. After that
    /// time, or if the lock is held, also warns of a larger number of permits.
    pub(crate) async fn acquire(
        &self,
        quorum: &Quorum,
        called_at: Instant,
        node_timeout: Option<Duration>,
        verbose: bool,
    ) -> Result<Lock, AcquireError> {
        let builder = self.builder(quorum, node_timeout);
        let wait = if self.no_wait { Duration::ZERO } else { self.wait.unwrap_or(Duration::MAX) };
        let reason = match builder.try_acquire().await {
            Err(error) if called_at.elapsed() < wait && !exit::waiting_cannot_help(&error) => error,
            Err(AcquireError::Held { nodes, .. }) => {
                self.warn_of_larger(quorum).await;
                return Err(AcquireError::Held { nodes, holder: builder.holder().await });
            }
            decided => return decided,
        };
        let builder = builder.wait(wait.saturating_sub(called_at.elapsed()));
        let tells_holder = is_usual(&reason) && (verbose || stderr().is_terminal());
        if !is_usual(&reason) {
            say(format_args!("waiting: {}", exit::describe(&reason)));
        }
        let waits_since = Instant::now();
        let notices = async {
            sleep(NOTICE_AFTER).await;
            if tells_holder {
                let reason = match (reason, builder.holder().await) {
                    // The first attempt named no holder, or found nodes that now vote.
                    (
                        AcquireError::Held { nodes, .. } | AcquireError::NoQuorum { nodes },
                        holder @ Some(_),
                    ) => AcquireError::Held { nodes, holder },
                    (reason, _) => reason,
                };
                say_in_background(format!("waiting: {}", exit::describe(&reason)));
            }
            self.warn_of_larger(quorum).await;
            pending::<Infallible>().await
        };
        // The notices must not delay the grant.
        let acquired = tokio::select! {
            biased;
            acquired = builder.acquire() => acquired,
            never = notices => match never {},
        };
        if matches!(acquired, Err(AcquireError::TimedOut { .. }))
            && waits_since.elapsed() < NOTICE_AFTER
        {
            self.warn_of_larger(quorum).await;
        }
        acquired
    }

    fn builder(&self, quorum: &Quorum, node_timeout: Option<Duration>) -> LockBuilder {
        let key = self.key.as_bytes();
        let mut builder = match self.permits {
            Some(permits) => quorum.semaphore(key, permits.into()),
            None if self.shared => quorum.lock(key).shared(),
            None => quorum.lock(key),
        };
        if let Some(owner) = &self.owner {
            builder = builder.owner(owner);
        }
        if let Some(limit) = node_timeout {
            builder = builder.node_timeout(limit);
        }
        builder.ttl(self.ttl())
    }

    /// Warns if the lock is a permit, and another client uses a larger number of permits.
    async fn warn_of_larger(&self, quorum: &Quorum) {
        let (name, Some(permits)) = (self.key.as_bytes(), self.permits.map(usize::from)) else {
            return;
        };
        if let Some(larger) = quorum.larger_permits(name, permits).await {
            warn_of_larger(name, permits, larger);
        }
    }
}

pub(crate) fn warn_of_larger(name: &[u8], permits: usize, larger_permits: usize) {
    say(format_args!(
        "warning: another client gives {} at least {larger_permits} permits, so more than {permits} \
         can be held at once: use the same `--permits` everywhere",
        escape_short(name)
    ));
}

/// Reads seconds as `flock -w` does: `10`, `0.5`.
fn seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds, such as 10 or 0.5")?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| "give a number of seconds from 0 up, such as 10 or 0.5")
}

pub(crate) fn check_ttl(ttl: Duration) -> anyhow::Result<Duration> {
    ensure!(
        ttl >= TTL_MIN,
        "a ttl of {ttl:?} is too short for the nodes to answer in time: give at least {TTL_MIN:?}"
    );
    Ok(ttl)
}

/// Returns how the program ends. `conflict` is the exit code if another client holds the lock.
pub(crate) fn not_acquired(error: &AcquireError, conflict: u8, verbose: bool) -> anyhow::Error {
    let code = exit::not_acquired(error, conflict);
    // With `-E 0` a held lock is a success, of which cron sends no mail.
    let is_silent = code == exit::SUCCESS && !verbose && !stderr().is_terminal();
    let message = format!("not acquired: {}", exit::describe(error));
    Ended::with(code, if is_silent { String::new() } else { message })
}

/// Returns whether the lock is merely in use, or only a minority of the nodes failed.
fn is_usual(error: &AcquireError) -> bool {
    match error {
        AcquireError::NoQuorum { nodes } => 2 * nodes.failed().count() < nodes.0.len(),
        error => matches!(error, AcquireError::Held { .. }),
    }
}
