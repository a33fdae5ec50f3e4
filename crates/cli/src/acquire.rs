//! `quorlock acquire`.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use quorlock_client::Quorum;

use crate::acquisition::{
    self, DEFAULT_TTL, FLUSH_LIMIT, KindArgs, WaitArgs, check_ttl, exit_code_for,
    waiting_cannot_help,
};
use crate::config::Defaults;
use crate::handle::{self, HandleOutput};
use crate::nodes::{self, NodeArgs};
use crate::output::say;
use crate::signals::Signals;
use crate::values::duration;
use crate::{advice, exit, values};

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
    /// The lock's name: the key on every node
    #[arg(value_parser = values::key_parser())]
    key: OsString,

    #[command(flatten)]
    format: HandleOutput,

    /// How long the lock lasts unless it is extended, at least 100ms [default: 10s]
    #[arg(long, value_parser = duration, value_name = "TIME")]
    ttl: Option<Duration>,

    #[command(flatten)]
    wait: WaitArgs,

    /// Do not wait: try once, as with --wait 0
    ///
    /// Connecting to the nodes may take 1s.
    #[arg(short = 'n', long, conflicts_with_all = ["wait", "wait_seconds"])]
    no_wait: bool,

    #[command(flatten)]
    kind: KindArgs,

    /// The owner label of the lock [default: `HOST:PID (detached)`]
    ///
    /// `quorlock inspect` and LOCK.INSPECT show it. The default PID is that of the calling process,
    /// usually a script, because this program ends before the lock does.
    #[arg(long, value_name = "LABEL")]
    owner: Option<String>,

    #[command(flatten)]
    nodes: NodeArgs,
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

pub(crate) async fn acquire(args: Acquire) -> anyhow::Result<ExitCode> {
    // Listens first: a signal must not end this program while it holds a lock.
    let mut signals = Signals::listen()?;
    let nodes = args.nodes.load()?;
    let called_at = Instant::now();
    let quorum = match signals.interrupting(nodes.connect_before_call(None)).await {
        Ok(connected) => connected?,
        Err(signal) => return Ok(exit::code_for_signal(signal)),
    };
    let outcome =
        signals.interrupting(acquire_and_print(&quorum, args, nodes.defaults, called_at)).await;
    let _ = quorum.flush(FLUSH_LIMIT).await;
    outcome.unwrap_or_else(|signal| Ok(exit::code_for_signal(signal)))
}

async fn acquire_and_print(
    quorum: &Quorum,
    args: Acquire,
    defaults: Defaults,
    called_at: Instant,
) -> anyhow::Result<ExitCode> {
    let wait = args.wait.limit(args.no_wait, defaults.wait);
    let ttl = check_ttl(args.ttl.or(defaults.ttl).unwrap_or(DEFAULT_TTL))?;
    let owner = args.owner.or(defaults.owner).unwrap_or_else(handle::default_owner);
    let builder = args.kind.lock(quorum, &args.key).ttl(ttl).owner(owner);
    let acquiring = Box::pin(acquisition::acquire(builder, called_at, wait, false));
    match acquisition::comparing_permits(quorum, &args.key, args.kind.permits, acquiring).await {
        Ok(lock) => {
            args.format.detach_and_print(quorum, lock).await?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) if waiting_cannot_help(&error) => Err(advice::acquire_error(error)),
        Err(error) => {
            say(format_args!("not acquired: {}", advice::describe(&error)));
            Ok(ExitCode::from(exit_code_for(&error, exit::CONFLICT)))
        }
    }
}
