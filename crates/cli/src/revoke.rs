//! `quorlock revoke`.

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _, stderr, stdin};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use quorlock_client::{NodeRevocation, Revocation, RevocationReport, RevocationState, RevokeError};
use tokio::time::{Instant, sleep};

use crate::exit::{self, Ended};
use crate::locks::{Summary, Verdict, answers};
use crate::nodes::{self, NodeArgs};
use crate::output::{self, escape_short, say, table, time, with_heading, with_plural};
use crate::system::Signals;
use crate::values;

/// The shortest time to wait for a majority, even if the lock ends sooner.
const PATIENCE_MIN: Duration = Duration::from_secs(3);
/// How often to check whether time alone has ended the lock or the patience.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Precedes the error of an inspection before the revocation.
const NOT_REVOKED: &str = "nothing was revoked";

/// Revokes a lock, and waits until it has ended.
///
/// The holder can no longer extend the lock. It keeps the lock until the present deadline, so that
/// the lock never has two holders: `quorlock run` stops its command before the deadline. Then the
/// next waiter acquires the lock.
///
/// With --now the lock ends at once, and the next holder may run beside the old one. Use --now only
/// for a holder that is known to be dead.
#[derive(clap::Args)]
#[command(after_help = [EXIT_CODES, EXAMPLE, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct Revoke {
    /// The lock's name: the key on every node
    #[arg(value_parser = values::key_parser())]
    key: OsString,

    /// End the lock at once, although its holder may still run
    #[arg(long)]
    now: bool,

    /// Do not ask for confirmation; required where there is no terminal
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    nodes: NodeArgs,
}

const EXIT_CODES: &str = "Exit codes:
  0    the lock is over
  121  the lock changed before you confirmed; nothing was revoked
  122  too few nodes revoked the lock: the holder may extend it. It stays
       revoked on the nodes that revoked it
  123  there is no such lock
  125  quorlock itself failed, its arguments are not understood, you did not
       confirm, or too many nodes fail permanently, as with a wrong password
  128 + the signal that ended the wait; what was revoked stays revoked";

const EXAMPLE: &str = "Example:
  quorlock inspect nightly-backup
  quorlock revoke nightly-backup";

pub(crate) async fn revoke(args: Revoke) -> anyhow::Result<ExitCode> {
    if !(args.yes || stdin().is_terminal() && stderr().is_terminal()) {
        bail!(
            "nothing was revoked, because there is no terminal to ask on: add --yes after reading \
             `quorlock inspect {}`",
            escape_short(args.key.as_bytes())
        );
    }
    let quorum = args.nodes.connect().await?;
    let key = args.key.into_vec();
    let inspection = answers(quorum.inspect(&key).await).context(NOT_REVOKED)?;
    let summary = Summary::of(&inspection);
    say(format_args!("{} is {}", escape_short(&key), summary.headline()));
    if summary.verdict == Verdict::Free {
        return Ok(ExitCode::from(exit::FREE));
    }
    say(consequence(&summary, args.now));
    if !args.yes {
        if !ask_to_confirm().await? {
            bail!(NOT_REVOKED);
        }
        // Another client may have acquired the lock before the operator confirmed.
        let again = answers(quorum.inspect(&key).await).context(NOT_REVOKED)?;
        check_unchanged(&summary, &Summary::of(&again))?;
    }
    // From here on, a signal ends the wait, and a message says what stays revoked.
    let mut signals = Signals::listen()?;
    let revoking =
        async { if args.now { quorum.revoke_now(&key).await } else { quorum.revoke(&key).await } };
    let mut revocation = match signals.interrupting(revoking).await {
        Ok(Ok(revocation)) => revocation,
        Ok(Err(ref error @ RevokeError::NoAnswer { ref nodes })) => {
            return Err(exit::no_answer(error, nodes));
        }
        Ok(Err(error)) => return Err(error.into()),
        Err(ended) => {
            say("interrupted: the lock may be revoked on some nodes, or on all of them");
            return Err(ended.into());
        }
    };
    let answers = revocation.report().nodes.into_iter();
    let answers = answers.map(|node| vec![node.node, answer(&node.result)]);
    output::print(&table(&with_heading(["NODE", "ANSWER"], answers)));
    let at_most = summary.held.map_or(Duration::ZERO, |held| held.at_most);
    let left = wait(&mut revocation, at_most.max(PATIENCE_MIN), &mut signals).await?;
    if args.now && !left.is_zero() {
        say(format_args!("the lock is over; its old holder may still run for {}", time(left)));
    } else {
        say("the lock is over");
    }
    Ok(ExitCode::SUCCESS)
}

fn consequence(summary: &Summary<'_>, now: bool) -> String {
    let holder = match summary.held {
        Some(held) if summary.is_shared() => {
            format!("each of the {} that share it", with_plural(held.holders, "client"))
        }
        Some(held) => format!("{}, fence {},", output::owner(held.owner.as_deref()), held.fence),
        None => "its holder".to_owned(),
    };
    let time_left = summary.held.map(|held| time(held.at_most));
    let with_time_left =
        |word: &str| time_left.map(|left| format!(" {word} {left}")).unwrap_or_default();
    let next = match summary.queue.first() {
        Some(waiter) => format!("{} acquires the lock", output::owner(waiter.owner.as_deref())),
        None => "the lock is free".to_owned(),
    };
    if now {
        let left = with_time_left("for up to");
        format!(
            "with --now the lock ends at once, but {holder} may continue to run at the same time as the next holder{left}; {next}"
        )
    } else {
        format!(
            "once revoked, {holder} can no longer extend it and must end{}; then {next}",
            with_time_left("within")
        )
    }
}

async fn ask_to_confirm() -> anyhow::Result<bool> {
    let _ = write!(stderr(), "Revoke it? [y/N] ");
    let read = || {
        let mut answer = String::new();
        stdin().read_line(&mut answer).map(|_| answer)
    };
    let answer = tokio::task::spawn_blocking(read).await??;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// Returns an error unless the lock is still the one that the operator confirmed.
fn check_unchanged(confirmed: &Summary<'_>, now: &Summary<'_>) -> anyhow::Result<()> {
    let fence = |summary: &Summary<'_>| summary.held.map(|held| held.fence);
    // A lock without a known fence counts as the same only if the verdict is the same too.
    let may_be_same = fence(now).is_some() || confirmed.verdict == now.verdict;
    let (code, change) = match now.verdict {
        Verdict::Free => (exit::FREE, "the lock is now free".to_owned()),
        Verdict::NoMajority => {
            (now.code(), "too few nodes answered after the confirmation".to_owned())
        }
        _ if may_be_same && fence(confirmed) == fence(now) => return Ok(()),
        _ => (exit::CONFLICT, format!("the lock is now {}", now.headline())),
    };
    Err(Ended::with(code, format_args!("{NOT_REVOKED}: {change}")))
}

/// Waits for the end of the lock, and returns how long its holder may still run. Gives up if no
/// majority has revoked it within `patience`, or within the remaining time of the lock if that is
/// longer.
async fn wait(
    revocation: &mut Revocation,
    patience: Duration,
    signals: &mut Signals,
) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let mut report = revocation.report();
    let give_up_after = patience.max(report.remaining);
    let mut shown = None;
    loop {
        match report.state {
            RevocationState::Over => return Ok(report.remaining),
            RevocationState::Revoked => {}
            _ => {
                let code = code_without_majority(&report);
                if began.elapsed() >= give_up_after || code == exit::FAILED {
                    return Err(Ended::with(
                        code,
                        "too few nodes revoked the lock: the holder may extend it. Revoke it again \
                         when a majority of the nodes accepts that",
                    ));
                }
            }
        }
        if shown.replace(report.state) != Some(report.state) {
            say(progress(&report, give_up_after.saturating_sub(began.elapsed())));
        }
        tokio::select! {
            biased;
            signal = signals.next() => {
                let message = match report.state {
                    RevocationState::Revoked => format!(
                        "interrupted: the revocation stands, and the lock ends within {}",
                        time(report.remaining)
                    ),
                    _ => "interrupted: what was revoked stays revoked, but the holder may extend \
                          the lock"
                        .to_owned(),
                };
                return Err(Ended { message, ..Ended::by(signal) }.into());
            }
            () = revocation.changed() => {}
            () = sleep(CHECK_EVERY) => {}
        }
        let before = std::mem::replace(&mut report, revocation.report());
        for (before, node) in before.nodes.iter().zip(&report.nodes) {
            let was_revoked =
                matches!(before.result, NodeRevocation::Revoked(_) | NodeRevocation::Ended);
            if !was_revoked && matches!(node.result, NodeRevocation::Revoked(_)) {
                say(format_args!("{}: {}", node.node, answer(&node.result)));
            }
        }
    }
}

fn progress(report: &RevocationReport, patience_left: Duration) -> String {
    let left = time(patience_left);
    match report.state {
        RevocationState::Revoked => {
            format!("revoked; the lock ends within {}", time(report.remaining))
        }
        RevocationState::Unconfirmed => format!(
            "asking again for {left}: the lock is free on some nodes, and the holder may still \
             acquire it there"
        ),
        _ => format!(
            "asking again for {left}: too few nodes answer, and the holder may extend the lock"
        ),
    }
}

fn code_without_majority(report: &RevocationReport) -> u8 {
    let errors = report.nodes.iter().filter_map(|node| match &node.result {
        NodeRevocation::Failed(error) => Some(error),
        _ => None,
    });
    exit::without_majority(errors, report.nodes.len())
}

fn answer(result: &NodeRevocation) -> String {
    match result {
        NodeRevocation::Revoked(lease) => {
            let left = lease.ttl.map_or_else(String::new, |left| format!(", {} left", time(left)));
            format!("revoked from {}{left}", output::owner(lease.owner.as_deref()))
        }
        NodeRevocation::Ended => "revoked, and ended".to_owned(),
        NodeRevocation::Free => "free".to_owned(),
        NodeRevocation::Other(lease) => {
            let owner = output::owner(lease.owner.as_deref());
            format!("not revoked: {owner} has acquired the lock since")
        }
        NodeRevocation::Failed(error) => escape_short(error.to_string()),
        _ => "no answer yet".to_owned(),
    }
}
