//! `quorlock top`: the snapshot of the fleet and its locks, again and again.
//!
//! - [`app`]: what is on the screen, and what each key press does.
//! - [`view`]: the lines of the screen.
//! - [`terminal`]: sets the terminal up and restores it, and reads key presses.

mod app;
mod terminal;
mod view;

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{IsTerminal as _, stdout};
use std::os::unix::ffi::OsStrExt as _;
use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt as _;
use futures_util::future::join;
use quorlock_core::client::limits::LISTED_MAX;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, Sender};

use self::app::{Action, App, Moment, rows_of};
use self::terminal::Screen;
use crate::fleet::{Fleet, FleetArgs, Snapshot};
use crate::nodes::{self, CONNECT_LIMIT, NodeSettings};
use crate::output::escape_short;
use crate::system::Signals;
use crate::{exit, values};

const DRAW_EVERY: Duration = Duration::from_millis(250);
/// The least interval between gatherings, for each lock of a node. A node lists a lock in less than
/// 3 µs, so that gatherings take less than a hundredth of its time.
const INTERVAL_PER_LOCK: Duration = Duration::from_micros(300);

/// Shows the locks of all nodes as they come and go, with their owners, waiters and the time left.
///
/// Keys: arrows, PgUp, PgDn, Home, End select; Enter shows the details of a lock; s sorts by the
/// next column, r reverses; / filters by key or owner; Esc goes back; q quits.
///
/// With many locks, top asks less often: every 2s for 10000 locks, which takes about 1 % of the
/// time of a node. The ACL user needs LOCK.SCAN, INFO and PING.
#[expect(clippy::doc_markdown, reason = "the help shows it as it is")]
#[derive(clap::Args)]
#[command(after_help = [EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct Top {
    /// The keys to show, as a pattern of SCAN: * ? [a-c] [^a-c] \ [default: all]
    #[arg(default_value = "*", hide_default_value = true)]
    #[arg(value_parser = values::pattern_parser())]
    pattern: OsString,

    /// How often to ask the nodes; less often if they have many locks
    #[arg(long, value_parser = values::interval, value_name = "TIME", default_value = "1s")]
    interval: Duration,

    #[command(flatten)]
    fleet: FleetArgs,
}

const EXIT_CODES: &str = "Exit codes:
  0    the user quit
  125  quorlock itself failed, or its arguments are not understood
  128 + the signal that ended quorlock";

pub(crate) async fn top(args: Top) -> anyhow::Result<ExitCode> {
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
    let (sender, mut moments) = mpsc::channel(1);
    let mut gathering = pin!(gather(&args, &nodes, &fleet, sender));
    let _screen = Screen::open()?;
    let mut events = EventStream::new();
    let mut app = App::default();
    let mut drawing = tokio::time::interval(DRAW_EVERY);
    drawing.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let action = tokio::select! {
            signal = signals.next() => return Ok(exit::code_for_signal(signal)),
            _ = stop.recv() => Action::Suspend,
            // After a SIGSTOP, the settings of the terminal are unknown.
            _ = continued.recv() => Action::Reset,
            event = events.next() => match event {
                Some(Ok(Event::Key(key))) => app.handle(key),
                Some(Ok(_)) => Action::Draw,
                // The terminal cannot be read.
                Some(Err(_)) | None => Action::Quit,
            },
            Some(moment) = moments.recv() => app.update(moment),
            Err(error) = &mut gathering => return Err(error),
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

/// Asks the nodes again and again, and sends what they answer. Returns only with an error.
async fn gather(
    args: &Top,
    nodes: &NodeSettings,
    fleet: &Fleet,
    sender: Sender<Moment>,
) -> anyhow::Result<Infallible> {
    let node_timeout = args.fleet.node_timeout;
    let quorum = nodes.connect_within(node_timeout.min(CONNECT_LIMIT), Some(node_timeout)).await?;
    loop {
        let started = Instant::now();
        let locks = quorum.scan(args.pattern.as_bytes(), LISTED_MAX);
        let (locks, nodes) = join(locks, fleet.gather()).await;
        let interval = args.interval.max(least_interval(&nodes));
        let (locks, problem) = match locks.map(rows_of) {
            Ok((locks, problem)) => (Some(locks), problem),
            Err(error) => (None, Some(escape_short(error.to_string()))),
        };
        let moment = Moment { at: Instant::now(), interval, nodes, locks, problem };
        let _ = sender.send(moment).await;
        tokio::time::sleep(interval.saturating_sub(started.elapsed())).await;
    }
}

/// Returns the least time from the start of one gathering to the start of the next.
fn least_interval(nodes: &Snapshot) -> Duration {
    let locks = nodes.modules().map(|(_, module)| module.leases).max().unwrap_or_default();
    INTERVAL_PER_LOCK * u32::try_from(locks).unwrap_or(u32::MAX)
}
