//! The state of the nodes as a table that fits 100 columns.

use std::fmt::Write as _;
use std::time::Duration;

use crate::fleet::info::{Abstention, ModuleInfo};
use crate::fleet::text::{keep_end, keep_start, width, wrap};
use crate::fleet::{NodeReport, Report, State, advice, unwritable_advice};
use crate::output::{escape, or_dash};

const COLUMNS: usize = 100;
const GAP: usize = 2;
/// How far the reasons below a node are indented.
const INDENT: usize = 2;

const HEADINGS: [&str; 9] =
    ["NODE", "STATE", "MODULE", "SERVER", "SET", "LEASES", "WAITERS", "ROUND TRIP", "CLOCK"];
/// The columns from here on are numbers, and aligned to the right.
const FIRST_RIGHT_ALIGNED: usize = 5;
/// The columns to shorten, in this order, until the table fits; and the least width of each.
const SHORTENED: [(usize, usize); 4] = [(0, 20), (4, 8), (3, 8), (0, 10)];

/// Formats the table. The lines below a node that does not vote say why, and for how long.
pub(super) fn render(report: &Report) -> String {
    let rows: Vec<_> = report.iter().map(|(node, state)| cells(node, state)).collect();
    let widths = widths(&rows);
    let mut text = line(&HEADINGS.map(str::to_owned), &widths);
    for (row, state) in rows.iter().zip(&report.states) {
        text += &line(row, &widths);
        for part in reason(state).iter().flat_map(|reason| wrap(reason, COLUMNS - INDENT)) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:INDENT$}{part}", "");
        }
    }
    let (voting, nodes, needed) = (report.voting(), report.nodes.len(), report.majority());
    let verdict = if report.has_majority() {
        ": a majority".to_owned()
    } else {
        format!("; a majority is {needed}. No lock can be acquired")
    };
    let _ = writeln!(text, "\n{voting} of {nodes} nodes vote{verdict}.");
    text
}

fn cells(node: &NodeReport, state: &State) -> [String; 9] {
    let facts = node.facts();
    let module = node.module();
    [
        escape(&node.name),
        state.name().to_owned(),
        or_dash(module.map(|module| module.version.clone())),
        or_dash(facts.map(|facts| facts.info.server.clone())),
        or_dash(module.and_then(ModuleInfo::set_and_id)),
        or_dash(module.map(|module| module.leases.to_string())),
        or_dash(module.map(|module| module.waiters.to_string())),
        or_dash(facts.map(|facts| short_time(facts.round_trip))),
        or_dash(facts.and_then(|facts| facts.clock_offset_us).map(signed_time)),
    ]
}

/// Returns why a node does not vote, for how long, and what to do.
pub(crate) fn reason(state: &State) -> Option<String> {
    match state {
        State::Voting => None,
        State::Abstaining(Abstention { reason, left: Some(left) }) => Some(format!(
            "{reason}: may have forgotten locks; votes again in {}",
            short_time(*left)
        )),
        State::Abstaining(Abstention { reason, left: None }) => {
            Some(format!("{reason}: grants no locks, and does not say for how long"))
        }
        State::Unwritable(reason) => {
            let (what, todo) = unwritable_advice(reason);
            Some(format!("{reason}: {what}: {todo}"))
        }
        State::NotCounted(error) | State::Down(error) => Some(
            advice(error).map_or_else(|| error.to_string(), |advice| format!("{error}: {advice}")),
        ),
    }
}

fn widths(rows: &[[String; 9]]) -> [usize; 9] {
    let mut widths: [usize; 9] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| width(&row[column]));
        cells.chain([width(HEADINGS[column])]).max().unwrap_or(0)
    });
    for (column, least) in SHORTENED {
        let total = widths.iter().sum::<usize>() + GAP * (widths.len() - 1);
        let excess = total.saturating_sub(COLUMNS);
        widths[column] = widths[column].saturating_sub(excess).max(least.min(widths[column]));
    }
    widths
}

fn line(cells: &[String; 9], widths: &[usize; 9]) -> String {
    let mut line = String::new();
    for (column, (cell, column_width)) in cells.iter().zip(widths).enumerate() {
        // Addresses differ at their end.
        let keep = if column == 0 { keep_end } else { keep_start };
        let cell = keep(cell, *column_width);
        let padding = " ".repeat(column_width.saturating_sub(width(&cell)));
        if column > 0 {
            line += &" ".repeat(GAP);
        }
        let is_right_aligned = column >= FIRST_RIGHT_ALIGNED;
        line += &if is_right_aligned { padding + &cell } else { cell + &padding };
    }
    line.truncate(line.trim_end().len());
    line + "\n"
}

/// Formats a time with at least two digits: `0.4 ms`, `12 ms`, `1.5 s`, `41 s`.
#[expect(clippy::cast_precision_loss, reason = "it is shown with three digits")]
pub(crate) fn short_time(time: Duration) -> String {
    let us = time.as_micros() as f64;
    match us {
        us if us < 9_950.0 => format!("{:.1} ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0} ms", us / 1e3),
        us if us < 9_950_000.0 => format!("{:.1} s", us / 1e6),
        us => format!("{:.0} s", us / 1e6),
    }
}

/// Formats an offset with its sign. An offset that rounds to zero has no sign.
pub(crate) fn signed_time(us: i64) -> String {
    let shown = short_time(Duration::from_micros(us.unsigned_abs()));
    let sign = match us {
        _ if shown == short_time(Duration::ZERO) => "",
        us if us < 0 => "-",
        _ => "+",
    };
    format!("{sign}{shown}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::report::tests::{abstention, down, facts, module, voting};

    #[test]
    fn times_have_few_digits() {
        for (us, shown) in [
            (400, "0.4 ms"),
            (12_340, "12 ms"),
            (999_600, "1.0 s"),
            (1_500_000, "1.5 s"),
            (41_000_000, "41 s"),
        ] {
            assert_eq!(short_time(Duration::from_micros(us)), shown);
        }
        for (us, shown) in [
            (-2_000, "-2.0 ms"),
            (2_000, "+2.0 ms"),
            (-60, "-0.1 ms"),
            (-40, "0.0 ms"),
            (40, "0.0 ms"),
            (0, "0.0 ms"),
        ] {
            assert_eq!(signed_time(us), shown);
        }
    }

    #[test]
    fn table_says_why_a_node_does_not_vote_and_for_how_long() {
        let mut nodes = voting(3);
        module(&mut nodes[1]).abstention = Some(abstention(41_000));
        nodes[2].answer = Err(down());
        let text = render(&Report::new(nodes));
        assert!(text.contains("start: may have forgotten locks; votes again in 41 s"), "{text}");
        assert!(text.contains("start the server"), "{text}");
        assert!(text.contains("1 of 3 nodes vote; a majority is 2"), "{text}");
    }

    #[test]
    fn no_line_is_wider_than_100_columns() {
        let mut nodes = voting(3);
        for node in &mut nodes {
            node.name = format!("a-host-with-a-long-name.of-a-long-domain.example:{}", node.name);
            facts(node).info.server = "valkey 10.100.100-rc1".into();
            facts(node).clock_offset_us = Some(-3_600_000_000);
            module(node).leases = 10_000_000;
            module(node).set = quorlock_core::node_set::SetReport::Set(
                "a-set-with-quite-a-long-name 1 1,2,3".parse().unwrap(),
            );
        }
        nodes[1].answer = Err(quorlock_core::client::NodeError::ErrorReply("word ".repeat(100)));
        let text = render(&Report::new(nodes));
        assert!(text.lines().all(|line| width(line) <= COLUMNS), "{text}");
        assert!(text.contains("…"), "{text}");
        assert!(text.contains("lock-2:6379"), "the end of an address tells nodes apart: {text}");
    }
}
