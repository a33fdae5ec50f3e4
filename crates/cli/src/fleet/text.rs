//! Texts cut and wrapped to the columns of a terminal.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

const CUT: char = '…';

pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Cuts the beginning of a text wider than `columns`. For addresses, which differ at their end.
pub(crate) fn keep_end(text: &str, columns: usize) -> String {
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

    #[test]
    fn cut_text_fits_and_says_that_it_was_cut() {
        assert_eq!(keep_end("lock-a:6379", 11), "lock-a:6379");
        assert_eq!(keep_end("lock-a:6379", 6), "…:6379");
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
