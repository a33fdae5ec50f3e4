use std::convert::Infallible;
use std::future::pending;
use std::io::{self, ErrorKind, IsTerminal as _, stderr};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_client::{AcquireError, Fence, Lock, LockBuilder, Quorum, Released};
use quorlock_core::client::limits::WAIT_CHECK_EVERY;
use quorlock_core::quorum::Moment;
use quorlock_core::{StopSchedule, Ttl, rounded};
use rustix::process::Signal;
use tokio::time::sleep;

use crate::args::{Run, long_enough};
use crate::lock_renewer::{CheckResult, LockRenewer};
use crate::process_tree::Group;
use crate::signals::Signals;
use crate::watchdog::{Begin, Order, PERMIT_VARIABLE, Report, Watchdog};
use crate::{advice, clock, exit, say, semaphore};

/// The smallest ttl in node limits. An extension that no node answers takes one node limit. A third
/// of the ttl must leave time for several, and to stop the child after the last.
const NODE_LIMITS_PER_TTL_MIN: u32 = 10;
/// How long to wait for silent nodes at the end. Their requests are in flight, and what they hold
/// ends by its ttl.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_millis(250);

pub(crate) async fn run(mut args: Run) -> anyhow::Result<ExitCode> {
    // From here on a signal cannot end this program while it holds something.
    let mut signals = Signals::listen()?;
    let nodes = args.nodes.load()?;
    args.fill(&nodes.defaults);
    long_enough(args.ttl())?;
    ensure!(
        args.node_limit.is_none_or(|limit| limit <= args.ttl() / NODE_LIMITS_PER_TTL_MIN),
        "--node-limit must be at most a {NODE_LIMITS_PER_TTL_MIN}th of --ttl, for the lock to be extended in time"
    );
    let ttl = Ttl::from_ms(u64::try_from(args.ttl().as_millis()).unwrap_or(u64::MAX))?;
    StopSchedule::new(ttl, args.kill_after, clock::now())
        .context("--kill-after is too long: raise --ttl")?;
    let called = Instant::now();
    let quorum = match signals.unless(nodes.connect_to_wait(args.node_limit)).await {
        Ok(connected) => connected?,
        Err(signal) => return Ok(exit::code_for_signal(signal)),
    };
    let outcome = run_locked(&quorum, args, ttl, called, &mut signals).await;
    let _ = quorum.flush(CLOSE_LIMIT).await;
    outcome
}

async fn run_locked(
    quorum: &Quorum,
    args: Run,
    ttl: Ttl,
    called: Instant,
    signals: &mut Signals,
) -> anyhow::Result<ExitCode> {
    let wait = args.wait();
    let key = args.key.clone().into_vec();
    let wanted = match args.permits {
        Some(permits) => quorum.semaphore(key, permits.into()),
        None if args.shared => quorum.lock(key).shared(),
        None => quorum.lock(key),
    };
    let mut wanted = wanted.ttl(args.ttl());
    if let Some(owner) = &args.owner {
        wanted = wanted.owner(owner);
    }
    if let Some(limit) = args.node_limit {
        wanted = wanted.node_timeout(limit);
    }
    let mut is_compared = false;
    let acquired = tokio::select! {
        biased;
        signal = signals.next() => return Ok(exit::code_for_signal(signal)),
        acquired = acquire(wanted, called, wait, args.verbose) => acquired,
        never = compare_permits_later(quorum, &args, &mut is_compared) => match never {},
    };
    let lock = match acquired {
        Ok(lock) => lock,
        Err(error) if is_hopeless(&error) => return Err(advice::on_acquire(error)),
        Err(error) => {
            say(format_args!("not acquired: {}", advice::shown(&error)));
            if !is_compared
                && matches!(error, AcquireError::Held { .. } | AcquireError::TimedOut { .. })
            {
                compare_permits(quorum, &args).await;
            }
            return Ok(ExitCode::from(code_of(&error, args.conflict_exit_code)));
        }
    };
    let held_since = clock::now();
    if args.verbose {
        let (after, coverage) = (called.elapsed(), lock.coverage());
        let after = rounded(after);
        say(format_args!("acquired after {after:?}, held on {coverage}, fence {}", lock.fence()));
    }
    let (fence, permit) = (lock.fence(), lock.slot());
    let mut renewer = LockRenewer::new(lock, args.ttl());
    let (status, is_asked) = match supervise(&args, ttl, (fence, permit), &mut renewer, signals)
        .await?
    {
        Ended::ByItself { status, is_asked } => (status, is_asked),
        // Only after the command is gone: a blocked standard error must not delay its end.
        Ended::WithTheLock => {
            say(format_args!("the command was stopped: {}", renewer.reason()));
            return Ok(ExitCode::from(exit::LOST));
        }
        Ended::BeforeItBegan => {
            say(format_args!("the command was not started: {}", renewer.reason()));
            return Ok(ExitCode::from(exit::LOST));
        }
        Ended::WithTheWatchdog => {
            say("the command was stopped: its watchdog was killed");
            return Ok(ExitCode::from(exit::FAILED));
        }
        Ended::Never(error) => {
            say(format_args!("cannot run {}: {error}", args.command()[0].display()));
            let missing = error.kind() == ErrorKind::NotFound;
            return Ok(ExitCode::from(if missing { exit::NOT_FOUND } else { exit::CANNOT_RUN }));
        }
    };
    let hold_until = held_since.plus(args.hold_at_least.unwrap_or_default());
    let was_held = is_asked || hold(&mut renewer, hold_until, signals).await;
    match renewer.release().await {
        Ok(Released::Released) if args.verbose => {
            let after = rounded(clock::now().since(held_since));
            say(format_args!("released after {after:?}"));
        }
        Ok(Released::Released) => {}
        Ok(Released::AlreadyOver) if was_held => {
            say("the lock had ended before the command did: it was not protected to its end");
        }
        Ok(Released::AlreadyOver) => {
            say("the lock ended before --hold-at-least was over, and after the command did");
        }
        Err(error) => say(error),
    }
    Ok(exit::of(status))
}

/// Warns of a client that uses a larger number of permits, when all of ours are taken.
async fn compare_permits(quorum: &Quorum, args: &Run) {
    let Some(permits) = args.permits.map(usize::from) else { return };
    let name = args.key.as_bytes();
    if let Some(larger) = quorum.larger_permits(name, permits).await {
        semaphore::warn(name, permits, larger);
    }
}

/// The same during a wait that is not short.
async fn compare_permits_later(quorum: &Quorum, args: &Run, is_compared: &mut bool) -> Infallible {
    sleep(WAIT_CHECK_EVERY).await;
    *is_compared = true;
    compare_permits(quorum, args).await;
    pending().await
}

/// Tries once, prints why the lock is not free, and waits for it until `wait` is over, which began
/// when the user called: connecting to the nodes is a part of it.
pub(crate) async fn acquire(
    wanted: LockBuilder,
    called: Instant,
    wait: Duration,
    verbose: bool,
) -> Result<Lock, AcquireError> {
    match wanted.try_acquire().await {
        Err(error) if called.elapsed() < wait => match error {
            error if is_hopeless(&error) => return Err(error),
            error if is_usual(&error) && !verbose && !stderr().is_terminal() => {}
            error => say(format_args!("waiting: {}", advice::shown(&error))),
        },
        decided => return decided,
    }
    wanted.wait(wait.saturating_sub(called.elapsed())).acquire().await
}

/// Whether waiting cannot help: too many nodes fail permanently to leave a majority.
pub(crate) fn is_hopeless(error: &AcquireError) -> bool {
    match error {
        AcquireError::InvalidRequest { .. } => true,
        AcquireError::NoQuorum { nodes } => nodes.is_permanent(),
        _ => false,
    }
}

/// The exit code of a lock that was not acquired.
pub(crate) fn code_of(error: &AcquireError, conflict: u8) -> u8 {
    match error {
        AcquireError::Held { .. } | AcquireError::TimedOut { .. } => conflict,
        AcquireError::NoQuorum { .. } | AcquireError::InsufficientValidity { .. } => {
            exit::NO_MAJORITY
        }
        _ => exit::FAILED,
    }
}

/// Whether the lock is merely in use. A person at a terminal wants to read that, and a mail from
/// cron should not contain it. The same holds for a missing master while a majority votes.
fn is_usual(error: &AcquireError) -> bool {
    match error {
        AcquireError::NoQuorum { nodes } => 2 * nodes.failed().count() < nodes.0.len(),
        error => matches!(error, AcquireError::Held { .. }),
    }
}

/// How the command ended.
enum Ended {
    ByItself {
        status: ExitStatus,
        /// Whether a signal asked `quorlock` to end before that.
        is_asked: bool,
    },
    /// The lock was lost or not extended in time.
    WithTheLock,
    /// Its watchdog was killed.
    WithTheWatchdog,
    /// It was not started: the lock had too little validity left.
    BeforeItBegan,
    /// It could not be run.
    Never(io::Error),
}

/// Runs the command while the lock is renewed. Passes signals on, and stops the command when the
/// lock is lost.
async fn supervise(
    args: &Run,
    ttl: Ttl,
    (fence, permit): (Fence, Option<usize>),
    renewer: &mut LockRenewer,
    signals: &mut Signals,
) -> anyhow::Result<Ended> {
    let begin = Begin {
        ttl,
        kill_after: args.kill_after,
        group: Group::choose(),
        wait_all: args.wait_all,
        deadline: renewer.deadline(),
    };
    let mut schedule = begin.schedule()?;
    let environment = [
        ("QUORLOCK_KEY", args.key.clone()),
        ("QUORLOCK_FENCE", fence.to_string().into()),
        ("QUORLOCK_TTL_MS", args.ttl().as_millis().to_string().into()),
    ];
    let permit = permit.map(|slot| (PERMIT_VARIABLE, slot.to_string().into()));
    let environment = environment.into_iter().chain(permit);
    let watchdog = Watchdog::start(begin, &args.command(), environment);
    let mut watchdog = watchdog.context("cannot start the watchdog of the command")?;
    let (mut is_stopped, mut is_asked) = (false, false);
    loop {
        tokio::select! {
            biased;
            report = watchdog.report() => match report {
                Some(Report::Started(_)) => {}
                Some(Report::NotStarted(error)) => return Ok(Ended::Never(error.into())),
                Some(Report::TooLate) => return Ok(Ended::BeforeItBegan),
                Some(Report::Stopping) => is_stopped = true,
                Some(Report::Ended(_)) if is_stopped => return Ok(Ended::WithTheLock),
                Some(Report::Ended(status)) => return Ok(Ended::ByItself { status, is_asked }),
                None => {
                    let now = clock::now();
                    let is_overdue = now.has_reached(schedule.overdue_at());
                    schedule.handle_abandoned(now);
                    watchdog.replace(&mut schedule).await?;
                    return Ok(if is_overdue { Ended::WithTheLock } else { Ended::WithTheWatchdog });
                }
            },
            () = clock::reach(schedule.overdue_at()) => {
                watchdog.replace(&mut schedule).await?;
                return Ok(Ended::WithTheLock);
            }
            state = renewer.next() => match state {
                CheckResult::ValidUntil(deadline) => {
                    schedule.handle_extended(deadline);
                    watchdog.order(&Order::Extended(deadline));
                }
                CheckResult::Lost => {
                    schedule.handle_lost(clock::now());
                    watchdog.order(&Order::Lost);
                }
            },
            signal = signals.next() => {
                is_asked |= [Signal::TERM, Signal::INT, Signal::QUIT].contains(&signal);
                watchdog.order(&Order::PassOn(signal));
            }
        }
    }
}

/// Renews the lock until `until`, or until a signal arrives. Returns whether it was held to the
/// end.
async fn hold(renewer: &mut LockRenewer, until: Moment, signals: &mut Signals) -> bool {
    loop {
        tokio::select! {
            biased;
            () = clock::reach(until) => return true,
            _ = signals.next() => return true,
            state = renewer.next() => if matches!(state, CheckResult::Lost) { return false },
        }
    }
}

pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
