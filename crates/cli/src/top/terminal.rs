//! Sets the terminal up, and restores it: at the end, on errors, panics and signals, and while the
//! program is stopped.

use std::io::{Write as _, stdout};
use std::panic;

use anyhow::Context as _;
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::Print;
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, is_raw_mode_enabled, size,
};
use crossterm::{execute, queue};
use rustix::process::{Signal, kill_current_process_group};

/// The size of the screen if the terminal does not know it.
const SIZE_DEFAULT: (u16, u16) = (80, 24);

/// Restores the terminal when it is dropped.
pub(super) struct Screen;

impl Screen {
    pub(super) fn open() -> anyhow::Result<Self> {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            // The message of the panic belongs on the normal screen.
            leave();
            report(panic);
        }));
        // From here on, dropping `screen` restores the terminal.
        let screen = Self;
        reset()?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// Sets the terminal up, also if it is set up already. What is drawn next covers all of it.
pub(super) fn reset() -> anyhow::Result<()> {
    let set_up = || {
        // Sets all modes, although another program may have changed some meanwhile.
        disable_raw_mode()?;
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen, Hide)
    };
    set_up().context("cannot use the terminal")
}

/// Stops this program, as Ctrl-Z does in the shell, until it is continued.
pub(super) fn suspend() -> anyhow::Result<()> {
    leave();
    // Not SIGTSTP, for which this program listens.
    kill_current_process_group(Signal::STOP).context("cannot stop")?;
    reset()
}

/// Draws the lines that `render` makes for this number of columns and rows. No line is wider.
pub(super) fn draw(render: impl FnOnce(usize, usize) -> Vec<String>) -> anyhow::Result<()> {
    let size = size().ok().filter(|(columns, rows)| *columns > 0 && *rows > 0);
    let (columns, rows) = size.unwrap_or(SIZE_DEFAULT);
    let draw = |lines: Vec<String>| {
        let mut stdout = stdout().lock();
        for (row, line) in (0..rows).zip(lines) {
            queue!(stdout, MoveTo(0, row), Print(line), Clear(ClearType::UntilNewLine))?;
        }
        queue!(stdout, Clear(ClearType::FromCursorDown))?;
        stdout.flush()
    };
    draw(render(columns.into(), rows.into())).context("cannot draw")
}

/// Restores the terminal, unless it belongs to the shell: leaving the alternate screen twice would
/// move the cursor back over text that was printed meanwhile. Ignores errors: the terminal may be
/// gone.
fn leave() {
    if is_raw_mode_enabled().unwrap_or(false) {
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const LEAVE: &str = "\x1b[?1049l";

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
        assert!(at("\x1b[?1049h") < at(LEAVE) && at(LEAVE) < at("on purpose"), "{shown:?}");
        assert_eq!(shown.matches(LEAVE).count(), 1, "a second one moves the cursor: {shown:?}");
        at("\nisig icanon iexten echo ");
    }
}
