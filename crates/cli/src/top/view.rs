//! Draws the screen. Formats only the visible rows.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use super::app::{App, Lock, Moment};
use crate::fleet::{NodeReport, State};
use crate::locks::{self, Summary};
use crate::output::{
    Fit, escape, fitted, keep_start, or_dash, short_time, time, with_heading, with_plural,
};

/// The nodes get at most the height of the screen divided by this.
const NODES_HEIGHT_DIVISOR: usize = 3;

const NODE_HEADING: [&str; 7] =
    ["NODE", "STATE", "LEASES", "WAITERS", "GRANTS/S", "REFUSALS/S", "ROUND TRIP"];
const NODE_FIT: Fit<'_> = Fit {
    numbers_from: Some(2),
    shortened: &[(0, 20)],
    left_out: &[5, 4, 3, 2, 6],
    starts_with_address: true,
};

/// A column of the locks: its heading, the order of locks that are sorted by it, and the cell of a
/// lock, given the time since the locks were listed and the number of the nodes. By time left, time
/// held and waiters, locks that need attention come first.
pub(super) struct Column(
    &'static str,
    pub(super) fn(&Lock, &Lock) -> Ordering,
    fn(&Lock, Duration, usize) -> String,
);

pub(super) const COLUMNS: [Column; 7] = [
    Column("KEY", |a, b| a.name.cmp(&b.name), |lock, _, _| lock.name.clone()),
    Column("OWNER", |a, b| a.owner.cmp(&b.owner), |lock, _, _| lock.owner.clone()),
    Column("STATE", |a, b| a.state.cmp(b.state), |lock, _, _| lock.state.to_owned()),
    Column("NODES", |a, b| a.nodes.cmp(&b.nodes), |lock, _, all| format!("{}/{all}", lock.nodes)),
    // A lock without a known end comes last.
    Column("LEFT", |a, b| (a.left.is_none(), a.left).cmp(&(b.left.is_none(), b.left)), left),
    Column(
        "HELD",
        |a, b| b.held.cmp(&a.held),
        |lock, elapsed, _| or_dash(lock.held.map(|held| time(held + elapsed))),
    ),
    Column("WAITERS", |a, b| b.waiters.cmp(&a.waiters), |lock, _, _| lock.waiters.to_string()),
];

fn left(lock: &Lock, elapsed: Duration, _nodes: usize) -> String {
    or_dash(lock.left.map(|left| time(left.saturating_sub(elapsed))))
}

const LOCK_FIT: Fit<'_> = Fit {
    numbers_from: Some(3),
    shortened: &[(0, 24), (1, 12)],
    left_out: &[5, 3, 6, 1, 2, 4],
    starts_with_address: false,
};

/// How a terminal shows a line.
const PLAIN: &str = "";
const BOLD: &str = "1";
const DIM: &str = "2";
const REVERSED: &str = "7";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";

/// Returns the lines of the screen, and records in `app` how many rows are visible.
pub(super) fn lines(app: &mut App, now: Instant, columns: usize, rows: usize) -> Vec<String> {
    let style = |line: &str, style: &str| {
        let line = keep_start(line, columns);
        if style.is_empty() { line } else { format!("\x1b[{style}m{line}\x1b[m") }
    };
    let Some(moment) = &app.moment else {
        return vec![style("quorlock top: asking the nodes…", PLAIN)];
    };
    let snapshot = &moment.nodes;
    let votes = if snapshot.has_majority() { GREEN } else { RED };
    let mut lines = vec![style(&title(app, moment, now), votes)];
    let node_rows = snapshot.nodes.iter().enumerate();
    let node_rows =
        node_rows.map(|(index, node)| node_row(node, app.rates.get(index).copied().flatten()));
    let node_rows = with_heading(NODE_HEADING, node_rows);
    let node_styles = snapshot.nodes.iter().map(|node| match node.state {
        State::Voting => PLAIN,
        State::Abstaining(_) => YELLOW,
        State::Unwritable(_) | State::NotCounted(_) | State::Down(_) => RED,
    });
    let nodes = fitted(&node_rows, &NODE_FIT, columns).into_iter();
    let nodes = nodes.zip(std::iter::once(BOLD).chain(node_styles));
    lines.extend(nodes.take(rows / NODES_HEIGHT_DIVISOR).map(|(line, of)| style(&line, of)));
    lines.push(style(moment.problem.as_deref().unwrap_or_default(), YELLOW));

    // One row is the heading, and one the line at the bottom.
    app.page = rows.saturating_sub(lines.len() + 2).max(1);
    app.first = app.first.clamp((app.selected + 1).saturating_sub(app.page), app.selected);
    app.first = app.first.min(app.rows.len().saturating_sub(app.page));
    let elapsed = now.saturating_duration_since(app.listed_at.unwrap_or(now));
    let details = app.selected_lock().filter(|_| app.shows_details);
    if let Some(lock) = details.and_then(|lock| lock.listed.as_ref()) {
        let text = locks::text(&lock.key, &lock.lock, &Summary::of(&lock.lock));
        lines.extend(text.lines().take(app.page + 1).map(|line| style(line, PLAIN)));
    } else {
        let visible = app.rows.iter().skip(app.first).take(app.page);
        let visible: Vec<_> = visible.map(|&row| &app.locks[row]).collect();
        let lock_rows = visible.iter().map(|lock| {
            let cells =
                COLUMNS.iter().map(|Column(.., cell)| cell(lock, elapsed, snapshot.nodes.len()));
            cells.collect()
        });
        let lock_rows: Vec<_> = std::iter::once(lock_heading(app)).chain(lock_rows).collect();
        let mut shown = fitted(&lock_rows, &LOCK_FIT, columns).into_iter();
        lines.extend(shown.next().map(|heading| style(&heading, BOLD)));
        for (index, (line, lock)) in shown.zip(visible).enumerate() {
            let is_selected = app.first + index == app.selected;
            lines.push(style(&line, if is_selected { REVERSED } else { lock.style() }));
        }
    }
    lines.resize(rows.saturating_sub(1).max(1), String::new());
    let (bottom, of_bottom) = if app.is_typing {
        (format!("filter: {}▏", escape(&app.filter)), BOLD)
    } else if app.shows_details {
        ("Enter or Esc back  q quit".to_owned(), DIM)
    } else {
        let keys = "q quit  Enter details  s sort  r reverse  / filter  ↑↓ select";
        let filter = escape(&app.filter);
        let filter = if filter.is_empty() { filter } else { format!("  filter: {filter}") };
        (format!("{keys}{filter}"), DIM)
    };
    lines.push(style(&bottom, of_bottom));
    lines
}

fn title(app: &App, moment: &Moment, now: Instant) -> String {
    let (voting, nodes) = (moment.nodes.voting(), moment.nodes.nodes.len());
    let all = app.locks.len();
    let locks = with_plural(all as u64, "lock");
    let locks = match app.rows.len() {
        shown if shown == all => locks,
        shown => format!("{shown} of {locks}"),
    };
    let age = short_time(now.saturating_duration_since(moment.at));
    let every = short_time(moment.interval);
    format!("quorlock top  {voting} of {nodes} nodes vote  {locks}  asked {age} ago, every {every}")
}

fn node_row(node: &NodeReport, rates: Option<[f64; 2]>) -> Vec<String> {
    let module = node.module();
    vec![
        escape(&node.name),
        match &node.state {
            // Says more in the same room.
            State::Unwritable(reason) => reason.clone(),
            other => other.name().to_owned(),
        },
        or_dash(module.map(|module| module.leases.to_string())),
        or_dash(module.map(|module| module.waiters.to_string())),
        or_dash(rates.map(|[grants, _]| format!("{grants:.0}"))),
        or_dash(rates.map(|[_, refusals]| format!("{refusals:.0}"))),
        or_dash(node.facts().map(|facts| short_time(facts.round_trip))),
    ]
}

fn lock_heading(app: &App) -> Vec<String> {
    let arrow = if app.is_reversed { "▲" } else { "▼" };
    let heading = COLUMNS.iter().enumerate().map(|(column, Column(name, ..))| {
        format!("{name}{}", if column == app.sort { arrow } else { "" })
    });
    heading.collect()
}

impl Lock {
    fn style(&self) -> &'static str {
        match self.state {
            "held" | "shared" => PLAIN,
            "revoked" => YELLOW,
            _ => RED,
        }
    }
}

#[cfg(test)]
mod tests {
    use crossterm::event::KeyCode;
    use unicode_width::UnicodeWidthStr as _;

    use super::super::app::tests::{lock, moment};
    use super::*;

    fn app_of(locks: Vec<Lock>) -> App {
        let mut app = App::default();
        app.update(moment(locks));
        app
    }

    fn screen(app: &mut App, columns: usize, rows: usize) -> String {
        let now = app.listed_at.unwrap_or_else(Instant::now);
        lines(app, now, columns, rows).join("\n")
    }

    #[test]
    fn selected_row_is_always_visible_and_only_a_page_is_formatted() {
        let locks = (0..10_000).map(|i| lock(&format!("k{i:05}"), "o", 1, 9, 0)).collect();
        let mut app = app_of(locks);
        screen(&mut app, 100, 30);
        for (key, seen) in [
            (KeyCode::End, "k09999"),
            (KeyCode::PageUp, "k09977"),
            (KeyCode::Home, "k00000"),
            (KeyCode::PageDown, "k00022"),
        ] {
            app.handle(key.into());
            let text = screen(&mut app, 100, 30);
            assert!(text.contains(&format!("\x1b[7m{seen}")), "no {seen} after {key:?}:\n{text}");
            assert!(text.matches("k0").count() <= app.page, "{text}");
        }
    }

    #[test]
    fn key_is_shown_whole_on_a_narrow_terminal() {
        let key = "orders/2026-11-22/000042";
        let mut app = app_of(vec![lock(key, "web-3.example:4711", 15, 5, 2)]);
        for (columns, there, missing) in [
            (110, &["web-3.example:4711", "OWNER", "HELD", "NODES", "5.0 s", "2/3"][..], &[][..]),
            (80, &["OWNER", "LEFT", "WAITERS", "HELD"], &["web-3.example:4711"]),
            (70, &["OWNER", "WAITERS"], &["HELD"]),
            (60, &["STATE", "LEFT"], &["HELD", "NODES"]),
            (46, &["LEFT"], &["OWNER", "WAITERS"]),
            (30, &["KEY"], &["LEFT"]),
        ] {
            let text = screen(&mut app, columns, 20);
            let table = text.lines().skip_while(|line| !line.contains("KEY")).collect::<String>();
            assert!(table.contains(key), "{columns}: {text}");
            assert!(there.iter().all(|name| table.contains(name)), "{columns}: {text}");
            assert!(!missing.iter().any(|name| table.contains(name)), "{columns}: {text}");
        }
    }

    #[test]
    fn no_size_of_the_terminal_is_too_small() {
        let mut app = app_of(vec![lock("k", "o", 1, 9, 0)]);
        for columns in [1, 2, 10, 40, 200] {
            for rows in [1, 2, 3, 5, 60] {
                let lines = lines(&mut app, Instant::now(), columns, rows);
                let is_style = |c: char| c == 'm' || c == '[' || c == ';' || c.is_ascii_digit();
                for line in lines {
                    let plain = line.split('\x1b').map(|part| part.trim_start_matches(is_style));
                    assert!(plain.collect::<String>().width() <= columns, "{columns}: {line:?}");
                }
            }
        }
        screen(&mut App::default(), 1, 1);
    }
}
