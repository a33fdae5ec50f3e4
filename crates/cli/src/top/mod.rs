//! `quorlock top`: the snapshot of the fleet and its locks, again and again.
//!
//! - [`app`]: what is on the screen, and what each key press does.
//! - [`view`]: the lines of the screen.
//! - [`terminal`]: sets the terminal up and restores it, and reads key presses.

mod app;
mod terminal;
mod view;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, stdout};
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use crossterm::event::Event;
use futures_util::future::join;
use quorlock_client::read_error;
use quorlock_core::client::limits::LISTED_MAX;
use redis::cmd;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, Receiver, Sender};

use self::app::{Action, App, Moment, rows_of};
use self::terminal::Screen;
use crate::fleet::{Fleet, FleetArgs, Node};
use crate::nodes::{self, CONNECT_LIMIT, NodeSettings};
use crate::output::escape_short;
use crate::system::Signals;
use crate::values::duration;
use crate::{exit, values};

const DRAW_EVERY: Duration = Duration::from_millis(250);
/// A shorter interval makes the screen unreadable.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The least interval between gatherings, as a multiple of the cost of one. Gatherings may take a
/// hundredth of a node's time. A fifth of this share is left for reading requests and writing
/// replies, which the node's command statistics do not count.
const INTERVAL_PER_COST: u32 = 125;
/// The commands of a gathering, as `INFO commandstats` names them.
const COMMANDS: [&str; 5] = ["lock.scan", "info", "config|get", "time", "ping"];

/// Shows the locks of all nodes as they come and go, with their owners, waiters and the time left.
///
/// Keys: arrows, PgUp, PgDn, Home, End select; Enter shows the details of a lock; s sorts by the
/// next column, r reverses; / filters by key or owner; Esc goes back; q quits.
///
/// The more locks there are, the less often top asks, so that it takes less than 1 % of the time of
/// a node. The ACL user needs LOCK.SCAN, INFO and PING.
#[expect(clippy::doc_markdown, reason = "the help shows it as it is")]
#[derive(clap::Args)]
#[command(after_help = [EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct Top {
    /// The keys to show, as a pattern of SCAN: * ? [a-c] [^a-c] \ [default: all]
    #[arg(default_value = "*", hide_default_value = true)]
    #[arg(value_parser = values::pattern_parser())]
    pattern: OsString,

    /// How often to ask the nodes, if that takes less than 1 % of their time
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "1s")]
    interval: Duration,

    #[command(flatten)]
    fleet: FleetArgs,
}

const EXIT_CODES: &str = "Exit codes:
  0    the user quit
  125  quorlock itself failed, or its arguments are not understood
  128 + the signal that ended quorlock";

pub(crate) async fn top(args: Top) -> anyhow::Result<ExitCode> {
    ensure!(
        args.interval >= INTERVAL_MIN,
        "--interval must be at least {INTERVAL_MIN:?}, such as 1s"
    );
    let (fleet, nodes) = args.fleet.load()?;
    if !stdout().is_terminal() {
        bail!(
            "top needs a terminal: use `quorlock list --json` or `quorlock status --json` in scripts"
        );
    }
    let mut signals = Signals::listen()?;
    let listen = |to: Signal| signal(SignalKind::from_raw(to.as_raw()));
    let stop = listen(Signal::TSTP).context("cannot listen for signals")?;
    let (mut stop, mut continued) = (stop, listen(Signal::CONT)?);
    let mut moments = start_gathering(args, nodes, fleet)?;
    let _screen = Screen::open()?;
    let mut events = terminal::events();
    let mut app = App::default();
    let mut drawing = tokio::time::interval(DRAW_EVERY);
    drawing.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let action = tokio::select! {
            signal = signals.next() => return Ok(exit::code_for_signal(signal)),
            _ = stop.recv() => Action::Suspend,
            // After a SIGSTOP, the settings of the terminal are unknown.
            _ = continued.recv() => Action::Reset,
            event = events.recv() => match event {
                Some(Event::Key(key)) => app.handle(key),
                Some(_) => Action::Draw,
                // The terminal cannot be read.
                None => Action::Quit,
            },
            moment = moments.recv() => match moment {
                Some(moment) => app.update(moment?),
                None => bail!("the thread that asks the nodes has ended"),
            },
            _ = drawing.tick() => Action::Draw,
        };
        match action {
            Action::Draw => {}
            Action::Quit => return Ok(ExitCode::SUCCESS),
            Action::Suspend => terminal::suspend()?,
            Action::Reset => terminal::reset()?,
        }
        terminal::draw(|columns, rows| view::lines(&mut app, Instant::now(), columns, rows))?;
    }
}

/// Starts a thread that asks the nodes again and again, so that replies with thousands of locks do
/// not delay the handling of key presses. It takes at most a hundredth of a node's time. It ends
/// after it has sent an error, or when the receiver is dropped.
fn start_gathering(
    args: Top,
    nodes: NodeSettings,
    fleet: Fleet,
) -> io::Result<Receiver<anyhow::Result<Moment>>> {
    // One snapshot is drawn while the next one is made.
    let (sender, receiver) = mpsc::channel(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::spawn(move || {
        runtime.block_on(async {
            if let Err(error) = ask(&args, &nodes, &fleet, &sender).await {
                let _ = sender.send(Err(error)).await;
            }
        });
    });
    Ok(receiver)
}

async fn ask(
    args: &Top,
    nodes: &NodeSettings,
    fleet: &Fleet,
    sender: &Sender<anyhow::Result<Moment>>,
) -> anyhow::Result<()> {
    let node_timeout = args.fleet.node_timeout;
    let quorum = nodes.connect_within(node_timeout.min(CONNECT_LIMIT), Some(node_timeout)).await?;
    let mut spent_before = fleet.each(ask_spent).await;
    loop {
        let started = Instant::now();
        let locks = quorum.scan(args.pattern.as_bytes(), LISTED_MAX);
        let (locks, nodes) = join(locks, fleet.gather()).await;
        let spent_now = fleet.each(ask_spent).await;
        // The load of the nodes may require a longer interval than that of the option.
        let interval = interval(args.interval, &spent_before, &spent_now);
        spent_before = spent_now;
        let (locks, problem) = match locks.map(rows_of) {
            Ok((locks, problem)) => (Some(locks), problem),
            Err(error) => (None, Some(escape_short(error.to_string()))),
        };
        let moment = Moment { at: Instant::now(), interval, nodes, locks, problem };
        if sender.send(Ok(moment)).await.is_err() {
            return Ok(());
        }
        tokio::time::sleep(interval.saturating_sub(started.elapsed())).await;
    }
}

/// Returns the time from the start of one gathering to the start of the next, given the time that
/// each node had spent on gatherings before the last one, and after it. A node that does not answer
/// does not lengthen the interval.
fn interval(least: Duration, before: &[Option<Duration>], now: &[Option<Duration>]) -> Duration {
    // The statistics of a restarted server begin at zero.
    let costs = before.iter().zip(now).filter_map(|(before, now)| now.zip(*before));
    let cost = costs.map(|(now, before)| now.saturating_sub(before)).max().unwrap_or_default();
    least.max(cost.saturating_mul(INTERVAL_PER_COST))
}

/// Returns [`parse_spent`] of this node, if it answers.
async fn ask_spent(node: &Node) -> Option<Duration> {
    let asking = node.ask(async |connection| {
        let stats = cmd("INFO").arg("commandstats").query_async::<String>(connection).await;
        stats.map_err(|error| read_error(&error))
    });
    Some(parse_spent(&asking.await.ok()?))
}

/// Returns the time that a server has spent on [`COMMANDS`] since its start, by its reply to
/// `INFO commandstats`. Other clients' commands count too: the limit is for all clients together.
fn parse_spent(stats: &str) -> Duration {
    let us = |line: &str| -> Option<u64> {
        let (command, figures) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        COMMANDS.iter().find(|name| name.eq_ignore_ascii_case(command))?;
        figures.split(',').find_map(|figure| figure.strip_prefix("usec="))?.parse().ok()
    };
    Duration::from_micros(stats.lines().filter_map(us).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_keeps_the_load_of_a_node_below_a_hundredth() {
        let second = Duration::from_secs(1);
        let of = |before, now| interval(second, &[before, Some(second)], &[now, Some(second)]);
        assert_eq!(of(Some(second), Some(second)), second);
        assert_eq!(of(None, Some(second)), second, "a silent node does not lengthen it");
        assert_eq!(of(Some(second), None), second);
        assert_eq!(of(Some(second), Some(Duration::ZERO)), second, "the server was restarted");
        assert!(of(Some(second), Some(second * 2)) > second * 100);
    }

    #[test]
    fn only_commands_of_gatherings_count() {
        let stats = "# Commandstats\r\ncmdstat_LOCK.SCAN:calls=3,usec=120,usec_per_call=40.00,rejected_calls=0\r\n\
            cmdstat_info:calls=1,usec=30,usec_per_call=30.00\r\ncmdstat_lock.acquire:calls=9,usec=9000\r\n\
            cmdstat_config|get:calls=1,usec=5\r\n";
        assert_eq!(parse_spent(stats), Duration::from_micros(155));
    }
}
