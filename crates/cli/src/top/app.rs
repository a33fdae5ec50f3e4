//! What is on the screen, and what each key press does to it: without I/O.

use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use quorlock_client::{ListedLock, LockList};

use super::view::COLUMNS;
use crate::fleet::{NodeReport, Snapshot};
use crate::locks::{Summary, Verdict, leases};
use crate::output::{escape_short, owner};

/// The nodes and their locks at one moment.
#[derive(Debug)]
pub(super) struct Moment {
    pub(super) at: Instant,
    /// The time from the start of this gathering to the start of the next.
    pub(super) interval: Duration,
    pub(super) nodes: Snapshot,
    /// `None` if no node listed its locks.
    pub(super) locks: Option<Vec<Lock>>,
    /// Why some locks are missing, if any are.
    pub(super) problem: Option<String>,
}

/// A lock as a row. All its texts are escaped for the terminal.
#[derive(Debug)]
pub(super) struct Lock {
    pub(super) name: String,
    pub(super) owner: String,
    pub(super) state: &'static str,
    /// The time since the first node granted it; `None` if no node says.
    pub(super) held: Option<Duration>,
    /// How much longer it lasts at most; `None` if it has no known end.
    pub(super) left: Option<Duration>,
    pub(super) waiters: u64,
    /// The number of nodes that have a lease on the key.
    pub(super) nodes: usize,
    /// What the nodes answered; `None` in tests.
    pub(super) listed: Option<ListedLock>,
}

impl Lock {
    fn new(listed: ListedLock) -> Self {
        let inspection = &listed.lock;
        let summary = Summary::of(inspection);
        let leases = || leases(inspection);
        let label = match summary.held {
            Some(held) => held.owner.as_deref(),
            // A lock that is being acquired, or that was left behind.
            None => leases().find_map(|lease| lease.owner.as_deref()),
        };
        let state = match summary.verdict {
            Verdict::Held if summary.is_shared() => "shared",
            Verdict::Revoked => "revoked",
            // The lock is listed because a minority has a lease on its key.
            Verdict::Free => "minority",
            verdict => verdict.name(),
        };
        Self {
            name: escape_short(&listed.key),
            owner: match summary.held {
                Some(held) if held.holders > 1 => format!("{} +{}", owner(label), held.holders - 1),
                _ => owner(label),
            },
            state,
            held: leases().filter_map(|lease| lease.held_for).max(),
            left: match summary.held {
                Some(held) => Some(held.at_most),
                None => leases().filter_map(|lease| lease.ttl).max(),
            },
            waiters: summary.waiters,
            nodes: leases().count(),
            listed: Some(listed),
        }
    }
}

/// Returns the locks of a list, and why some are missing.
pub(super) fn rows_of(list: LockList) -> (Vec<Lock>, Option<String>) {
    let mut problems = Vec::new();
    if list.is_truncated {
        let shown = list.locks.len();
        problems.push(format!("only the first {shown} locks are shown: give a pattern"));
    }
    let failed = list.nodes.iter().filter_map(|(node, error)| Some((node, error.as_ref()?)));
    problems
        .extend(failed.map(|(node, error)| format!("{node}: {}", escape_short(error.to_string()))));
    let problem = (!problems.is_empty()).then(|| problems.join("; "));
    (list.locks.into_iter().map(Lock::new).collect(), problem)
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

#[derive(Debug, Default)]
pub(super) struct App {
    pub(super) moment: Option<Moment>,
    pub(super) locks: Vec<Lock>,
    pub(super) listed_at: Option<Instant>,
    /// Grants and refusals per second of each node; `None` unless the last two snapshots have its
    /// counters.
    pub(super) rates: Vec<Option<[f64; 2]>>,
    /// The index into [`COLUMNS`] of the column by which the locks are sorted.
    pub(super) sort: usize,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    /// Whether key presses edit the filter.
    pub(super) is_typing: bool,
    pub(super) shows_details: bool,
    /// The rows: indices of the locks that match the filter, in the order of `sort`.
    pub(super) rows: Vec<usize>,
    /// The index into `rows` of the selected lock.
    pub(super) selected: usize,
    /// The first row that is drawn.
    pub(super) first: usize,
    /// How many rows fit on the screen.
    pub(super) page: usize,
}

impl App {
    /// Handles the answers of the nodes. The selection stays on its lock.
    pub(super) fn update(&mut self, mut moment: Moment) -> Action {
        let selected = self.selected_name();
        if let Some(before) = &self.moment {
            let elapsed = moment.at.saturating_duration_since(before.at);
            self.rates = rates(&before.nodes, &moment.nodes, elapsed);
        }
        // The last list is better than none; the problem is shown with it.
        if let Some(locks) = moment.locks.take() {
            (self.locks, self.listed_at) = (locks, Some(moment.at));
        }
        self.moment = Some(moment);
        self.rebuild_rows(selected.as_deref());
        Action::Draw
    }

    pub(super) fn handle(&mut self, key: KeyEvent) -> Action {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return Action::Quit,
            KeyCode::Char('z') if is_control => return Action::Suspend,
            KeyCode::Char('l') if is_control => return Action::Reset,
            // What some terminals send for Backspace.
            KeyCode::Char('h') if is_control && self.is_typing => {
                self.type_filter(KeyCode::Backspace);
            }
            KeyCode::Char(_) if is_control => {}
            code if self.is_typing => self.type_filter(code),
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc if self.shows_details => self.shows_details = false,
            KeyCode::Esc => self.type_filter(KeyCode::Esc),
            KeyCode::Enter => {
                self.shows_details = !self.shows_details && self.selected_lock().is_some();
            }
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => {
                self.set_order((self.sort + 1) % COLUMNS.len(), self.is_reversed);
            }
            KeyCode::Char('r') => self.set_order(self.sort, !self.is_reversed),
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

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.rebuild_rows(self.selected_name().as_deref());
    }

    fn set_order(&mut self, sort: usize, is_reversed: bool) {
        (self.sort, self.is_reversed) = (sort, is_reversed);
        self.rebuild_rows(self.selected_name().as_deref());
    }

    fn select(&mut self, row: usize) {
        self.selected = row.min(self.rows.len().saturating_sub(1));
    }

    /// Filters and sorts the rows again, and selects the lock with this name among them.
    fn rebuild_rows(&mut self, selected: Option<&str>) {
        let locks = &self.locks;
        let matches =
            |lock: &Lock| lock.name.contains(&self.filter) || lock.owner.contains(&self.filter);
        self.rows = (0..locks.len()).filter(|&row| matches(&locks[row])).collect();
        self.rows.sort_by(|&a, &b| {
            let order = COLUMNS[self.sort].1(&locks[a], &locks[b]);
            let order = if self.is_reversed { order.reverse() } else { order };
            // Rows that are equal keep their places from one list to the next.
            order.then_with(|| locks[a].name.cmp(&locks[b].name))
        });
        let found =
            selected.and_then(|name| self.rows.iter().position(|&row| locks[row].name == name));
        if found.is_none() {
            // The lock of the details is gone.
            self.shows_details = false;
        }
        self.select(found.unwrap_or(self.selected));
    }

    /// The selected lock; `None` if no row is shown.
    pub(super) fn selected_lock(&self) -> Option<&Lock> {
        self.locks.get(*self.rows.get(self.selected)?)
    }

    fn selected_name(&self) -> Option<String> {
        self.selected_lock().map(|lock| lock.name.clone())
    }
}

/// Returns grants and refusals per second of each node, if both snapshots have its counters. A
/// counter that is lower than before, as after a restart, has the rate zero.
fn rates(before: &Snapshot, now: &Snapshot, elapsed: Duration) -> Vec<Option<[f64; 2]>> {
    let of_node = |(before, now): (&NodeReport, &NodeReport)| {
        let (before, now) = (before.module()?, now.module()?);
        let rate = |name: &str| -> Option<f64> {
            let count = now.counters.get(name)?.saturating_sub(*before.counters.get(name)?);
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            (!elapsed.is_zero()).then(|| f64::from(count) / elapsed.as_secs_f64())
        };
        Some([rate("grants")?, rate("refusals")?])
    };
    before.nodes.iter().zip(&now.nodes).map(of_node).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::fleet::snapshot::tests::{module as module_of, voting};

    /// Makes a lock that was granted `held` s ago and has `left` s left.
    pub(in crate::top) fn lock(
        name: &str,
        owner: &str,
        held: u64,
        left: u64,
        waiters: u64,
    ) -> Lock {
        Lock {
            name: name.to_owned(),
            owner: owner.to_owned(),
            state: "held",
            held: Some(Duration::from_secs(held)),
            left: Some(Duration::from_secs(left)),
            waiters,
            nodes: 2,
            listed: None,
        }
    }

    pub(in crate::top) fn moment(locks: Vec<Lock>) -> Moment {
        Moment {
            at: Instant::now(),
            interval: Duration::from_secs(1),
            nodes: Snapshot::new(voting(3)),
            locks: Some(locks),
            problem: None,
        }
    }

    fn press(app: &mut App, keys: &str) {
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\x08' => KeyCode::Backspace,
                c => KeyCode::Char(c),
            };
            app.handle(code.into());
        }
    }

    fn app() -> App {
        let mut app = App { page: 10, ..App::default() };
        app.update(moment(vec![
            Lock { state: "shared", ..lock("a", "web-2", 1, 30, 0) },
            Lock { nodes: 3, ..lock("b", "web-1", 9, 10, 5) },
            Lock { nodes: 1, ..lock("c", "batch", 5, 20, 1) },
        ]));
        app
    }

    fn keys(app: &App) -> String {
        app.rows.iter().map(|&row| app.locks[row].name.as_str()).collect()
    }

    #[test]
    fn each_column_sorts_in_its_own_order() {
        let mut app = app();
        for order in ["abc", "cba", "bca", "cab", "bca", "bca", "bca"] {
            assert_eq!(keys(&app), order);
            press(&mut app, "s");
        }
        press(&mut app, "r");
        assert_eq!(keys(&app), "cba");
        press(&mut app, "rssss");
        app.update(moment(vec![
            Lock { left: None, ..lock("a", "", 1, 1, 0) },
            lock("b", "", 1, 9, 0),
        ]));
        assert_eq!(keys(&app), "ba", "a lock without a known end has the most time left");
    }

    #[test]
    fn selection_stays_on_its_lock_while_other_locks_come_and_go() {
        let mut app = app();
        let name = |app: &App| app.selected_name().unwrap_or_default();
        press(&mut app, "jsr");
        assert_eq!(name(&app), "b");
        app.update(moment(vec![lock("0", "x", 1, 1, 0), lock("b", "web-1", 9, 10, 5)]));
        assert_eq!(name(&app), "b");
        press(&mut app, "\n");
        assert!(app.shows_details);
        // The last list stays while no node answers.
        app.update(Moment { locks: None, ..moment(vec![]) });
        assert_eq!((name(&app), app.shows_details), ("b".to_owned(), true));
        app.update(moment(vec![lock("z", "x", 1, 1, 0)]));
        assert_eq!((name(&app), app.shows_details), ("z".to_owned(), false));
        app.update(moment(vec![]));
        press(&mut app, "\njk");
        assert!(!app.shows_details);
    }

    #[test]
    fn filter_matches_keys_and_owners_and_may_contain_a_q() {
        let mut app = app();
        for (typed, shown) in [("/web", "ab"), ("q", ""), ("\x08-1\n", "b"), ("\x1b", "abc")] {
            press(&mut app, typed);
            assert_eq!(keys(&app), shown, "{typed:?}");
        }
        assert!(!app.is_typing);
        press(&mut app, "/zz\x1b");
        assert_eq!(keys(&app), "abc");
    }

    #[test]
    fn rates_are_per_second_and_zero_after_a_restart() {
        let mut app = app();
        let mut count = |after_s, grants, refusals| {
            let mut next = moment(vec![]);
            next.at += Duration::from_secs(after_s);
            let mut nodes = voting(3);
            for node in &mut nodes {
                module_of(node).counters = [("grants", grants), ("refusals", refusals)].into();
            }
            next.nodes = Snapshot::new(nodes);
            app.update(next);
            app.rates[0]
        };
        assert_eq!(count(10, 100, 50), None, "the first snapshot had no counters");
        let [grants, refusals] = count(20, 200, 70).unwrap();
        assert!((grants - 10.0).abs() < 0.1 && (refusals - 2.0).abs() < 0.1);
        assert_eq!(count(30, 3, 0), Some([0.0, 0.0]));
    }
}
