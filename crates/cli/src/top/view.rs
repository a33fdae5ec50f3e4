//! Draws the screen. Builds only the visible rows.

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, Wrap};

use quorlock_client::LockMode;

use super::snapshot::{Lock, Snapshot};
use super::state::{App, Rates, Sort};
use crate::fleet::text::keep_end;
use crate::fleet::{NodeReport, State};
use crate::inspect::{Verdict, owners_text, waiter_text};
use crate::output::{self, escape, escape_short, or_dash};
use crate::status;

const BAR_CHARS: usize = 10;
/// The table of the nodes gets at most the height of the screen divided by this.
const NODES_HEIGHT_DIVISOR: u16 = 3;
const ADDRESS_COLUMNS_MAX: usize = 24;
const GAP: u16 = 1;

/// The columns of the nodes: heading, width, and the least width that is readable.
const NODE_COLUMNS: [(&str, Constraint, u16); 7] = [
    ("NODE", Constraint::Min(20), 20),
    ("STATE", Constraint::Length(16), 16),
    ("LEASES", Constraint::Length(8), 8),
    ("WAITERS", Constraint::Length(8), 8),
    ("GRANTS/S", Constraint::Length(9), 9),
    ("REFUSALS/S", Constraint::Length(10), 10),
    ("ROUND TRIP", Constraint::Length(10), 10),
];
/// The columns that a narrow terminal drops, in this order.
const NODE_DROP_ORDER: [usize; 5] = [5, 4, 3, 2, 6];

/// The columns of the locks, as in [`NODE_COLUMNS`].
const LOCK_COLUMNS: [(&str, Constraint, u16); 7] = [
    ("KEY", Constraint::Fill(3), 24),
    ("OWNER", Constraint::Fill(2), 12),
    ("STATE", Constraint::Length(8), 8),
    ("NODES", Constraint::Length(5), 5),
    ("LEFT", Constraint::Length(20), 20),
    ("HELD", Constraint::Length(12), 12),
    ("WAITERS", Constraint::Length(8), 8),
];
const LOCK_DROP_ORDER: [usize; 6] = [5, 3, 6, 1, 2, 4];
/// The sort order that each column of the locks stands for.
const LOCK_SORTS: [Option<Sort>; 7] = [
    Some(Sort::Key),
    Some(Sort::Owner),
    None,
    None,
    Some(Sort::Left),
    Some(Sort::Held),
    Some(Sort::Waiters),
];

/// Below these parts of the ttl, the bar is yellow, or red.
const YELLOW: f64 = 0.33;
const RED: f64 = 0.1;

/// Draws everything, and records in `app` how many rows are visible.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App, now: Instant) {
    let area = frame.area();
    let nodes = app.snapshot.as_ref().map_or(0, |snapshot| snapshot.report.nodes.len());
    let nodes_height =
        u16::try_from(nodes + 1).unwrap_or(u16::MAX).min(area.height / NODES_HEIGHT_DIVISOR);
    let [title, nodes_area, gap, locks_area, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(nodes_height),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(bottom_line(app)), bottom);
    let Some(snapshot) = &app.snapshot else {
        frame.render_widget(Paragraph::new("quorlock top: asking the nodes…"), title);
        return;
    };
    frame.render_widget(Paragraph::new(title_line(app, snapshot, now)), title);
    frame.render_widget(nodes_table(app, snapshot, area.width), nodes_area);
    if let Some(problem) = &snapshot.locks.problem {
        frame.render_widget(Paragraph::new(problem.as_str().yellow()), gap);
    }
    // One row is the heading.
    let page = usize::from(locks_area.height.saturating_sub(1)).max(1);
    app.page = page;
    app.first = app.first.clamp((app.selected + 1).saturating_sub(page), app.selected);
    app.first = app.first.min(app.rows.len().saturating_sub(page));
    let elapsed = now.saturating_duration_since(snapshot.locks.at.unwrap_or(now));
    frame.render_widget(locks_table(app, snapshot, elapsed, area.width), locks_area);
    if app.shows_details
        && let Some(lock) = app.selected_lock()
    {
        draw_details(frame, lock, snapshot, elapsed, locks_area);
    }
}

fn title_line(app: &App, snapshot: &Snapshot, now: Instant) -> Line<'static> {
    let report = &snapshot.report;
    let votes = format!("{} of {} nodes vote", report.voting(), report.nodes.len());
    let votes = if report.has_majority() { votes.green() } else { votes.red().bold() };
    let locks = match (app.rows.len(), snapshot.locks.list.len()) {
        (shown, all) if shown == all => output::with_plural(all as u64, "lock"),
        (shown, all) => format!("{shown} of {}", output::with_plural(all as u64, "lock")),
    };
    let age = status::short_time(now.saturating_duration_since(snapshot.at));
    let every = status::short_time(snapshot.interval);
    vec![
        "quorlock top".bold(),
        "  ".into(),
        votes,
        format!("  {locks}  asked {age} ago, every {every}").into(),
    ]
    .into()
}

fn bottom_line(app: &App) -> Line<'static> {
    if app.is_typing {
        return vec!["filter: ".bold(), escape(&app.filter).into(), "▏".into()].into();
    }
    let filter = match &*app.filter {
        "" => String::new(),
        filter => format!("  filter: {}", escape(filter)),
    };
    let keys = "q quit  Enter details  s sort  r reverse  / filter  ↑↓ select";
    Line::from(vec![keys.dim(), filter.yellow()])
}

fn nodes_table<'a>(app: &App, snapshot: &'a Snapshot, width: u16) -> Table<'a> {
    let rows = snapshot.report.iter().enumerate().map(|(index, (node, state))| {
        node_row(node, state, app.rates.get(index).copied().flatten())
    });
    let columns = visible_columns(&NODE_COLUMNS, &NODE_DROP_ORDER, width);
    let heading = columns.iter().map(|&column| NODE_COLUMNS[column].0);
    let heading = Row::new(heading.collect::<Vec<_>>()).bold();
    let rows = rows.map(|(cells, style)| Row::new(visible_cells(&columns, cells)).style(style));
    Table::new(rows, constraints(&NODE_COLUMNS, &columns)).header(heading)
}

fn node_row(node: &NodeReport, state: &State, rates: Option<Rates>) -> ([String; 7], Style) {
    let style = match state {
        State::Voting => Style::new(),
        State::Abstaining(_) => Style::new().fg(Color::Yellow),
        State::Unwritable(_) | State::NotCounted(_) | State::Down(_) => Style::new().fg(Color::Red),
    };
    let facts = node.facts();
    let module = node.module();
    let cells = [
        keep_end(&escape(&node.name), ADDRESS_COLUMNS_MAX),
        match state {
            // Says more in the same room.
            State::Unwritable(reason) => reason.clone(),
            other => other.name().to_owned(),
        },
        or_dash(module.map(|module| module.leases.to_string())),
        or_dash(module.map(|module| module.waiters.to_string())),
        or_dash(rates.map(|rates| format!("{:.0}", rates.grants))),
        or_dash(rates.map(|rates| format!("{:.0}", rates.refusals))),
        or_dash(facts.map(|facts| status::short_time(facts.round_trip))),
    ];
    (cells, style)
}

fn locks_table<'a>(app: &App, snapshot: &'a Snapshot, elapsed: Duration, width: u16) -> Table<'a> {
    let locks = &snapshot.locks.list;
    let visible = app.rows.iter().enumerate().skip(app.first).take(app.page);
    let columns = visible_columns(&LOCK_COLUMNS, &LOCK_DROP_ORDER, width);
    let rows = visible.map(|(row, &index)| {
        let cells = lock_row(app, &locks[index], elapsed, snapshot.report.nodes.len());
        let drawn = Row::new(visible_cells(&columns, cells));
        if row == app.selected {
            drawn.style(Style::new().add_modifier(Modifier::REVERSED))
        } else {
            drawn
        }
    });
    let heading = columns.iter().map(|&column| match LOCK_SORTS[column] {
        Some(sort) if sort == app.sort => {
            format!("{}{}", LOCK_COLUMNS[column].0, if app.reversed { "▲" } else { "▼" })
        }
        _ => LOCK_COLUMNS[column].0.to_owned(),
    });
    let heading = Row::new(heading.collect::<Vec<_>>()).bold();
    Table::new(rows, constraints(&LOCK_COLUMNS, &columns)).header(heading)
}

/// Returns the columns that fit. Drops columns in `drop_order` until the others fit.
fn visible_columns(
    all: &[(&str, Constraint, u16)],
    drop_order: &[usize],
    width: u16,
) -> Vec<usize> {
    let mut columns: Vec<_> = (0..all.len()).collect();
    for column in drop_order {
        let needed: u16 = columns.iter().map(|&column| all[column].2 + GAP).sum();
        if needed <= width + GAP {
            break;
        }
        columns.retain(|other| other != column);
    }
    columns
}

fn visible_cells<T>(columns: &[usize], cells: impl IntoIterator<Item = T>) -> Vec<T> {
    let cells = cells.into_iter().enumerate();
    cells.filter(|(column, _)| columns.contains(column)).map(|(_, cell)| cell).collect()
}

fn constraints(all: &[(&str, Constraint, u16)], columns: &[usize]) -> Vec<Constraint> {
    columns.iter().map(|&column| all[column].1).collect()
}

fn lock_row<'a>(app: &App, lock: &'a Lock, elapsed: Duration, nodes: usize) -> [Line<'a>; 7] {
    let part = app.part_left(lock, elapsed);
    let color = match part {
        part if part < RED => Color::Red,
        part if part < YELLOW => Color::Yellow,
        _ => Color::Green,
    };
    let left = match lock.left {
        Some(left) => {
            let time = output::time(left.saturating_sub(elapsed));
            Line::from(vec![Span::styled(bar(part), color), format!(" {time}").into()])
        }
        None => Line::from("-"),
    };
    let state = match lock.verdict {
        Verdict::Held => lock.state().into(),
        Verdict::Revoked => Span::styled(lock.state(), Color::Yellow),
        _ => Span::styled(lock.state(), Color::Red),
    };
    [
        Line::from(lock.key.as_str()),
        Line::from(lock.owner.as_str()),
        Line::from(state),
        Line::from(format!("{}/{nodes}", lock.nodes)),
        left,
        Line::from(or_dash(lock.held.map(|held| output::time(held + elapsed)))),
        Line::from(lock.waiters.to_string()),
    ]
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is between 0 and `BAR_CHARS`"
)]
#[expect(clippy::cast_precision_loss, reason = "it is a small number")]
fn bar(part: f64) -> String {
    let full = (part.clamp(0.0, 1.0) * BAR_CHARS as f64).ceil() as usize;
    "█".repeat(full) + &"░".repeat(BAR_CHARS - full)
}

fn draw_details(
    frame: &mut Frame<'_>,
    lock: &Lock,
    snapshot: &Snapshot,
    elapsed: Duration,
    area: Rect,
) {
    let left_text = |left: Duration| {
        let unless = if lock.verdict == Verdict::Revoked { "" } else { ", unless it is extended" };
        format!("{}{unless}", output::time(left.saturating_sub(elapsed)))
    };
    let held_text = |held: Duration| output::time(held + elapsed);
    let mut lines = vec![
        Line::from(format!("owner   {}", lock.owner)),
        Line::from(format!("fence   {}", or_dash(lock.fence.map(|fence| fence.to_string())))),
        Line::from(format!("held    {}", or_dash(lock.held.map(held_text)))),
        Line::from(format!("left    {}", or_dash(lock.left.map(left_text)))),
        Line::from(""),
    ];
    for (node, answer) in snapshot.report.nodes.iter().zip(&lock.answers) {
        let words = match answer {
            Ok(None) => "free".to_owned(),
            Err(error) => escape_short(error.to_string()),
            Ok(Some(lease)) => {
                let revoked = if lease.revoked { ", revoked" } else { "" };
                let fence = or_dash(lease.fence.map(|fence| fence.to_string()));
                let left = lease.ttl.map(|ttl| output::time(ttl.saturating_sub(elapsed)));
                let left = left.unwrap_or_else(|| "no end".to_owned());
                let owner = owners_text(lease).unwrap_or_else(|| output::owner(None));
                let keys = output::with_plural(lease.keys, "key");
                let shared = if lease.mode == LockMode::Shared { ", shared" } else { "" };
                format!("{owner}, fence {fence}, {left} left, {keys}{shared}{revoked}")
            }
        };
        lines.push(Line::from(format!("{}  {words}", escape(&node.name))));
        let queue = answer.iter().flatten().flat_map(|lease| &lease.queue);
        lines.extend(queue.map(|waiter| Line::from(format!("    waits: {}", waiter_text(waiter)))));
    }
    let block =
        Block::bordered().title(format!(" {} ", lock.key)).title_bottom(" Enter or Esc: back ");
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).block(block), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{Event, KeyCode};

    use super::*;
    use crate::top::snapshot::tests::{lock, snapshot};

    fn screen(app: &mut App, columns: u16, rows: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        let at = app.snapshot.as_ref().map_or_else(Instant::now, |snapshot| snapshot.at);
        terminal.draw(|frame| draw(frame, app, at)).unwrap();
        terminal.backend().to_string()
    }

    fn app_of(locks: Vec<Lock>) -> App {
        let mut app = App::default();
        app.update(snapshot(locks));
        app
    }

    #[test]
    fn lock_is_shown_with_owner_time_left_and_waiters() {
        let mut app = app_of(vec![lock("orders/42", "web-3", 15, 5, 2)]);
        let text = screen(&mut app, 110, 20);
        for part in [
            "3 of 3 nodes vote",
            "1 lock",
            "orders/42",
            "web-3",
            "███░░░░░░░ 5.0 s",
            "15.0 s",
            "2/3",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        app.handle(&Event::Key(KeyCode::Enter.into()));
        let text = screen(&mut app, 110, 20);
        assert!(text.contains("left    5.0 s, unless it is extended"), "{text}");
        assert!(text.contains("lock-2:6379  free"), "{text}");
    }

    #[test]
    fn shared_lock_is_shown_as_shared() {
        let mut shared = lock("report", "web-1 +2", 15, 5, 0);
        shared.is_shared = true;
        let text = screen(&mut app_of(vec![shared]), 110, 20);
        assert!(text.contains("web-1 +2") && text.contains("shared"), "{text}");
    }

    #[test]
    fn selected_row_is_always_visible_and_only_a_page_is_built() {
        let locks: Vec<_> = (0..10_000).map(|i| lock(&format!("k{i:05}"), "o", 1, 9, 0)).collect();
        let mut app = app_of(locks);
        screen(&mut app, 100, 30);
        for (key, seen) in [
            (KeyCode::End, "k09999"),
            (KeyCode::PageUp, "k09977"),
            (KeyCode::Home, "k00000"),
            (KeyCode::PageDown, "k00022"),
        ] {
            app.handle(&Event::Key(key.into()));
            let text = screen(&mut app, 100, 30);
            assert!(text.contains(seen), "no {seen} after {key}:\n{text}");
            assert!(text.matches("k0").count() <= app.page, "{text}");
        }
    }

    #[test]
    fn no_size_of_the_terminal_is_too_small() {
        let mut app = app_of(vec![lock("k", "o", 1, 9, 0)]);
        for details in [false, true] {
            app.shows_details = details;
            for columns in [1, 2, 10, 40, 200] {
                for rows in [1, 2, 3, 5, 60] {
                    screen(&mut app, columns, rows);
                }
            }
        }
        screen(&mut App::default(), 1, 1);
    }

    #[test]
    fn key_is_shown_whole_on_a_narrow_terminal() {
        let key = "orders/2026-11-22/000042";
        let mut app = app_of(vec![lock(key, "web-3.example:4711", 15, 5, 2)]);
        for (columns, there, missing) in [
            (110, &["OWNER", "HELD", "NODES"][..], &[][..]),
            (80, &["OWNER", "LEFT", "WAITERS"], &["HELD"]),
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
    fn bar_is_full_at_first_and_never_empty_while_time_is_left() {
        assert_eq!((bar(1.0), bar(0.001)), ("██████████".to_owned(), "█░░░░░░░░░".to_owned()));
        assert_eq!(
            (bar(0.0), bar(7.0), bar(f64::NAN)),
            ("░".repeat(10), "█".repeat(10), "░".repeat(10))
        );
    }
}
