//! Tables and paragraphs that fit the columns of a terminal.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

const CUT: char = '…';
const GAP: usize = 2;

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
        whole.map(|row| width(&row[column])).max().unwrap_or_default()
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
        let padding = " ".repeat(column_width.saturating_sub(width(&cell)));
        let is_number = fit.numbers_from.is_some_and(|first| column >= first);
        line += &if is_number { padding + &cell } else { cell + &padding };
        line += &" ".repeat(GAP);
    }
    line.truncate(line.trim_end().len());
    line
}

pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Cuts the beginning of a text wider than `columns`.
fn keep_end(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let cut = text.chars().count() - fitting(text.chars().rev(), columns);
    [CUT].into_iter().chain(text.chars().skip(cut)).collect()
}

/// Cuts the end of a text wider than `columns`.
pub(crate) fn keep_start(text: &str, columns: usize) -> String {
    if width(text) <= columns {
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

/// Breaks a text into lines of at most `columns`: between words, or within a word that is wider.
pub(crate) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line) + 1 + width(word) <= columns => line.push(' '),
            _ => lines.push(String::new()),
        }
        for c in word.chars() {
            if lines.last().is_some_and(|line| width(line) + c.width().unwrap_or(0) > columns) {
                lines.push(String::new());
            }
            if let Some(line) = lines.last_mut() {
                line.push(c);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn lines_break_between_words_and_within_long_ones() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a longer b", 4), ["a", "long", "er b"]);
        assert!(wrap(" ", 4).is_empty());
    }
}
