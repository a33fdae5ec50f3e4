//! `quorlock top`: the snapshot of the fleet and its locks, again and again.
//!
//! - [`gather`]: asks the nodes in a separate thread.
//! - [`app`]: what is on the screen, and what each key press does.
//! - [`view`]: the lines of the screen.
//! - [`terminal`]: sets the terminal up and restores it, and reads keys.

mod app;
mod gather;
mod terminal;
mod view;

use std::ffi::OsString;
use std::io::{IsTerminal as _, stdout};
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use self::app::{Action, App};
use self::gather::GatherOptions;
use self::terminal::Screen;
use crate::fleet::FleetArgs;
use crate::system::Signals;
use crate::values::duration;
use crate::{exit, nodes, values};

const DRAW_EVERY: Duration = Duration::from_millis(250);
/// A shorter interval makes the screen unreadable.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

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
    let (mut stop, mut continued, mut resized) =
        (stop, listen(Signal::CONT)?, listen(Signal::WINCH)?);
    let mut moments = gather::start(GatherOptions {
        nodes,
        fleet,
        pattern: args.pattern.into_vec(),
        node_timeout: args.fleet.node_timeout,
        interval_min: args.interval,
    });
    let _screen = Screen::open()?;
    let mut keys = terminal::keys();
    let mut app = App::default();
    let mut drawing = tokio::time::interval(DRAW_EVERY);
    drawing.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let action = tokio::select! {
            signal = signals.next() => return Ok(exit::code_for_signal(signal)),
            _ = stop.recv() => Action::Suspend,
            // After a SIGSTOP, the settings of the terminal are unknown.
            _ = continued.recv() => Action::Reset,
            // `None`: the terminal is gone.
            key = keys.recv() => key.map_or(Action::Quit, |key| app.handle(key)),
            moment = moments.recv() => match moment {
                Some(moment) => app.update(moment?),
                None => bail!("the thread that asks the nodes has ended"),
            },
            _ = resized.recv() => Action::Draw,
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
