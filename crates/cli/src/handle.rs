//! The handle that `quorlock acquire` prints, a detached lock as text; and `quorlock extend` and
//! `quorlock release`, which take it.

use std::io::{self, Read as _, stdin};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use quorlock_client::{
    AttachError, DetachedLock, Lock, NodeAnswers, Quorum, ReleaseError, Released,
};
use quorlock_core::quorum::Majority;
use rustix::process::getppid;
use rustix::system::uname;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::acquire::{FLUSH_LIMIT, check_ttl};
use crate::exit::{self, Ended};
use crate::lock_renewer::revoked_nodes;
use crate::nodes::{self, NodeArgs};
use crate::output::{ms, try_print};
use crate::system::Signals;
use crate::values::duration;

/// The limit for standard input: far more than a handle with 64 long keys.
const INPUT_BYTES_MAX: u64 = 1024 * 1024;
/// How long to wait for slow nodes, so that all reachable nodes hold the lock.
const STRAGGLERS_LIMIT: Duration = Duration::from_millis(50);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Extends a lock of `quorlock acquire` to last for its ttl from now, and prints its new handle.
///
/// From then on, only the new handle extends and releases the lock. The lock has a new, larger
/// fence, which --json shows. If the exit code is not 0, stop the work that the lock protects.
#[derive(clap::Args)]
#[command(after_help = [EXTEND_EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct Extend {
    /// The handle as it was printed, text or JSON; `-` reads it from standard input
    #[arg(value_name = "HANDLE")]
    handle: String,

    /// Print JSON: handle, key, fence, `ttl_ms`, `expires_unix_ms`
    ///
    /// If the lock is a permit of a semaphore, also permit: the number of its slot, from 0.
    #[arg(long)]
    json: bool,

    /// How long the lock lasts from now [default: as before]
    #[arg(long, value_parser = duration, value_name = "TIME")]
    ttl: Option<Duration>,

    #[command(flatten)]
    nodes: NodeArgs,
}

const EXTEND_EXIT_CODES: &str = "Exit codes:
  0    the lock is held until its ttl is over
  120  the lock is lost: it had ended, or was extended or released with this
       handle before, or an operator revoked it
  122  no majority of the nodes answered in time: the lock counts as lost
  125  quorlock itself failed, its arguments are not understood, or too many
       nodes fail permanently: a wrong password, no module, a replica,
       a ttl above lock.max-ttl
  128 + the signal that ended quorlock: the lock counts as lost";

pub(crate) async fn extend(args: Extend) -> anyhow::Result<ExitCode> {
    let handle = read(&args.handle)?;
    // Listens only now, so that a signal can end the wait for the handle. From here on, a signal
    // must not end this program while it holds a lock.
    let mut signals = Signals::listen()?;
    let attach = async |quorum: &Quorum| {
        let ttl = args.ttl.map_or(Ok(handle.ttl()), check_ttl)?;
        let attached = quorum.lock_all(handle.keys()).ttl(ttl).attach(handle).await;
        attached.map_err(|error| {
            let code = match &error {
                AttachError::NoQuorum { nodes } if nodes.is_permanent() => exit::FAILED,
                AttachError::NoQuorum { nodes } if is_revoked(nodes) => exit::LOST,
                AttachError::Gone { .. } => exit::LOST,
                AttachError::NoQuorum { .. } | AttachError::InsufficientValidity { .. } => {
                    exit::NO_MAJORITY
                }
                _ => exit::FAILED,
            };
            Ended::with(code, format_args!("not extended: {error}"))
        })
    };
    lock_and_print(&mut signals, args.nodes.connect(), attach, args.json).await
}

/// Connects, acquires or attaches a lock, and prints its handle. A signal ends each of them.
pub(crate) async fn lock_and_print(
    signals: &mut Signals,
    connecting: impl Future<Output = anyhow::Result<Quorum>>,
    lock: impl AsyncFnOnce(&Quorum) -> anyhow::Result<Lock>,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let quorum = signals.interrupting(connecting).await??;
    let printing = async { detach_and_print(&quorum, lock(&quorum).await?, as_json).await };
    let outcome = signals.interrupting(printing).await;
    let _ = quorum.flush(FLUSH_LIMIT).await;
    outcome??;
    Ok(ExitCode::SUCCESS)
}

/// Whether so many nodes reported a revocation that the others are no majority.
fn is_revoked(nodes: &NodeAnswers) -> bool {
    let revoked = revoked_nodes(nodes).count();
    Majority::of(nodes.0.len()).is_some_and(|majority| revoked > majority.spare())
}

/// Releases a lock of `quorlock acquire`.
#[derive(clap::Args)]
#[command(after_help = [RELEASE_EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct Release {
    /// The handle as it was printed, text or JSON; `-` reads it from standard input
    #[arg(value_name = "HANDLE")]
    handle: String,

    #[command(flatten)]
    nodes: NodeArgs,
}

const RELEASE_EXIT_CODES: &str = "Exit codes:
  0    the lock was held until now, and is released
  120  there was nothing to release: the lock had ended, or was released or
       extended with this handle before
  122  no majority of the nodes answered; the lock ends by its ttl
  125  quorlock itself failed, its arguments are not understood, or too many
       nodes fail permanently: a wrong password, no module, a replica";

pub(crate) async fn release(args: Release) -> anyhow::Result<ExitCode> {
    let handle = read(&args.handle)?;
    let quorum = args.nodes.connect().await?;
    let outcome = quorum.release_detached(handle).await;
    // Waits for the nodes beyond the majority.
    let _ = quorum.flush(FLUSH_LIMIT).await;
    match outcome {
        Ok(Released::Released) => Ok(ExitCode::SUCCESS),
        Ok(Released::AlreadyOver) => Err(Ended::with(
            exit::LOST,
            "nothing to release: the lock had ended, or was released or extended with this handle \
             before",
        )),
        Err(ref error @ ReleaseError::NoQuorum { ref nodes }) => {
            Err(exit::no_answer(&exit::describe_release(error), nodes))
        }
        Err(error) => Err(error.into()),
    }
}

/// The owner label of a lock that no process holds. It names the parent, usually the script that
/// keeps the handle: this process ends before the lock does.
pub(crate) fn default_owner() -> String {
    let host = uname().nodename().to_string_lossy().into_owned();
    match getppid() {
        Some(parent) => format!("{host}:{} (detached)", parent.as_raw_pid()),
        // The parent is in another PID namespace.
        None => format!("{host} (detached)"),
    }
}

/// Reads a handle. The error does not show it.
fn read(handle: &str) -> anyhow::Result<DetachedLock> {
    let text = match handle {
        "-" => io::read_to_string(stdin().take(INPUT_BYTES_MAX))
            .context("cannot read the handle from standard input")?,
        given => given.to_owned(),
    };
    let hint = "give what `quorlock acquire` or `quorlock extend` printed last";
    if text.trim_start().starts_with('{') {
        let given: Value = serde_json::from_str(&text).unwrap_or_default();
        let handle = given["handle"].as_str();
        let handle =
            handle.with_context(|| format!("this JSON has no text field \"handle\": {hint}"));
        return handle?.parse().context(hint);
    }
    text.parse().context(hint)
}

/// Detaches the lock from this process and prints its handle. Releases the lock if printing fails:
/// no other process could release it.
async fn detach_and_print(quorum: &Quorum, lock: Lock, as_json: bool) -> anyhow::Result<()> {
    wait_for_stragglers(quorum, &lock).await;
    let detached = lock.detach();
    let Err(error) = print(&detached, as_json) else { return Ok(()) };
    let end = match quorum.release_detached(detached).await {
        Ok(_) => "is released",
        Err(_) => "stays until its ttl is over",
    };
    Err(anyhow!("{error:#}; the lock {end}"))
}

fn print(detached: &DetachedLock, as_json: bool) -> anyhow::Result<()> {
    let mut text = detached.to_secret_text();
    if as_json {
        let expires = detached.until().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut shown = json!({
            "handle": text,
            // With replacement characters for bytes that are not UTF-8. The handle has the exact
            // key.
            "key": String::from_utf8_lossy(detached.key()),
            "fence": detached.fence().get(),
            "ttl_ms": ms(detached.ttl()),
            "expires_unix_ms": ms(expires),
        });
        if let Some(slot) = detached.slot() {
            shown["permit"] = slot.into();
        }
        text = shown.to_string();
    }
    try_print(&(text + "\n"), "the handle")
}

/// Waits until every reachable node holds the lock, for [`STRAGGLERS_LIMIT`] at most. Otherwise the
/// process could end before its requests are sent to the slower nodes.
async fn wait_for_stragglers(quorum: &Quorum, lock: &Lock) {
    let until = Instant::now() + STRAGGLERS_LIMIT;
    while Instant::now() < until {
        let reachable = quorum.health().iter().filter(|node| node.error.is_none()).count();
        if lock.coverage().held >= reachable {
            return;
        }
        sleep(POLL_INTERVAL).await;
    }
}
