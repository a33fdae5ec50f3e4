//! Measurements beside what they should be, where that is not a ratio.

use std::fmt;

/// A table in markdown.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

/// One thing that was measured, beside what it should be.
pub(crate) struct Row {
    /// What was done.
    pub(crate) case: String,
    /// What came of it, for people.
    pub(crate) measured: String,
    /// What is good enough, for people.
    pub(crate) target: &'static str,
    /// Whether it is good enough.
    pub(crate) met: bool,
}

impl Table {
    /// Adds rows at the end.
    pub(crate) fn extend(&mut self, rows: impl IntoIterator<Item = Row>) {
        self.rows.extend(rows);
    }

    /// Whether nothing was measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether any row is not as good as it should be.
    pub(crate) fn misses_a_target(&self) -> bool {
        self.rows.iter().any(|row| !row.met)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| case | measured | target | |")?;
        writeln!(f, "|---|---|---|---|")?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, measured, target, met } = self;
        let met = if *met { "met" } else { "**missed**" };
        write!(f, "| {case} | {measured} | {target} | {met} |")
    }
}
