//! Sets the terminal up, and restores it: at the end, on errors, panics and signals, and while the
//! program is stopped.

use std::io::{self, Stdout, stdout};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Context as _;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use ratatui::{Frame, Terminal};
use rustix::process::{Signal, kill_current_process_group};
use tokio::sync::mpsc::{self, Receiver};

/// How many events are queued while the screen is drawn.
const EVENTS_MAX: usize = 64;

pub(super) struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                // The message of the panic belongs on the normal screen.
                leave();
                before(panic);
            }));
        });
        let terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        // From here on, dropping `screen` restores the terminal.
        let screen = Self(terminal);
        enter()?;
        Ok(screen)
    }

    pub(super) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> anyhow::Result<()> {
        self.0.draw(render).context("cannot draw")?;
        Ok(())
    }

    /// Stops this program, as Ctrl-Z does in the shell, until it is continued.
    pub(super) fn suspend(&mut self) -> anyhow::Result<()> {
        leave();
        // Not SIGTSTP, for which this program listens.
        kill_current_process_group(Signal::STOP).context("cannot stop")?;
        self.reset()
    }

    /// Sets the terminal up again and clears it.
    pub(super) fn reset(&mut self) -> anyhow::Result<()> {
        let draw_all = || {
            enter()?;
            execute!(stdout(), Clear(ClearType::All))?;
            // `Terminal::clear` waits for the cursor position, which the thread of `events` reads.
            Terminal::new(CrosstermBackend::new(stdout()))
        };
        self.0 = draw_all().context("cannot use the terminal")?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// Whether the alternate screen is shown. Leaving it twice would move the cursor back over text
/// that was printed meanwhile.
static IS_ENTERED: AtomicBool = AtomicBool::new(false);

fn enter() -> io::Result<()> {
    IS_ENTERED.store(true, Ordering::Relaxed);
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, cursor::Hide)
}

/// Restores the terminal. Ignores errors: the terminal may be gone.
fn leave() {
    if !IS_ENTERED.swap(false, Ordering::Relaxed) {
        return;
    }
    let _ = execute!(stdout(), LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
}

/// Returns a channel of key presses and size changes. It is closed when the terminal is gone.
pub(super) fn events() -> Receiver<Event> {
    let (sender, receiver) = mpsc::channel(EVENTS_MAX);
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Run by the next test, in a terminal.
    #[test]
    #[ignore = "it panics, and needs a terminal"]
    fn panic_in_a_terminal() {
        let _screen = Screen::open().unwrap();
        panic!("on purpose");
    }

    #[test]
    fn panic_restores_the_terminal_before_it_is_reported() {
        let program = std::env::current_exe().unwrap();
        let line = format!(
            "{} --ignored --exact --nocapture --test-threads=1 top::terminal::tests::panic_in_a_terminal; stty -a",
            program.display()
        );
        let output =
            Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output();
        let shown = String::from_utf8(output.unwrap().stdout).unwrap();
        let at =
            |text: &str| shown.find(text).unwrap_or_else(|| panic!("no {text:?} in {shown:?}"));
        assert!(at("\x1b[?1049h") < at("\x1b[?1049l"), "{shown:?}");
        assert!(at("\x1b[?1049l") < at("on purpose"), "{shown:?}");
        assert!(at("\x1b[?25h") < at("on purpose"), "{shown:?}");
        assert_eq!(
            shown.matches("\x1b[?1049l").count(),
            1,
            "a second one moves the cursor: {shown:?}"
        );
        at("\nisig icanon iexten echo ");
    }
}
