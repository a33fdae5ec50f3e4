use std::convert::Infallible;
use std::ffi::OsStr;
use std::future::pending;
use std::io::{self, ErrorKind, IsTerminal as _, stderr};
use std::os::unix::ffi::OsStrExt as _;
use std::pin::pin;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use quorlock_client::{AcquireError, Fence, Lock, LockBuilder, Quorum, Released};
use quorlock_core::client::limits::COMPARE_PERMITS_AFTER;
use quorlock_core::quorum::Moment;
use quorlock_core::{StopSchedule, Ttl, rounded};
use rustix::process::Signal;
use tokio::time::sleep;

use crate::args::{Run, check_ttl};
use crate::lock_renewer::{CheckResult, LockRenewer, say_in_background};
use crate::nodes::NodeSettings;
use crate::process_tree::Group;
use crate::signals::Signals;
use crate::watchdog::{Begin, Instruction, PERMIT_VARIABLE, ReleaseOrder, Report, WatchdogHandle};
use crate::{advice, clock, exit, say, semaphore};

/// The least ratio of the ttl to `--node-timeout`. An extension that no node answers takes one node
/// timeout. Several must fit into the time between the first extension and SIGTERM: by default, a
/// third of the ttl.
const NODE_TIMEOUTS_PER_TTL_MIN: u32 = 10;
/// How long to wait for a lock that is in use before saying who holds it. Most waits are shorter.
const TELL_HOLDER_AFTER: Duration = Duration::from_secs(1);
/// How long to wait for silent nodes at the end. A lease that remains on one of them ends by its
/// ttl.
pub(crate) const FLUSH_LIMIT: Duration = Duration::from_millis(250);

pub(crate) async fn run(mut args: Run) -> anyhow::Result<ExitCode> {
    // Listens first: a signal must not end this program while it holds a lock.
    let mut signals = Signals::listen()?;
    let nodes = args.nodes.load()?;
    args.fill(&nodes.defaults);
    check_ttl(args.ttl())?;
    ensure!(
        args.node_timeout.is_none_or(|limit| limit <= args.ttl() / NODE_TIMEOUTS_PER_TTL_MIN),
        "--node-timeout must be at most a {NODE_TIMEOUTS_PER_TTL_MIN}th of --ttl, for the lock to be extended in time"
    );
    let ttl = Ttl::from_ms(u64::try_from(args.ttl().as_millis()).unwrap_or(u64::MAX))?;
    StopSchedule::new(ttl, args.kill_after, clock::now()).map_err(|error| {
        anyhow!(
            "--kill-after is too long for this --ttl: it must be at most {:?}, two fifths of the \
             ttl",
            error.longest
        )
    })?;
    let called_at = Instant::now();
    let quorum = match signals.interrupting(nodes.connect_before_call(args.node_timeout)).await {
        Ok(connected) => connected?,
        Err(signal) => return Ok(exit::code_for_signal(signal)),
    };
    let wait = args.wait.limit(args.no_wait, nodes.defaults.wait);
    let outcome = run_locked(&quorum, &nodes, args, ttl, (called_at, wait), &mut signals).await;
    let _ = quorum.flush(FLUSH_LIMIT).await;
    outcome
}

async fn run_locked(
    quorum: &Quorum,
    nodes: &NodeSettings,
    args: Run,
    ttl: Ttl,
    (called_at, wait): (Instant, Duration),
    signals: &mut Signals,
) -> anyhow::Result<ExitCode> {
    let mut builder = args.kind.lock(quorum, &args.key).ttl(args.ttl());
    if let Some(owner) = &args.owner {
        builder = builder.owner(owner);
    }
    if let Some(limit) = args.node_timeout {
        builder = builder.node_timeout(limit);
    }
    let acquiring = Box::pin(acquire(builder, called_at, wait, args.verbose));
    let acquiring = comparing_permits(quorum, &args.key, args.kind.permits, acquiring);
    let acquired = match signals.interrupting(acquiring).await {
        Ok(acquired) => acquired,
        Err(signal) => return Ok(exit::code_for_signal(signal)),
    };
    let lock = match acquired {
        Ok(lock) => lock,
        Err(error) if waiting_cannot_help(&error) => return Err(advice::acquire_error(error)),
        Err(error) => {
            let code = exit_code_for(&error, args.conflict_exit_code);
            // With `-E 0` a held lock is a success, of which cron sends no mail.
            if code != exit::SUCCESS || args.verbose || stderr().is_terminal() {
                say(format_args!("not acquired: {}", advice::describe(&error)));
            }
            return Ok(ExitCode::from(code));
        }
    };
    let held_since = clock::now();
    if args.verbose {
        let (after, fence) = (rounded(called_at.elapsed()), lock.fence());
        say(format_args!("acquired after {after:?}, fence {fence}{}", missing_nodes(quorum)));
    }
    let (fence, permit) = (lock.fence(), lock.slot());
    let mut renewer = LockRenewer::new(lock, args.ttl());
    let (status, is_interrupted) =
        match supervise(&args, nodes, ttl, (fence, permit), &mut renewer, signals).await? {
            Outcome::Exited { status, is_interrupted } => (status, is_interrupted),
            // Printed after the command has ended: a blocked standard error must not delay its end.
            Outcome::LockLost => {
                say(format_args!("the command was stopped: {}", renewer.reason()));
                return Ok(ExitCode::from(exit::LOST));
            }
            Outcome::TooLate => {
                say(format_args!("the command was not started: {}", renewer.reason()));
                return Ok(ExitCode::from(exit::LOST));
            }
            Outcome::WatchdogKilled => {
                say("the command was stopped: its watchdog was killed");
                return Ok(ExitCode::from(exit::FAILED));
            }
            Outcome::NotStarted(error) => {
                say(format_args!("cannot run {}: {error}", args.command()[0].display()));
                return Ok(ExitCode::from(match error.kind() {
                    ErrorKind::NotFound => exit::NOT_FOUND,
                    _ => exit::CANNOT_RUN,
                }));
            }
        };
    let hold_until = held_since.plus(args.hold_at_least.unwrap_or_default());
    let no_loss_seen = is_interrupted || hold(&mut renewer, hold_until, signals).await;
    match renewer.release().await {
        Ok(Released::Released) if args.verbose => {
            let after = rounded(clock::now().since(held_since));
            say(format_args!("released after {after:?}"));
        }
        Ok(Released::Released) => {}
        Ok(Released::AlreadyOver) if no_loss_seen => {
            say(
                "the lock had ended before it was released: the command may not have been protected to \
                 its end",
            );
        }
        Ok(Released::AlreadyOver) => say("the lock ended before --hold-at-least was over"),
        Err(error) => say(advice::describe_release(&error)),
    }
    Ok(exit::code_for_status(status))
}

/// Says how many nodes cannot vote; empty if all can. The coverage of a new lock would tell less: a
/// healthy node may not have answered yet.
fn missing_nodes(quorum: &Quorum) -> String {
    let health = quorum.health();
    match health.iter().filter(|node| node.error.is_some()).count() {
        0 => String::new(),
        missing => format!(", without {missing} of {} nodes", health.len()),
    }
}

/// Awaits `acquiring`. If that takes [`COMPARE_PERMITS_AFTER`], or finds all permits taken, warns
/// if another client uses a larger number of permits.
pub(crate) async fn comparing_permits(
    quorum: &Quorum,
    name: &OsStr,
    permits: Option<u8>,
    mut acquiring: impl Future<Output = Result<Lock, AcquireError>> + Unpin,
) -> Result<Lock, AcquireError> {
    let Some(permits) = permits.map(usize::from) else { return acquiring.await };
    let name = name.as_bytes();
    let compare = async || {
        if let Some(larger) = quorum.larger_permits(name, permits).await {
            semaphore::warn_of_larger(name, permits, larger);
        }
    };
    tokio::select! {
        biased;
        acquired = &mut acquiring => {
            if matches!(acquired, Err(AcquireError::Held { .. } | AcquireError::TimedOut { .. })) {
                compare().await;
            }
            return acquired;
        }
        () = sleep(COMPARE_PERMITS_AFTER) => {}
    }
    // The comparison must not delay the grant.
    let compare_once = async {
        compare().await;
        pending::<Infallible>().await
    };
    tokio::select! {
        biased;
        acquired = acquiring => acquired,
        never = compare_once => match never {},
    }
}

/// Tries once, and then waits for the lock. `wait` counts from `called_at`, and so includes the
/// time to connect.
///
/// Prints why it waits: at once, or after [`TELL_HOLDER_AFTER`] if the lock is merely in use. Then
/// it prints this only on a terminal or if `verbose`, so that cron sends no mail.
pub(crate) async fn acquire(
    builder: LockBuilder,
    called_at: Instant,
    wait: Duration,
    verbose: bool,
) -> Result<Lock, AcquireError> {
    let reason = match builder.try_acquire().await {
        Err(error) if called_at.elapsed() < wait && !waiting_cannot_help(&error) => error,
        Err(AcquireError::Held { nodes, .. }) => {
            return Err(AcquireError::Held { nodes, holder: builder.holder().await });
        }
        decided => return decided,
    };
    let builder = builder.wait(wait.saturating_sub(called_at.elapsed()));
    if !is_usual(&reason) {
        say(format_args!("waiting: {}", advice::describe(&reason)));
    } else if verbose || stderr().is_terminal() {
        let mut acquiring = pin!(builder.acquire());
        let telling = async {
            sleep(TELL_HOLDER_AFTER).await;
            builder.holder().await
        };
        let holder = tokio::select! {
            biased;
            acquired = &mut acquiring => return acquired,
            holder = telling => holder,
        };
        say_in_background(format!("waiting: {}", advice::describe_wait(reason, holder)));
        return acquiring.await;
    }
    builder.acquire().await
}

/// Returns whether waiting cannot help: the request is invalid, or too many nodes fail permanently.
pub(crate) fn waiting_cannot_help(error: &AcquireError) -> bool {
    match error {
        AcquireError::InvalidRequest { .. } => true,
        AcquireError::NoQuorum { nodes } => nodes.is_permanent(),
        _ => false,
    }
}

pub(crate) fn exit_code_for(error: &AcquireError, conflict: u8) -> u8 {
    match error {
        AcquireError::Held { .. } | AcquireError::TimedOut { .. } => conflict,
        AcquireError::NoQuorum { .. } | AcquireError::InsufficientValidity { .. } => {
            exit::NO_MAJORITY
        }
        _ => exit::FAILED,
    }
}

/// Returns whether the lock is merely in use, or only a minority of the nodes failed.
fn is_usual(error: &AcquireError) -> bool {
    match error {
        AcquireError::NoQuorum { nodes } => 2 * nodes.failed().count() < nodes.0.len(),
        error => matches!(error, AcquireError::Held { .. }),
    }
}

/// How the command ended, or why it was not started.
enum Outcome {
    Exited {
        status: ExitStatus,
        /// Whether `quorlock` received TERM, INT or QUIT before the command ended.
        is_interrupted: bool,
    },
    /// The lock was lost or not extended in time, and the command was stopped.
    LockLost,
    /// The watchdog was killed, and the command was stopped.
    WatchdogKilled,
    /// The lock had too little validity left to start the command.
    TooLate,
    NotStarted(io::Error),
}

/// Runs the command and renews the lock. Passes signals on, and stops the command when the lock is
/// lost.
async fn supervise(
    args: &Run,
    nodes: &NodeSettings,
    ttl: Ttl,
    (fence, permit): (Fence, Option<usize>),
    renewer: &mut LockRenewer,
    signals: &mut Signals,
) -> anyhow::Result<Outcome> {
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
    let order = ReleaseOrder { handle: renewer.secret_text(), nodes: nodes.secret() };
    let watchdog = WatchdogHandle::start(begin, &order, &args.command(), environment);
    let mut watchdog = watchdog.context("cannot start the watchdog of the command")?;
    let (mut is_stopped, mut is_interrupted) = (false, false);
    loop {
        tokio::select! {
            biased;
            report = watchdog.next_report() => match report {
                Some(Report::Started(_)) => {}
                Some(Report::NotStarted(error)) => return Ok(Outcome::NotStarted(error.into())),
                Some(Report::TooLate) => return Ok(Outcome::TooLate),
                Some(Report::Stopping) => is_stopped = true,
                Some(Report::Ended(_)) if is_stopped => return Ok(Outcome::LockLost),
                Some(Report::Ended(status)) => {
                    return Ok(Outcome::Exited { status, is_interrupted });
                }
                None => {
                    let now = clock::now();
                    let is_overdue = now.has_reached(schedule.overdue_at());
                    schedule.handle_abandoned(now);
                    watchdog.take_over(&mut schedule).await?;
                    return Ok(if is_overdue { Outcome::LockLost } else { Outcome::WatchdogKilled });
                }
            },
            () = clock::reach(schedule.overdue_at()) => {
                watchdog.take_over(&mut schedule).await?;
                return Ok(Outcome::LockLost);
            }
            state = renewer.next() => match state {
                CheckResult::ValidUntil(deadline) => {
                    schedule.handle_extended(deadline);
                    watchdog.send_instruction(&Instruction::Extended(deadline));
                }
                CheckResult::Lost => {
                    schedule.handle_lost(clock::now());
                    watchdog.send_instruction(&Instruction::Lost);
                }
            },
            signal = signals.next() => {
                is_interrupted |= [Signal::TERM, Signal::INT, Signal::QUIT].contains(&signal);
                watchdog.send_instruction(&Instruction::PassOn(signal));
            }
        }
    }
}

/// Renews the lock until `until`, or until a signal to end arrives. Returns `false` if the lock was
/// lost before that.
async fn hold(renewer: &mut LockRenewer, until: Moment, signals: &mut Signals) -> bool {
    loop {
        tokio::select! {
            biased;
            () = clock::reach(until) => return true,
            signal = signals.next() => if !matches!(signal, Signal::USR1 | Signal::USR2) { return true },
            state = renewer.next() => if matches!(state, CheckResult::Lost) { return false },
        }
    }
}
