use std::io::{ErrorKind, IsTerminal as _, stderr};
use std::os::unix::ffi::OsStringExt as _;
use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_client::{AcquireError, ExtendError, Lock, LockBuilder, Quorum, Released};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use crate::args::Run;
use crate::child::Child;
use crate::signals::Signals;
use crate::{exit, say};

/// How often in a ttl it is looked how much of it is left. Timers stand still while a machine sleeps, and the lock's time
/// does not: this is how soon it is noticed.
const GLANCES_PER_TTL: u32 = 20;
/// An extension that no node answers takes one node limit. A third of the ttl must leave time for several, and for the child
/// to be stopped after the last.
const NODE_LIMITS_PER_TTL_MIN: u32 = 10;
/// How long nodes that do not answer are waited for at the end. What they were sent is on its way, and what they hold ends
/// by its ttl.
const CLOSE_LIMIT: Duration = Duration::from_millis(250);

pub(crate) async fn run(args: Run) -> anyhow::Result<ExitCode> {
    // From here on a signal cannot end this program while it holds something.
    let mut signals = Signals::listen()?;
    ensure!(
        args.node_limit.is_none_or(|limit| limit <= args.ttl / NODE_LIMITS_PER_TTL_MIN),
        "--node-limit must be at most a {NODE_LIMITS_PER_TTL_MIN}th of --ttl, for the lock to be extended in time"
    );
    let quorum = Quorum::connect(args.node_urls()?).await?;
    let outcome = run_locked(&quorum, args, &mut signals).await;
    let _ = quorum.flush(CLOSE_LIMIT).await;
    outcome
}

async fn run_locked(quorum: &Quorum, args: Run, signals: &mut Signals) -> anyhow::Result<ExitCode> {
    let wait = args.wait();
    let owner = args.owner.clone().unwrap_or_else(|| format!("{} {}", host_name(), std::process::id()));
    let mut wanted = quorum.lock(args.key.clone().into_vec()).ttl(args.ttl).wait(wait).owner(owner);
    if let Some(limit) = args.node_limit {
        wanted = wanted.node_timeout(limit);
    }
    let called = Instant::now();
    let acquired = tokio::select! {
        biased;
        signal = signals.next() => return Ok(exit::by(signal)),
        acquired = acquire(&wanted, wait, args.verbose) => acquired,
    };
    let lock = match acquired {
        Ok(lock) => lock,
        Err(error) if is_hopeless(&error) => return Err(error.into()),
        Err(error) => {
            say(format_args!("not acquired: {error}"));
            return Ok(ExitCode::from(code_of(&error, args.conflict_exit_code)));
        }
    };
    let held_since = Instant::now();
    if args.verbose {
        let (after, coverage) = (held_since - called, lock.coverage());
        say(format_args!("acquired after {after:.1?}, held on {coverage}, fence {}", lock.fence()));
    }
    let outcome = run_child(&args, lock, held_since, signals).await;
    if args.verbose && outcome.is_ok() {
        say(format_args!("released after {:.1?}", held_since.elapsed()));
    }
    outcome
}

async fn run_child(
    args: &Run,
    lock: Lock,
    held_since: Instant,
    signals: &mut Signals,
) -> anyhow::Result<ExitCode> {
    let command = args.command();
    let environment = [
        ("QUORLOCK_KEY", args.key.clone()),
        ("QUORLOCK_FENCE", lock.fence().to_string().into()),
        ("QUORLOCK_TTL_MS", args.ttl.as_millis().to_string().into()),
    ];
    match Child::spawn(&command, environment) {
        Ok(child) => supervise(child, lock, args, held_since, signals).await,
        Err(error) => {
            say(format_args!("cannot run {}: {error}", command[0].display()));
            let missing = error.kind() == ErrorKind::NotFound;
            Ok(ExitCode::from(if missing { exit::NOT_FOUND } else { exit::CANNOT_RUN }))
        }
    }
}

/// Tries once, says what is in the way, and waits.
async fn acquire(wanted: &LockBuilder, wait: Duration, verbose: bool) -> Result<Lock, AcquireError> {
    match wanted.try_acquire().await {
        Err(error) if !wait.is_zero() => match error {
            error if is_hopeless(&error) => return Err(error),
            error if is_usual(&error) && !verbose && !stderr().is_terminal() => {}
            error => say(format_args!("waiting: {error}")),
        },
        decided => return decided,
    }
    wanted.acquire().await
}

/// Whether it makes no sense to wait: so many nodes do not take what they are asked that the others are no majority.
fn is_hopeless(error: &AcquireError) -> bool {
    match error {
        AcquireError::InvalidRequest { .. } => true,
        AcquireError::NoQuorum { nodes } => nodes.is_permanent(),
        _ => false,
    }
}

/// The exit code of a lock that was not acquired.
fn code_of(error: &AcquireError, conflict: u8) -> u8 {
    match error {
        AcquireError::Held { .. } | AcquireError::TimedOut { .. } => conflict,
        AcquireError::NoQuorum { .. } | AcquireError::InsufficientValidity { .. } => exit::NO_MAJORITY,
        _ => exit::FAILED,
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
    args: &Run,
    held_since: Instant,
    signals: &mut Signals,
) -> anyhow::Result<ExitCode> {
    let mut glance = glances(args.ttl);
    let status = loop {
        tokio::select! {
            biased;
            ended = child.ended() => break ended.context("cannot wait for the command")?,
            _ = glance.tick() => {
                if let Err(Loss { error, grace }) = keep(&mut lock, args.ttl).await {
                    child.stop(grace).await.context("cannot stop the command")?;
                    // Only now: a reader of stderr that is stuck must not delay it.
                    say(format_args!("the command was stopped: {error}"));
                    return Ok(ExitCode::from(exit::LOST));
                }
            }
            signal = signals.next() => child.pass_on(signal),
        }
    };
    if let Some(hold) = args.hold_at_least {
        let left = hold.saturating_sub(held_since.elapsed());
        if let Err(error) = hold_on(&mut lock, args.ttl, left, signals).await {
            say(format_args!("the command has ended, and the lock before --hold-at-least was over: {error}"));
            return Ok(exit::of(status));
        }
    }
    match lock.release().await {
        Ok(Released::Released) => {}
        Ok(Released::AlreadyOver) => {
            say("the lock had ended before the command did: it was not protected to its end");
        }
        Err(error) => say(error),
    }
    Ok(exit::of(status))
}

/// Keeps the lock for the time that is left of `--hold-at-least`, or until a signal arrives.
async fn hold_on(
    lock: &mut Lock,
    ttl: Duration,
    left: Duration,
    signals: &mut Signals,
) -> Result<(), ExtendError> {
    let mut glance = glances(ttl);
    let mut over = pin!(sleep(left));
    loop {
        tokio::select! {
            biased;
            () = &mut over => return Ok(()),
            _ = signals.next() => return Ok(()),
            _ = glance.tick() => keep(lock, ttl).await.map_err(|loss| loss.error)?,
        }
    }
}

fn glances(ttl: Duration) -> Interval {
    let mut glances = interval(ttl / GLANCES_PER_TTL);
    glances.set_missed_tick_behavior(MissedTickBehavior::Delay);
    glances
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

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
