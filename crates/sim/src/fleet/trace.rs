//! The trace of a run: one line for each important event.

use std::fmt::{self, Write as _};

use super::clock::{MS, Ns};

#[derive(Debug, Default)]
pub(super) struct Trace {
    /// `None` unless the trace was requested.
    lines: Option<String>,
}

impl Trace {
    pub(super) fn new(is_on: bool) -> Self {
        Self { lines: is_on.then(String::new) }
    }

    pub(super) fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    pub(super) fn line(&mut self, now: Ns, line: fmt::Arguments<'_>) {
        if let Some(lines) = &mut self.lines {
            let _ = writeln!(lines, "{:>8}.{:06} {line}", now / MS, now % MS);
        }
    }

    pub(super) fn into_lines(self) -> String {
        self.lines.unwrap_or_default()
    }
}

/// Writes a line of the trace, if it was requested.
macro_rules! trace {
    ($world:expr, $($line:tt)*) => {
        if $world.trace.is_on() {
            let now = $world.now;
            $world.trace.line(now, format_args!($($line)*));
        }
    };
}
