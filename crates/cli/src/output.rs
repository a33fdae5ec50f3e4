//! What the program prints: messages, text of servers and clients, times, JSON, and tables and
//! paragraphs that fit the columns of a terminal.

use std::fmt::{Display, Write as _};
use std::io::{Write as _, stderr, stdout};
use std::time::Duration;
use std::{iter, thread};

use anyhow::Context as _;
pub(crate) use quorlock_core::time_in_units as time;
use serde_json::Value;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// After how many characters [`escape_short`] cuts a text.
const SHOWN_MAX: usize = 200;

/// The width of tables and paragraphs that do not depend on the terminal.
pub(crate) const COLUMNS: usize = 100;
const CUT: char = '…';
const GAP: usize = 2;

/// Escapes a text of a user or a node for a terminal: backslashes, control characters, line ends,
/// and marks that reorder or hide text. Shows bytes that are not UTF-8 in hexadecimal, and cuts a
/// long text. A text that was escaped before needs [`escape`].
pub(crate) fn escape_short(text: impl AsRef<[u8]>) -> String {
    let mut parts = text.as_ref().utf8_chunks().flat_map(|chunk| {
        let chars = chunk.valid().chars().map(|char| match char {
            '\'' | '"' => char.to_string(),
            char => char.escape_debug().to_string(),
        });
        chars.chain(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")))
    });
    let mut shown: String = parts.by_ref().take(SHOWN_MAX).collect();
    if parts.next().is_some() {
        shown.push(CUT);
    }
    shown
}

/// Escapes the characters of a message that control a terminal, or that reorder or hide text. Keeps
/// backslashes: escaping a text twice gives the same as once. [`escape_short`] also cuts a text.
pub(crate) fn escape(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if !matches!(c, '\\' | '\'' | '"') && c.escape_debug().len() > 1 {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Escapes each line of a message, and indents all but the first: the text of a server never looks
/// like a message of this program.
pub(crate) fn escape_lines(text: &str) -> String {
    text.lines().map(escape).collect::<Vec<_>>().join("\n  ")
}

pub(crate) fn owner(label: Option<&str>) -> String {
    label.map_or_else(|| "an unnamed owner".to_owned(), escape_short)
}

pub(crate) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Formats a number with its noun: `1 node`, `3 nodes`.
pub(crate) fn with_plural(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Formats a time as [`time`] does, and with one more digit below 10 ms: `0.4 ms`.
pub(crate) fn short_time(duration: Duration) -> String {
    match duration.as_micros() {
        us @ 0..10_000 => format!("{}.{} ms", us / 1000, us % 1000 / 100),
        _ => time(duration),
    }
}

/// Formats an offset with its sign. An offset that is shown as zero has no sign.
pub(crate) fn signed_time(us: i64) -> String {
    let shown = short_time(Duration::from_micros(us.unsigned_abs()));
    let sign = match us {
        _ if shown == short_time(Duration::ZERO) => "",
        ..0 => "-",
        _ => "+",
    };
    format!("{sign}{shown}")
}

/// Formats a value as JSON in one line. Escapes characters that are not printable, so that the line
/// is safe for a terminal.
pub(crate) fn json(value: &Value) -> String {
    let mut shown = String::new();
    for char in value.to_string().chars() {
        let is_plain =
            matches!(char, ' '..='~') || (!char.is_ascii() && char.escape_debug().len() == 1);
        if is_plain {
            shown.push(char);
        } else {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        }
    }
    shown + "\n"
}

/// Prints a result. Ignores write errors: standard output may be closed.
pub(crate) fn print(text: &str) {
    let _ = try_print(text, "");
}

/// Prints a result, or returns an error that names it.
pub(crate) fn try_print(text: &str, what: &str) -> anyhow::Result<()> {
    let mut stdout = stdout().lock();
    let printed = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    printed.with_context(|| format!("cannot print {what}"))
}

/// Prints a message on standard error, with control characters escaped. Standard output is only for
/// results and for the command of `quorlock run`.
pub(crate) fn say(message: impl Display) {
    // Standard error may be closed.
    let _ = writeln!(stderr(), "quorlock: {}", escape_lines(&message.to_string()));
}

/// Prints a message in the background: a blocked standard error must not delay what the program
/// does with its lock.
pub(crate) fn say_in_background(message: String) {
    thread::spawn(move || say(message));
}

/// Returns the bytes of a key in hexadecimal, if they are not UTF-8.
pub(crate) fn key_hex(key: &[u8]) -> Option<String> {
    let hex = |mut hex: String, byte: &u8| {
        let _ = write!(hex, "{byte:02x}");
        hex
    };
    str::from_utf8(key).is_err().then(|| key.iter().fold(String::new(), hex))
}

/// Returns whole milliseconds, for JSON.
pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What happens to a table that is wider than the terminal.
#[derive(Default)]
pub(crate) struct Fit<'a> {
    /// The columns that hold numbers: all from this one on. They are aligned to the right.
    pub(crate) numbers_from: Option<usize>,
    /// The columns to shorten, in this order, and the least width of each.
    pub(crate) shortened: &'a [(usize, usize)],
    /// The columns to leave out, in this order, if that is not enough.
    pub(crate) left_out: &'a [usize],
    /// Whether the first column has addresses, which differ at their end.
    pub(crate) starts_with_address: bool,
}

/// Puts a heading above the rows of a table.
pub(crate) fn with_heading<const N: usize>(
    heading: [&str; N],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> Vec<Vec<String>> {
    iter::once(heading.map(str::to_owned).to_vec()).chain(rows).collect()
}

/// Formats rows as lines whose columns are two spaces apart.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    fitted(rows, &Fit::default(), usize::MAX).into_iter().map(|line| line + "\n").collect()
}

/// Formats rows as lines of at most `columns`, as far as `fit` makes that possible. The last cell
/// of a row with fewer cells than others may be a long text, and does not make its column wider.
pub(crate) fn fitted(rows: &[Vec<String>], fit: &Fit<'_>, columns: usize) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let column_width = |column: usize| {
        let whole = rows.iter().filter(|row| row.len() == count || row.len() > column + 1);
        whole.map(|row| row[column].width()).max().unwrap_or_default()
    };
    let mut widths: Vec<_> = (0..count).map(column_width).collect();
    let mut shown: Vec<_> = (0..count).collect();
    let excess = |widths: &[usize], shown: &[usize]| {
        let total: usize = shown.iter().map(|&column| widths[column] + GAP).sum();
        total.saturating_sub(columns.saturating_add(GAP))
    };
    for &(column, least) in fit.shortened {
        let narrow = widths[column].saturating_sub(excess(&widths, &shown));
        widths[column] = narrow.max(least.min(widths[column]));
    }
    for left_out in fit.left_out {
        if excess(&widths, &shown) > 0 {
            shown.retain(|column| column != left_out);
        }
    }
    rows.iter().map(|row| line(row, &shown, &widths, fit)).collect()
}

fn line(row: &[String], shown: &[usize], widths: &[usize], fit: &Fit<'_>) -> String {
    let mut line = String::new();
    for &column in shown.iter().filter(|column| **column < row.len()) {
        let column_width = widths[column];
        let cell = match &row[column] {
            text if column + 1 == row.len() && row.len() < widths.len() => text.clone(),
            address if column == 0 && fit.starts_with_address => keep_end(address, column_width),
            cell => keep_start(cell, column_width),
        };
        let padding = " ".repeat(column_width.saturating_sub(cell.width()));
        let is_number = fit.numbers_from.is_some_and(|first| column >= first);
        line += &if is_number { padding + &cell } else { cell + &padding };
        line += &" ".repeat(GAP);
    }
    line.truncate(line.trim_end().len());
    line
}

/// Cuts the beginning of a text wider than `columns`.
fn keep_end(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let cut = text.chars().count() - fitting(text.chars().rev(), columns);
    [CUT].into_iter().chain(text.chars().skip(cut)).collect()
}

/// Cuts the end of a text wider than `columns`.
pub(crate) fn keep_start(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    text.chars().take(fitting(text.chars(), columns)).chain([CUT]).collect()
}

/// Returns how many of the characters fit into `columns` beside [`CUT`].
fn fitting(chars: impl Iterator<Item = char>, columns: usize) -> usize {
    let mut left = columns.saturating_sub(1);
    let fits = |c: char| {
        left = left.checked_sub(c.width().unwrap_or(0))?;
        Some(c)
    };
    chars.map_while(fits).count()
}

/// Breaks a text into lines of at most [`COLUMNS`], and precedes the first line and the others with
/// these indents.
pub(crate) fn paragraph(text: &str, first_indent: &str, indent: &str) -> String {
    let options = textwrap::Options::new(COLUMNS)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .initial_indent(first_indent)
        .subsequent_indent(indent);
    textwrap::fill(text, options) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_or_label_cannot_control_the_terminal() {
        for (text, shown) in [
            ("orders/42", "orders/42"),
            ("Zürich 東京 it's \"ok\"", "Zürich 東京 it's \"ok\""),
            ("\u{1b}[2J\u{1b}]0;title\u{7}", r"\u{1b}[2J\u{1b}]0;title\u{7}"),
            ("a\r\nb\tc\u{0}\u{7f}", r"a\r\nb\tc\0\u{7f}"),
            ("\u{9b}31m\u{85}", r"\u{9b}31m\u{85}"),
            ("web\u{202e}3-bew\u{2066}\u{200f}\u{61c}", r"web\u{202e}3-bew\u{2066}\u{200f}\u{61c}"),
            (
                "a\u{200b}b\u{feff}\u{2028}\u{2029}\u{ad}",
                r"a\u{200b}b\u{feff}\u{2028}\u{2029}\u{ad}",
            ),
            (r"\u{1b}", r"\\u{1b}"),
            ("\u{e0041}\u{301}", r"\u{e0041}\u{301}"),
        ] {
            assert_eq!(escape_short(text), shown);
        }
        assert_eq!(escape_short(b"a\xff\xfeb"), r"a\xff\xfeb");
        assert_eq!(escape_short("x".repeat(1000)).chars().count(), SHOWN_MAX + 1);
        assert_eq!(escape_short(vec![0xff; 1000]).chars().count(), 4 * SHOWN_MAX + 1);
    }

    #[test]
    fn message_cannot_control_the_terminal() {
        for (text, shown) in [
            ("\x1b[2Jx", "\\u{1b}[2Jx"),
            ("é 日本\n\u{202e}txt", "é 日本\\n\\u{202e}txt"),
            ("it's \"C:\\x\"", "it's \"C:\\x\""),
        ] {
            assert_eq!(escape(text), shown);
        }
    }

    #[test]
    fn json_cannot_control_the_terminal() {
        let text = "\u{1b}[2J \u{202e} \u{9b} \u{e0041} ü \" \\ \n";
        let shown = json(&text.into());
        let line = shown.strip_suffix('\n').unwrap();
        assert!(line.chars().all(|char| char == 'ü' || matches!(char, ' '..='~')), "{shown}");
        assert_eq!(serde_json::from_str::<String>(line).unwrap(), text);
    }

    #[test]
    fn times_have_few_digits() {
        for (us, shown) in [
            (400, "+0.4 ms"),
            (-12_340, "-12 ms"),
            (999_600, "+999 ms"),
            (41_500_000, "+41.5 s"),
            (-40, "0.0 ms"),
        ] {
            assert_eq!(signed_time(us), shown);
        }
    }

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|&cell| cell.to_owned()).collect()).collect()
    }

    #[test]
    fn columns_fit_every_cell_but_the_last_of_a_short_row() {
        let rows = rows(&[
            &["NODE", "STATE", "OWNER"],
            &["東京:6379", "held", "web-1"],
            &["b", "a longer text"],
        ]);
        assert_eq!(
            table(&rows),
            "NODE       STATE  OWNER\n東京:6379  held   web-1\nb          a longer text\n"
        );
    }

    #[test]
    fn wide_table_shortens_columns_and_then_leaves_some_out() {
        let rows = rows(&[&["lock-a:6379", "voting", "7"], &["b", "an owner", "12"]]);
        let fit = Fit {
            numbers_from: Some(2),
            shortened: &[(0, 6)],
            left_out: &[1],
            starts_with_address: true,
        };
        assert_eq!(
            fitted(&rows, &fit, 30),
            ["lock-a:6379  voting     7", "b            an owner  12"]
        );
        assert_eq!(fitted(&rows, &fit, 20), ["…:6379  voting     7", "b       an owner  12"]);
        assert_eq!(fitted(&rows, &fit, 10), ["…:6379   7", "b       12"]);
    }

    #[test]
    fn cut_text_fits_and_says_that_it_was_cut() {
        assert_eq!(keep_start("orders", 4), "ord…");
        assert_eq!(keep_start("日本語", 4), "日…");
        assert_eq!(keep_end("日本語", 4), "…語");
        assert_eq!(keep_end("ab", 0), "…");
    }
}
