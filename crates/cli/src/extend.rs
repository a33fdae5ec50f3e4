//! `quorlock extend`.

use std::process::ExitCode;
use std::time::Duration;

use quorlock_client::{AttachError, DetachedLock, NodeAnswers, Quorum};
use quorlock_core::quorum::Majority;

use crate::acquisition::{FLUSH_LIMIT, check_ttl};
use crate::handle::{HandleArg, HandleOutput};
use crate::lock_renewer::revoked_nodes;
use crate::nodes::{self, NodeArgs};
use crate::output::say;
use crate::signals::Signals;
use crate::values::duration;
use crate::{advice, exit};

/// Extends a lock of `quorlock acquire` to last for its ttl from now, and prints its new handle.
///
/// From then on, only the new handle extends and releases the lock. The lock has a new, larger
/// fence, which --json shows. If the exit code is not 0, stop the work that the lock protects.
#[derive(clap::Args)]
#[command(after_help = [EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct Extend {
    #[command(flatten)]
    handle: HandleArg,

    #[command(flatten)]
    format: HandleOutput,

    /// How long the lock lasts from now [default: as before]
    #[arg(long, value_parser = duration, value_name = "TIME")]
    ttl: Option<Duration>,

    #[command(flatten)]
    nodes: NodeArgs,
}

const EXIT_CODES: &str = "Exit codes:
  0    the lock is held until its ttl is over
  120  the lock is lost: it had ended, or was extended or released with this
       handle before, or an operator revoked it
  122  no majority of the nodes answered in time: the lock counts as lost
  125  quorlock itself failed, its arguments are not understood, or too many
       nodes fail permanently: a wrong password, no module, a replica,
       a ttl above lock.max-ttl
  128 + the signal that ended quorlock: the lock counts as lost";

pub(crate) async fn extend(args: Extend) -> anyhow::Result<ExitCode> {
    let handle = args.handle.read()?;
    // Listens only now, so that a signal can end the wait for the handle. From here on, a signal
    // must not end this program while it holds a lock.
    let mut signals = Signals::listen()?;
    let quorum = match signals.interrupting(args.nodes.connect()).await {
        Ok(connected) => connected?,
        Err(signal) => return Ok(exit::code_for_signal(signal)),
    };
    let outcome = signals.interrupting(extend_and_print(&quorum, handle, &args)).await;
    let _ = quorum.flush(FLUSH_LIMIT).await;
    outcome.unwrap_or_else(|signal| Ok(exit::code_for_signal(signal)))
}

async fn extend_and_print(
    quorum: &Quorum,
    handle: DetachedLock,
    args: &Extend,
) -> anyhow::Result<ExitCode> {
    let ttl = args.ttl.map_or(Ok(handle.ttl()), check_ttl)?;
    let code = match quorum.lock_all(handle.keys()).ttl(ttl).attach(handle).await {
        Ok(lock) => {
            args.format.detach_and_print(quorum, lock).await?;
            return Ok(ExitCode::SUCCESS);
        }
        Err(AttachError::NoQuorum { nodes }) if nodes.is_permanent() => {
            return Err(advice::attach_error(nodes));
        }
        Err(error) => {
            say(format_args!("not extended: {error}"));
            match error {
                AttachError::Gone { .. } => exit::LOST,
                AttachError::NoQuorum { nodes } if is_revoked(&nodes) => exit::LOST,
                AttachError::NoQuorum { .. } | AttachError::InsufficientValidity { .. } => {
                    exit::NO_MAJORITY
                }
                _ => exit::FAILED,
            }
        }
    };
    Ok(ExitCode::from(code))
}

/// Whether so many nodes reported a revocation that the others are no majority.
fn is_revoked(nodes: &NodeAnswers) -> bool {
    let revoked = revoked_nodes(nodes).count();
    Majority::of(nodes.0.len()).is_some_and(|majority| revoked > majority.spare())
}
