//! Sets the terminal up, and restores it: at the end, on errors, panics and signals, and while the
//! program is stopped.

use std::io::{self, Read as _, Write as _, stdin, stdout};
use std::sync::{Mutex, Once, PoisonError};
use std::{panic, thread};

use anyhow::Context as _;
use rustix::process::{Signal, kill_current_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc::{self, Receiver};

/// Shows the alternate screen without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?1049l\x1b[?25h";
const HOME: &str = "\x1b[H";
const ERASE_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";
/// How many key presses are queued while the screen is drawn.
const KEYS_MAX: usize = 64;
/// The size of the screen if the terminal does not know it.
const SIZE_DEFAULT: (usize, usize) = (80, 24);

/// The modes of the terminal before [`enter`]; `None` while the terminal belongs to the shell.
/// Leaving the alternate screen twice would move the cursor back over text that was printed
/// meanwhile.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    /// With the letter in lower case.
    Ctrl(char),
    Enter,
    Esc,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// Restores the terminal when it is dropped.
pub(super) struct Screen;

impl Screen {
    pub(super) fn open() -> anyhow::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                // The message of the panic belongs on the normal screen.
                leave();
                before(panic);
            }));
        });
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
    enter().context("cannot use the terminal")
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
    let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    let (columns, rows) =
        size.map_or(SIZE_DEFAULT, |size| (size.ws_col.into(), size.ws_row.into()));
    let lines = render(columns, rows).into_iter().take(rows);
    let lines = lines.map(|line| line + ERASE_LINE).collect::<Vec<_>>().join("\r\n");
    let mut stdout = stdout().lock();
    let drawn = write!(stdout, "{HOME}{lines}{ERASE_BELOW}").and_then(|()| stdout.flush());
    drawn.context("cannot draw")
}

fn enter() -> io::Result<()> {
    let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut modes = tcgetattr(stdin())?;
    before.get_or_insert(modes.clone());
    modes.make_raw();
    tcsetattr(stdin(), OptionalActions::Now, &modes)?;
    stdout().write_all(ENTER.as_bytes())?;
    stdout().flush()
}

/// Restores the terminal. Ignores errors: the terminal may be gone.
fn leave() {
    let Some(modes) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let _ = stdout().write_all(LEAVE.as_bytes());
    let _ = stdout().flush();
    let _ = tcsetattr(stdin(), OptionalActions::Now, &modes);
}

/// Returns a channel of key presses. It is closed when the terminal is gone.
pub(super) fn keys() -> Receiver<Key> {
    let (sender, receiver) = mpsc::channel(KEYS_MAX);
    thread::spawn(move || {
        let mut bytes = [0; 1024];
        while let Ok(count @ 1..) = stdin().read(&mut bytes) {
            for key in parse(&String::from_utf8_lossy(&bytes[..count])) {
                if sender.blocking_send(key).is_err() {
                    return;
                }
            }
        }
    });
    receiver
}

/// Reads the keys of one text, which the terminal sent at once. Ignores keys that have no use.
fn parse(text: &str) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        let is_sequence = first == '\x1b' && rest.starts_with(['[', 'O']);
        keys.extend(match first {
            '\x1b' if is_sequence => {
                let end = rest[1..].find(|c: char| c.is_ascii_alphabetic() || c == '~');
                let (sequence, after) = rest.split_at(end.map_or(rest.len(), |end| end + 2));
                rest = after;
                sequence_key(&sequence[1..])
            }
            '\x1b' => Some(Key::Esc),
            '\r' | '\n' => Some(Key::Enter),
            '\x08' | '\x7f' => Some(Key::Backspace),
            '\x01'..='\x1a' => Some(Key::Ctrl(char::from(first as u8 - 1 + b'a'))),
            c if c.is_control() => None,
            c => Some(Key::Char(c)),
        });
    }
    keys
}

/// Returns the key that a terminal sends as ESC [ or ESC O with these characters.
fn sequence_key(sequence: &str) -> Option<Key> {
    Some(match sequence {
        "A" => Key::Up,
        "B" => Key::Down,
        "H" | "1~" | "7~" => Key::Home,
        "F" | "4~" | "8~" => Key::End,
        "5~" => Key::PageUp,
        "6~" => Key::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn keys_are_read_from_what_a_terminal_sends() {
        use Key::{Backspace, Char, Ctrl, Down, End, Enter, Esc, PageUp, Up};
        assert_eq!(parse("q/ü\r"), [Char('q'), Char('/'), Char('ü'), Enter]);
        assert_eq!(parse("\x1b[A\x1bOB\x1b[5~\x1b[F"), [Up, Down, PageUp, End]);
        assert_eq!(parse("\x1b"), [Esc]);
        assert_eq!(parse("\x03\x1a\x0c\x7f"), [Ctrl('c'), Ctrl('z'), Ctrl('l'), Backspace]);
        assert_eq!(parse("\x1b[1;5C\x1b[200~\0\x1b["), []);
    }

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
        assert!(at(ENTER) < at(LEAVE) && at(LEAVE) < at("on purpose"), "{shown:?}");
        assert_eq!(shown.matches(LEAVE).count(), 1, "a second one moves the cursor: {shown:?}");
        at("\nisig icanon iexten echo ");
    }
}
