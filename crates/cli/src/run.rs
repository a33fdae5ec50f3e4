//! `quorlock run`: a command under a lock.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use quorlock_client::{Quorum, Released};
use quorlock_core::quorum::Moment;
use quorlock_core::{StopSchedule, Ttl, rounded};
use rustix::process::Signal;

use crate::acquire::{FLUSH_LIMIT, LockArgs, not_acquired};
use crate::exit::Ended;
use crate::lock_renewer::{CheckResult, LockRenewer};
use crate::nodes::{self, NodeSettings};
use crate::output::{ms, say};
use crate::process_tree::Group;
use crate::system::Signals;
use crate::values::duration;
use crate::watchdog::{Begin, Instruction, Order, PERMIT_VARIABLE, Report, WatchdogHandle};
use crate::{exit, system};

/// The least ratio of the ttl to `--node-timeout`. An extension that no node answers takes one node
/// timeout. Several must fit into the time between the first extension and SIGTERM: by default, a
/// third of the ttl.
const NODE_TIMEOUTS_PER_TTL_MIN: u32 = 10;

/// Runs a command while holding a lock.
///
/// Waits for the lock, renews it, and releases it when the command ends.
///
/// When the lock cannot be renewed, the command and everything that it started are ended before
/// another client can acquire the lock: with SIGKILL when a 20th of the ttl is left, and with
/// SIGTERM before that, when a third of the ttl is left or, with --kill-after, by that time before
/// SIGKILL. If the nodes say that the lock has ended, SIGTERM is sent at once, and SIGKILL after
/// at most a 20th of the ttl. A second process, the watchdog, does this even if quorlock itself is
/// suspended. If quorlock is killed with SIGKILL, the watchdog ends the command and all that it
/// started, and then releases the lock.
///
/// When the command ends, the lock is released. Processes that the command left in the background
/// then run without the lock. With --wait-all, the lock is released when they, too, have ended.
///
/// The signals TERM, INT, HUP, QUIT, USR1 and USR2 that reach quorlock are passed on to the command
/// and its process group. In the foreground of a terminal, only TERM, USR1 and USR2 are passed on,
/// and only to the command: Ctrl-C and the like reach it directly.
#[derive(clap::Args)]
#[command(
    after_help = [IN_SHORT, nodes::SEE_ALSO].join("\n\n"),
    after_long_help =
        [VALUES, nodes::SEE_ALSO, ENVIRONMENT, EXIT_CODES, EXAMPLE].join("\n\n"),
)]
pub(crate) struct Run {
    #[command(flatten)]
    lock: LockArgs,

    /// The exit code if the lock is held
    #[arg(short = 'E', long, default_value_t = exit::CONFLICT, value_name = "N")]
    conflict_exit_code: u8,

    /// Keep the lock for at least this long
    ///
    /// The lock is kept even if the command ends sooner. TERM, INT and QUIT end this time; HUP does
    /// so once the command has ended. The lock is then kept only while the command runs. The exit
    /// code is the command's.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    hold_at_least: Option<Duration>,

    /// The time from SIGTERM to SIGKILL
    ///
    /// How long the command may take to end before it is killed. Give at most two fifths of the ttl
    /// [default: until a 20th of the ttl is left].
    #[arg(long, value_parser = duration, value_name = "TIME")]
    kill_after: Option<Duration>,

    /// Also wait for all that the command started
    ///
    /// Keeps the lock until the command and everything that it started have ended.
    #[arg(long)]
    wait_all: bool,

    /// How long one node may take to answer
    ///
    /// At most a 10th of the ttl. Raise it if the nodes are far away [default: 4 round trips,
    /// within limits that depend on the ttl].
    #[arg(long, value_parser = duration, value_name = "TIME")]
    node_timeout: Option<Duration>,

    /// Report when the lock is acquired and released
    ///
    /// Also reports why it is not acquired.
    #[arg(long)]
    verbose: bool,

    /// Run this command line, as `sh -c STRING`
    #[arg(short = 'c', value_name = "STRING", conflicts_with = "command")]
    shell_command: Option<OsString>,

    /// The command to run, and its arguments
    #[arg(last = true, required_unless_present = "shell_command")]
    command: Vec<OsString>,
}

const IN_SHORT: &str = "\
Exit codes: the command's own; 120 the lock was lost, 121 it is held, 122 no
majority of the nodes voted, 125 quorlock failed, 126 and 127 as in a shell
Example: quorlock run deploy --wait 30s -- ./deploy.sh production";

const VALUES: &str = "Values:
  TIME  a number with ms, s, m or h, such as 10s or 1.5s
  URLS  redis://[user:password@]host[:port][/db], rediss:// for TLS, or
        redis+unix:///path; host:port is short for redis://host:port.
        Never write a password on the command line: other users can see it";

const ENVIRONMENT: &str = "Environment:
  QUORLOCK_NODES  removed for the command, and so is QUORLOCK_PASSWORD: both
                  may contain a password
  QUORLOCK_KEY    set for the command: the lock's name
  QUORLOCK_FENCE  set for the command: an integer, larger than that of every
                  earlier holder; with --permits, of every earlier holder of
                  the same slot; with --shared, of every earlier holder
                  without --shared. The storage that the command writes to can
                  refuse smaller fences, and with them a late holder
  QUORLOCK_TTL_MS set for the command: the ttl in milliseconds
  QUORLOCK_PERMIT set for the command with --permits: the number of its slot,
                  from 0. No other command has this slot at the same time.
                  Without --permits, removed for the command";

const EXAMPLE: &str = "Examples:
  quorlock run nightly-backup -- backup --to /mnt
  quorlock run deploy -w 30 -c 'git pull && make install'

  The same file in /etc/cron.d of many machines, of which one runs the job. The
  nodes are in /etc/quorlock.toml, and the PATH of cron is short.
  --hold-at-least exceeds the difference of their clocks: a late machine finds
  the lock held even when the job is over. With -E 0, that is a success:
  PATH=/usr/local/bin:/usr/bin:/bin
  0 3 * * * root quorlock run nightly -n -E 0 --hold-at-least 1m -- report";

const EXIT_CODES: &str = "Exit codes:
  the command's own, or 128 + the signal that killed it;
  128 + the signal that ended the wait for the lock
  120  the lock was lost; the command was stopped, or not started
  121  another client holds the lock; the command was not started (-E replaces
       this code)
  122  no majority of the nodes voted in time, and waiting may help: some
       are down, slow or abstain; the command was not started
  125  quorlock itself failed, its arguments are not understood, or too many
       nodes fail permanently: a wrong password, an unknown certificate,
       no module, a replica
  126  the command could not be run
  127  the command was not found";

pub(crate) async fn run(mut args: Run) -> anyhow::Result<ExitCode> {
    // Listens first: a signal must not end this program while it holds a lock.
    let mut signals = Signals::listen()?;
    let nodes = args.lock.load()?;
    let ttl = args.lock.ttl();
    ensure!(
        args.node_timeout.is_none_or(|limit| limit <= ttl / NODE_TIMEOUTS_PER_TTL_MIN),
        "--node-timeout must be at most a {NODE_TIMEOUTS_PER_TTL_MIN}th of --ttl, for the lock to be extended in time"
    );
    let ttl = Ttl::from_ms(ms(ttl))?;
    StopSchedule::new(ttl, args.kill_after, system::now()).map_err(|error| {
        anyhow!(
            "--kill-after is too long for this --ttl: it must be at most {:?}, two fifths of the \
             ttl",
            error.longest
        )
    })?;
    let called_at = Instant::now();
    let quorum = signals.interrupting(nodes.connect_before_call(args.node_timeout)).await??;
    let outcome = run_locked(&quorum, &nodes, args, ttl, called_at, &mut signals).await;
    let _ = quorum.flush(FLUSH_LIMIT).await;
    outcome
}

async fn run_locked(
    quorum: &Quorum,
    nodes: &NodeSettings,
    args: Run,
    ttl: Ttl,
    called_at: Instant,
    signals: &mut Signals,
) -> anyhow::Result<ExitCode> {
    let acquiring = args.lock.acquire(quorum, called_at, args.node_timeout, args.verbose);
    let acquired = signals.interrupting(Box::pin(acquiring)).await?;
    let not_acquired = |error| not_acquired(&error, args.conflict_exit_code, args.verbose);
    let lock = acquired.map_err(not_acquired)?;
    let held_since = system::now();
    if args.verbose {
        let (after, fence) = (rounded(called_at.elapsed()), lock.fence());
        say(format_args!("acquired after {after:?}, fence {fence}{}", missing_nodes(quorum)));
    }
    let mut renewer = LockRenewer::new(lock, args.lock.ttl());
    let (status, is_interrupted) = supervise(&args, nodes, ttl, &mut renewer, signals).await?;
    let hold_until = held_since.plus(args.hold_at_least.unwrap_or_default());
    let no_loss_seen = is_interrupted || hold(&mut renewer, hold_until, signals).await;
    match renewer.lock.release().await {
        Ok(Released::Released) if args.verbose => {
            let after = rounded(system::now().since(held_since));
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
        Err(error) => say(exit::describe_release(&error)),
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

fn lost(renewer: &LockRenewer, what: &str) -> anyhow::Error {
    Ended::with(exit::LOST, format_args!("the command was {what}: {}", renewer.reason()))
}

/// Runs the command and renews the lock. Passes signals on, and stops the command when the lock is
/// lost. Returns the status of the command, and whether TERM, INT or QUIT arrived before it ended.
///
/// The error says why the command was stopped or not started. It is printed only after the command
/// has ended: a blocked standard error must not delay its end.
async fn supervise(
    args: &Run,
    nodes: &NodeSettings,
    ttl: Ttl,
    renewer: &mut LockRenewer,
    signals: &mut Signals,
) -> anyhow::Result<(ExitStatus, bool)> {
    let begin = Begin {
        ttl_ms: ttl.ms(),
        kill_after: args.kill_after,
        group: Group::choose(),
        wait_all: args.wait_all,
        deadline: renewer.deadline(),
    };
    let mut schedule = begin.schedule()?;
    let environment = [
        ("QUORLOCK_KEY", args.lock.key.clone()),
        ("QUORLOCK_FENCE", renewer.lock.fence().to_string().into()),
        ("QUORLOCK_TTL_MS", ttl.ms().to_string().into()),
    ];
    let permit = renewer.lock.slot().map(|slot| (PERMIT_VARIABLE, slot.to_string().into()));
    let environment = environment.into_iter().chain(permit);
    let handle = renewer.lock.to_detached().to_secret_text();
    let order = Order { begin, handle, nodes: nodes.secret.clone() };
    let command = match &args.shell_command {
        Some(line) => &["sh".into(), "-c".into(), line.clone()],
        None => &args.command[..],
    };
    let watchdog = WatchdogHandle::start(&order, command, environment).await;
    let mut watchdog = watchdog.context("cannot start the watchdog of the command")?;
    let (mut is_stopped, mut is_interrupted) = (false, false);
    loop {
        tokio::select! {
            biased;
            report = watchdog.next_report() => match report {
                Some(Report::Started(_)) => {}
                Some(Report::NotStarted(error)) => {
                    let error = io::Error::from_raw_os_error(error);
                    let code = match error.kind() {
                        ErrorKind::NotFound => exit::NOT_FOUND,
                        _ => exit::CANNOT_RUN,
                    };
                    let message = format!("cannot run {}: {error}", command[0].display());
                    return Err(Ended::with(code, message));
                }
                Some(Report::TooLate) => return Err(lost(renewer, "not started")),
                Some(Report::Stopping) => is_stopped = true,
                Some(Report::Ended(_)) if is_stopped => {
                    return Err(lost(renewer, "stopped"));
                }
                Some(Report::Ended(status)) => {
                    return Ok((ExitStatus::from_raw(status), is_interrupted));
                }
                None => {
                    let now = system::now();
                    let is_overdue = now.has_reached(schedule.overdue_at());
                    schedule.handle_abandoned(now);
                    watchdog.take_over(&mut schedule).await?;
                    if is_overdue {
                        return Err(lost(renewer, "stopped"));
                    }
                    bail!("the command was stopped: its watchdog was killed");
                }
            },
            () = system::reach(schedule.overdue_at()) => {
                watchdog.take_over(&mut schedule).await?;
                return Err(lost(renewer, "stopped"));
            }
            state = renewer.next() => match state {
                CheckResult::ValidUntil(deadline) => {
                    schedule.handle_extended(deadline);
                    watchdog.send_instruction(&Instruction::Extended(deadline));
                }
                CheckResult::Lost => {
                    schedule.handle_lost(system::now());
                    watchdog.send_instruction(&Instruction::Lost);
                }
            },
            signal = signals.next() => {
                is_interrupted |= [Signal::TERM, Signal::INT, Signal::QUIT].contains(&signal);
                watchdog.send_instruction(&Instruction::PassOn(signal.as_raw()));
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
            () = system::reach(until) => return true,
            signal = signals.next() => if !matches!(signal, Signal::USR1 | Signal::USR2) { return true },
            state = renewer.next() => if matches!(state, CheckResult::Lost) { return false },
        }
    }
}
