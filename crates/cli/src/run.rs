use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal as _, stderr};
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use quorlock_client::{AcquireError, ExtendError, Lock, LockBuilder, Quorum, Released};
use tokio::time::{MissedTickBehavior, interval};

use crate::args::Run;
use crate::child::Child;
use crate::signals::Signals;
use crate::{advice, exit, say};

/// How often in a ttl it is looked how much of it is left. Timers stand still while a machine sleeps, and the lock's time
/// does not: this is how soon it is noticed.
const GLANCES_PER_TTL: u32 = 20;
/// An extension that no node answers takes one node limit. A third of the ttl must leave time for several, and for the child
/// to be stopped after the last.
const NODE_LIMITS_PER_TTL_MIN: u32 = 10;
/// How long nodes that do not answer are waited for at the end. What they were sent is on its way, and what they hold ends
/// by its ttl.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_millis(250);

pub(crate) async fn run(mut args: Run) -> anyhow::Result<ExitCode> {
    // From here on a signal cannot end this program while it holds something.
    let mut signals = Signals::listen()?;
    let nodes = args.nodes.load()?;
    args.fill(&nodes.defaults);
    ensure!(
        args.node_limit.is_none_or(|limit| limit <= args.ttl() / NODE_LIMITS_PER_TTL_MIN),
        "--node-limit must be at most a {NODE_LIMITS_PER_TTL_MIN}th of --ttl, for the lock to be extended in time"
    );
    let quorum = nodes.connect().await?;
    let outcome = run_locked(&quorum, args, &mut signals).await;
    let _ = quorum.flush(CLOSE_LIMIT).await;
    outcome
}

async fn run_locked(quorum: &Quorum, args: Run, signals: &mut Signals) -> anyhow::Result<ExitCode> {
    let (ttl, wait) = (args.ttl(), args.wait());
    let owner = args.owner.unwrap_or_else(|| format!("{} {}", host_name(), std::process::id()));
    let wanted = quorum.lock(args.key.clone().into_vec()).ttl(ttl).wait(wait).owner(owner);
    let mut wanted = wanted;
    if let Some(limit) = args.node_limit {
        wanted = wanted.node_timeout(limit);
    }
    let acquired = tokio::select! {
        biased;
        signal = signals.next() => return Ok(exit::by(signal)),
        acquired = acquire(&wanted, wait) => acquired,
    };
    let lock = match acquired {
        Ok(lock) => lock,
        Err(error) if is_hopeless(&error) => return Err(advice::on_acquire(error)),
        Err(error) => {
            say(format_args!("not acquired: {error}"));
            return Ok(ExitCode::from(exit::CONFLICT));
        }
    };
    let fence = OsString::from(lock.fence().to_string());
    match Child::spawn(&args.command, [("QUORLOCK_KEY", args.key), ("QUORLOCK_FENCE", fence)]) {
        Ok(child) => supervise(child, lock, ttl, signals).await,
        Err(error) => {
            say(format_args!("cannot run {}: {error}", args.command[0].display()));
            let missing = error.kind() == ErrorKind::NotFound;
            Ok(ExitCode::from(if missing { exit::NOT_FOUND } else { exit::CANNOT_RUN }))
        }
    }
}

/// Tries once, says what is in the way, and waits.
pub(crate) async fn acquire(wanted: &LockBuilder, wait: Duration) -> Result<Lock, AcquireError> {
    match wanted.try_acquire().await {
        Err(error) if !wait.is_zero() => match error {
            error if is_hopeless(&error) => return Err(error),
            error if is_usual(&error) && !stderr().is_terminal() => {}
            error => say(format_args!("waiting: {error}")),
        },
        decided => return decided,
    }
    wanted.acquire().await
}

/// Whether it makes no sense to wait: so many nodes do not take what they are asked that the others are no majority.
pub(crate) fn is_hopeless(error: &AcquireError) -> bool {
    match error {
        AcquireError::InvalidRequest { .. } => true,
        AcquireError::NoQuorum { nodes } => nodes.is_permanent(),
        _ => false,
    }
}

/// Whether it is nothing but a lock that is in use: of interest to a person who wonders, and not to the mails of cron. So it
/// is where a master is missing and not to blame, because a majority can vote without it.
fn is_usual(error: &AcquireError) -> bool {
    match error {
        AcquireError::NoQuorum { nodes } => 2 * nodes.failed().count() < nodes.0.len(),
        error => matches!(error, AcquireError::Held { .. }),
    }
}

/// Keeps the lock while the child runs, passes signals on to it, and stops it when the lock is lost.
async fn supervise(
    mut child: Child,
    mut lock: Lock,
    ttl: Duration,
    signals: &mut Signals,
) -> anyhow::Result<ExitCode> {
    let mut glance = interval(ttl / GLANCES_PER_TTL);
    glance.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            ended = child.ended() => {
                let status = ended.context("cannot wait for the command")?;
                match lock.release().await {
                    Ok(Released::Released) => {}
                    Ok(Released::AlreadyOver) => {
                        say("the lock had ended before the command did: it was not protected to its end");
                    }
                    Err(error) => say(error),
                }
                return Ok(exit::of(status));
            }
            _ = glance.tick() => {
                if let Err(Loss { error, grace }) = keep(&mut lock, ttl).await {
                    child.stop(grace).await.context("cannot stop the command")?;
                    // Only now: a reader of stderr that is stuck must not delay it.
                    say(format_args!("the command was stopped: {error}"));
                    return Ok(ExitCode::from(exit::LOST));
                }
            }
            signal = signals.next() => child.pass_on(signal),
        }
    }
}

/// A lock that can be kept no longer, and how long the child may take to end by itself.
struct Loss {
    error: ExtendError,
    grace: Duration,
}

/// Extends the lock if a third of the ttl is over. Fails when it is lost, or when so little is left that the child must be
/// stopped.
async fn keep(lock: &mut Lock, ttl: Duration) -> Result<(), Loss> {
    let before = lock.remaining();
    if before > ttl * 2 / 3 {
        return Ok(());
    }
    match lock.extend().await {
        Ok(()) => Ok(()),
        // The nodes may come back in time.
        Err(ExtendError::NoQuorum { .. }) if lock.remaining() > ttl / 3 => Ok(()),
        // Nobody else can have it yet: half of what is left to clean up, the other half for the kill to be in time.
        Err(error @ ExtendError::NoQuorum { .. }) => Err(Loss { error, grace: lock.remaining() / 2 }),
        // Somebody else may have it already: no longer than a clean-up takes. None if its time is over.
        Err(error) => Err(Loss { error, grace: (ttl / 20).min(before / 2) }),
    }
}

pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
