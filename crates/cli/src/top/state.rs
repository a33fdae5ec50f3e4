//! The state of the screen, and what each key press does to it: without I/O.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::snapshot::{Lock, Snapshot};
use crate::fleet::{NodeReport, Report};

const FILTER_MAX_CHARS: usize = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Key,
    Owner,
    Left,
    Held,
    Waiters,
}

/// What the program does next. After each action but `Quit`, it draws the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Draw,
    Quit,
    /// Leave the terminal to the shell until this program is continued.
    Suspend,
    /// Set the terminal up again.
    Reset,
}

/// Grants and refusals of a node per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) grants: f64,
    pub(super) refusals: f64,
}

/// What the bar of a lock is measured against.
#[derive(Clone, Copy, Debug)]
struct Scale {
    fence: Option<u64>,
    /// The time left in the last snapshot.
    left: Duration,
    /// The time left at which the bar is full.
    full: Duration,
}

#[derive(Debug, Default)]
pub(super) struct App {
    pub(super) snapshot: Option<Snapshot>,
    /// The rates of each node; `None` unless both of the last two reports have its counters.
    pub(super) rates: Vec<Option<Rates>>,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) filter: String,
    /// Whether key presses edit the filter.
    pub(super) is_typing: bool,
    pub(super) shows_details: bool,
    /// The rows: indices of the snapshot's locks that match the filter, in the order of `sort`.
    pub(super) rows: Vec<usize>,
    /// The index into `rows` of the selected lock.
    pub(super) selected: usize,
    /// The first row that is drawn.
    pub(super) first: usize,
    /// How many rows fit on the screen.
    pub(super) page: usize,
    scales: HashMap<String, Scale>,
}

impl App {
    /// Handles the answers of the nodes. The selection stays on its lock.
    pub(super) fn update(&mut self, mut snapshot: Snapshot) -> Action {
        let selected = self.selected_lock().map(|lock| lock.key.clone());
        if let Some(before) = &mut self.snapshot {
            let elapsed = snapshot.at.saturating_duration_since(before.at);
            self.rates = rates(&before.report, &snapshot.report, elapsed);
            if snapshot.locks.at.is_none() {
                // The last list is better than none; the problem is shown with it.
                snapshot.locks.at = before.locks.at;
                snapshot.locks.list = std::mem::take(&mut before.locks.list);
            }
        }
        let entry =
            |lock: &Lock| Some((lock.key.clone(), scale(self.scales.get(&lock.key), lock)?));
        self.scales = snapshot.locks.list.iter().filter_map(entry).collect();
        self.snapshot = Some(snapshot);
        self.rebuild_rows_from(selected.as_deref());
        Action::Draw
    }

    pub(super) fn handle(&mut self, event: &Event) -> Action {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.handle_key(*key),
            _ => Action::Draw,
        }
    }

    fn handle_key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit,
                KeyCode::Char('z') => Action::Suspend,
                KeyCode::Char('l') => Action::Reset,
                _ => Action::Draw,
            };
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Action::Draw;
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc if self.shows_details => self.shows_details = false,
            KeyCode::Esc => self.set_filter(String::new()),
            KeyCode::Enter => {
                self.shows_details = !self.shows_details && self.selected_lock().is_some();
            }
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.rebuild_rows();
            }
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                self.rebuild_rows();
            }
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected.saturating_sub(1)),
            KeyCode::PageDown => self.select(self.selected.saturating_add(self.page)),
            KeyCode::PageUp => self.select(self.selected.saturating_sub(self.page)),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            _ => {}
        }
        Action::Draw
    }

    fn type_filter(&mut self, key: KeyCode) {
        let mut filter = self.filter.clone();
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                filter.clear();
            }
            KeyCode::Backspace => {
                filter.pop();
            }
            KeyCode::Char(c) if filter.chars().count() < FILTER_MAX_CHARS => filter.push(c),
            _ => {}
        }
        self.set_filter(filter);
    }

    fn set_filter(&mut self, filter: String) {
        if filter != self.filter {
            self.filter = filter;
            self.rebuild_rows();
        }
    }

    fn select(&mut self, row: usize) {
        self.selected = row.min(self.rows.len().saturating_sub(1));
    }

    fn rebuild_rows(&mut self) {
        let selected = self.selected_lock().map(|lock| lock.key.clone());
        self.rebuild_rows_from(selected.as_deref());
    }

    /// Filters and sorts the rows again, and selects the lock with the key `selected` among them.
    fn rebuild_rows_from(&mut self, selected: Option<&str>) {
        let Some(snapshot) = &self.snapshot else { return };
        let locks = &snapshot.locks.list;
        let matches =
            |lock: &Lock| lock.key.contains(&self.filter) || lock.owner.contains(&self.filter);
        self.rows = (0..locks.len()).filter(|&row| matches(&locks[row])).collect();
        let (sort, reversed) = (self.sort, self.reversed);
        self.rows.sort_by(|&a, &b| {
            let order = sort.compare(&locks[a], &locks[b]);
            let order = if reversed { order.reverse() } else { order };
            // Rows that are equal keep their places from one snapshot to the next.
            order.then_with(|| locks[a].key.cmp(&locks[b].key))
        });
        let found =
            selected.and_then(|key| self.rows.iter().position(|&row| locks[row].key == key));
        if found.is_none() {
            // The lock of the details is gone.
            self.shows_details = false;
        }
        self.select(found.unwrap_or(self.selected));
    }

    /// The selected lock; `None` if no row is shown.
    pub(super) fn selected_lock(&self) -> Option<&Lock> {
        let locks = &self.snapshot.as_ref()?.locks.list;
        locks.get(*self.rows.get(self.selected)?)
    }

    /// Returns the part of its ttl that a lock has left, from 0 to 1. `elapsed` is the time since
    /// the locks were listed.
    pub(super) fn part_left(&self, lock: &Lock, elapsed: Duration) -> f64 {
        let full = self.scales.get(&lock.key).map_or(Duration::ZERO, |scale| scale.full);
        let left = lock.left.unwrap_or_default().saturating_sub(elapsed);
        if full.is_zero() { 0.0 } else { (left.as_secs_f64() / full.as_secs_f64()).min(1.0) }
    }
}

impl Sort {
    fn next(self) -> Self {
        match self {
            Self::Key => Self::Owner,
            Self::Owner => Self::Left,
            Self::Left => Self::Held,
            Self::Held => Self::Waiters,
            Self::Waiters => Self::Key,
        }
    }

    /// Compares two locks. By time left, time held and waiters, locks that need attention come
    /// first.
    fn compare(self, a: &Lock, b: &Lock) -> Ordering {
        match self {
            Self::Key => a.key.cmp(&b.key),
            Self::Owner => a.owner.cmp(&b.owner),
            // A lock without a known end comes last.
            Self::Left => a.left.unwrap_or(Duration::MAX).cmp(&b.left.unwrap_or(Duration::MAX)),
            Self::Held => b.held.cmp(&a.held),
            Self::Waiters => b.waiters.cmp(&a.waiters),
        }
    }
}

/// Estimates the last ttl of a lock, which nodes do not report. Returns `None` if the lock has no
/// known end.
///
/// If a lock was never extended, its ttl is the time since its grant plus the time left. A lock
/// with more time left than before was just extended, and its ttl is the time left. Of a lock that
/// was extended before it was first listed, the estimate is too long until the next extension.
fn scale(before: Option<&Scale>, lock: &Lock) -> Option<Scale> {
    let left = lock.left?;
    let full = match before.filter(|before| before.fence == lock.fence) {
        Some(before) if left > before.left => left,
        Some(before) => before.full.max(left),
        None => left + lock.held.unwrap_or_default(),
    };
    Some(Scale { fence: lock.fence, left, full })
}

/// Returns the rates of each node, if both reports have its counters. A counter that is lower than
/// before, as after a restart, has the rate zero.
fn rates(before: &Report, now: &Report, elapsed: Duration) -> Vec<Option<Rates>> {
    let rate = |before: Option<u64>, now: Option<u64>| -> Option<f64> {
        let count = u32::try_from(now?.saturating_sub(before?)).unwrap_or(u32::MAX);
        (!elapsed.is_zero()).then(|| f64::from(count) / elapsed.as_secs_f64())
    };
    let of_node = |(before, now): (&NodeReport, &NodeReport)| {
        let (before, now) = (before.module()?, now.module()?);
        let rate_of = |name: &str| rate(before.counter(name), now.counter(name));
        Some(Rates { grants: rate_of("grants")?, refusals: rate_of("refusals")? })
    };
    before.nodes.iter().zip(&now.nodes).map(of_node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::report::tests::module as module_of;
    use crate::top::snapshot::tests::{lock, snapshot};

    fn press(app: &mut App, keys: &str) {
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\x08' => KeyCode::Backspace,
                c => KeyCode::Char(c),
            };
            app.handle(&Event::Key(code.into()));
        }
    }

    fn app() -> App {
        let mut app = App { page: 10, ..App::default() };
        let locks = vec![
            lock("a", "web-2", 1, 30, 0),
            lock("b", "web-1", 9, 10, 5),
            lock("c", "batch", 5, 20, 1),
        ];
        app.update(snapshot(locks));
        app
    }

    fn keys(app: &App) -> String {
        let locks = &app.snapshot.as_ref().unwrap().locks.list;
        app.rows.iter().map(|&row| locks[row].key.as_str()).collect()
    }

    #[test]
    fn each_column_sorts_in_its_own_order() {
        let mut app = app();
        for order in ["abc", "cba", "bca", "bca", "bca"] {
            assert_eq!(keys(&app), order);
            press(&mut app, "s");
        }
        assert_eq!(app.sort, Sort::Key);
        press(&mut app, "r");
        assert_eq!(keys(&app), "cba");
    }

    #[test]
    fn lock_without_a_known_end_has_the_most_time_left() {
        let without_known_end = Lock { left: None, ..lock("a", "x", 1, 1, 0) };
        let mut app = App { sort: Sort::Left, ..App::default() };
        app.update(snapshot(vec![without_known_end, lock("b", "x", 1, 10, 0)]));
        assert_eq!(keys(&app), "ba");
    }

    #[test]
    fn selection_stays_on_its_lock_while_other_locks_come_and_go() {
        let mut app = app();
        press(&mut app, "j");
        assert_eq!(app.selected_lock().unwrap().key, "b");
        press(&mut app, "sr");
        assert_eq!(app.selected_lock().unwrap().key, "b");
        app.update(snapshot(vec![lock("0", "x", 1, 1, 0), lock("b", "web-1", 9, 10, 5)]));
        assert_eq!(app.selected_lock().unwrap().key, "b");
        press(&mut app, "\n");
        assert!(app.shows_details);
        app.update(snapshot(vec![lock("z", "x", 1, 1, 0)]));
        assert_eq!((&*app.selected_lock().unwrap().key, app.shows_details), ("z", false));
        app.update(snapshot(vec![]));
        assert!(app.selected_lock().is_none());
        press(&mut app, "\njk");
        assert!(!app.shows_details);
    }

    #[test]
    fn last_list_stays_while_no_node_answers() {
        let mut app = app();
        press(&mut app, "j");
        let mut silent = snapshot(vec![]);
        silent.locks = crate::top::snapshot::Locks::failed("no answer".into());
        app.update(silent);
        assert_eq!((keys(&app).as_str(), &*app.selected_lock().unwrap().key), ("abc", "b"));
        assert!(app.snapshot.as_ref().unwrap().locks.problem.is_some());
    }

    #[test]
    fn filter_matches_keys_and_owners_and_may_contain_a_q() {
        let mut app = app();
        press(&mut app, "/web");
        assert_eq!(keys(&app), "ab");
        press(&mut app, "q");
        assert_eq!(keys(&app), "");
        press(&mut app, "\x08-1\n");
        assert_eq!((keys(&app), app.is_typing), ("b".to_owned(), false));
        press(&mut app, "\x1b");
        assert_eq!(keys(&app), "abc");
        press(&mut app, "/zz\x1b");
        assert_eq!(keys(&app), "abc");
    }

    #[test]
    fn q_and_ctrl_c_quit_and_ctrl_z_suspends() {
        let mut app = app();
        let mut action = |code, modifiers| app.handle(&Event::Key(KeyEvent::new(code, modifiers)));
        assert_eq!(action(KeyCode::Char('q'), KeyModifiers::NONE), Action::Quit);
        assert_eq!(action(KeyCode::Char('c'), KeyModifiers::CONTROL), Action::Quit);
        assert_eq!(action(KeyCode::Char('z'), KeyModifiers::CONTROL), Action::Suspend);
        assert_eq!(action(KeyCode::Char('x'), KeyModifiers::NONE), Action::Draw);
    }

    #[test]
    fn bar_is_measured_against_the_last_ttl() {
        let part = |app: &App| app.part_left(app.selected_lock().unwrap(), Duration::ZERO);
        let mut app = App::default();
        app.update(snapshot(vec![lock("k", "o", 5, 5, 0)]));
        assert!((part(&app) - 0.5).abs() < 1e-9, "5 s of 10 are over");
        app.update(snapshot(vec![lock("k", "o", 8, 2, 0)]));
        assert!((part(&app) - 0.2).abs() < 1e-9);
        app.update(snapshot(vec![lock("k", "o", 9, 10, 0)]));
        assert!((part(&app) - 1.0).abs() < 1e-9, "it was extended");
        app.update(snapshot(vec![lock("k", "o", 14, 5, 0)]));
        assert!((part(&app) - 0.5).abs() < 1e-9);
        assert!(app.part_left(app.selected_lock().unwrap(), Duration::from_secs(60)).abs() < 1e-9);
    }

    #[test]
    fn rates_are_per_second_and_zero_after_a_restart() {
        let mut app = app();
        let counted = |after_s, counts: [u64; 2]| {
            let mut next = snapshot(vec![]);
            next.at += Duration::from_secs(after_s);
            for node in &mut next.report.nodes {
                module_of(node).counters[..2].copy_from_slice(&counts.map(Some));
            }
            next
        };
        app.update(counted(10, [100, 50]));
        assert_eq!(app.rates, [None; 3], "the first report had no counters");
        app.update(counted(20, [200, 70]));
        let rates = app.rates[0].unwrap();
        assert!(
            (rates.grants - 10.0).abs() < 0.1 && (rates.refusals - 2.0).abs() < 0.1,
            "{rates:?}"
        );
        app.update(counted(30, [3, 0]));
        assert_eq!(app.rates[0].unwrap(), Rates::default());
    }
}
