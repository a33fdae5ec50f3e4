//! `quorlock release`.

use std::process::ExitCode;

use quorlock_client::{ReleaseError, Released};

use crate::acquisition::FLUSH_LIMIT;
use crate::handle::HandleArg;
use crate::nodes::{self, NodeArgs};
use crate::output::say;
use crate::{advice, exit};

/// Releases a lock of `quorlock acquire`.
#[derive(clap::Args)]
#[command(after_help = [EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct Release {
    #[command(flatten)]
    handle: HandleArg,

    #[command(flatten)]
    nodes: NodeArgs,
}

const EXIT_CODES: &str = "Exit codes:
  0    the lock was held until now, and is released
  120  there was nothing to release: the lock had ended, or was released or
       extended with this handle before
  122  no majority of the nodes answered; the lock ends by its ttl
  125  quorlock itself failed, its arguments are not understood, or too many
       nodes fail permanently: a wrong password, no module, a replica";

pub(crate) async fn release(args: Release) -> anyhow::Result<ExitCode> {
    let handle = args.handle.read()?;
    let quorum = args.nodes.connect().await?;
    let outcome = quorum.release_detached(handle).await;
    // Waits for the nodes beyond the majority.
    let _ = quorum.flush(FLUSH_LIMIT).await;
    let code = match outcome {
        Ok(Released::Released) => return Ok(ExitCode::SUCCESS),
        Ok(Released::AlreadyOver) => {
            say("nothing to release: the lock had ended, or was released or extended with this \
                 handle before");
            exit::LOST
        }
        Err(error) => {
            say(advice::describe_release(&error));
            let ReleaseError::NoQuorum { nodes } = &error else { return Err(error.into()) };
            return Ok(exit::no_answer(nodes));
        }
    };
    Ok(ExitCode::from(code))
}
