//! `quorlock inspect --permits N NAME`: all slots of a semaphore.

use std::fmt::Write as _;
use std::process::ExitCode;

use quorlock_client::{Inspection, Quorum, WaiterInfo};
use serde::Serialize;

use crate::inspect::{
    KeyJson, Summary, WaiterJson, answers, lease_of, leases, longest_queue, waiters_text,
};
use crate::output::{self, escape_short, or_dash, table, time, with_plural};
use crate::{exit, say};

struct Semaphore<'a> {
    name: &'a [u8],
    permits: usize,
    /// The key of each slot that is shown, and the state of its lock.
    slots: Vec<(&'a [u8], Summary<'a>)>,
    /// A lower bound for the permits that another client gives this semaphore; `None` if no client
    /// gives more than `permits`, as far as the nodes show.
    larger_permits: Option<usize>,
    /// A lower bound for the number of clients that wait.
    waiters: u64,
    queue: Vec<&'a WaiterInfo>,
}

pub(crate) async fn inspect(
    quorum: &Quorum,
    name: &[u8],
    permits: u8,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let slots = match answers(quorum.inspect_semaphore(name).await, "")? {
        Ok(slots) => slots,
        Err(code) => return Ok(code),
    };
    let semaphore = Semaphore::new(name, permits.into(), &slots);
    if json {
        output::print(&(output::json(&Printed::new(&semaphore))? + "\n"));
    } else {
        output::print(&semaphore.text());
    }
    if let Some(larger_permits) = semaphore.larger_permits {
        warn_of_larger(name, permits.into(), larger_permits);
    }
    Ok(ExitCode::from(semaphore.code()))
}

pub(crate) fn warn_of_larger(name: &[u8], permits: usize, larger_permits: usize) {
    say(format_args!(
        "warning: another client gives {} at least {larger_permits} permits, so more than {permits} \
         can be held at once: use the same `--permits` everywhere",
        escape_short(name)
    ));
}

impl<'a> Semaphore<'a> {
    /// Takes the keys and inspections of all 64 slots, also of the slots beyond `permits`.
    fn new(name: &'a [u8], permits: usize, slots: &'a [(Vec<u8>, Inspection)]) -> Self {
        let last = slots.iter().rposition(|(_, slot)| leases(slot).next().is_some());
        let larger_permits = last.map(|last| last + 1).filter(|used| *used > permits);
        // Includes the slots of clients with more permits, so that `held` counts them too.
        let shown = &slots[..larger_permits.unwrap_or(permits).min(slots.len())];
        let (waiters, queue) = waiters(shown);
        let slots = shown.iter().map(|(key, slot)| (&**key, Summary::of(slot))).collect();
        Self { name, permits, slots, larger_permits, waiters, queue }
    }

    /// Returns how many slots have this exit code.
    fn count(&self, code: u8) -> usize {
        self.slots.iter().filter(|(_, slot)| slot.code() == code).count()
    }

    fn held(&self) -> usize {
        self.count(exit::SUCCESS)
    }

    /// Returns the first of these codes that a slot has: held, failed, unknown, free.
    fn code(&self) -> u8 {
        let codes = [exit::SUCCESS, exit::FAILED, exit::NO_MAJORITY];
        codes.into_iter().find(|code| self.count(*code) > 0).unwrap_or(exit::FREE)
    }

    fn text(&self) -> String {
        let (held, permits) = (self.held(), with_plural(self.permits as u64, "permit"));
        let mut text = format!("{}: {held} of {permits} held\n", escape_short(self.name));
        if self.waiters > 0 {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  waiting  {}", waiters_text(self.waiters, &self.queue));
        }
        let heading = ["SLOT", "KEY", "STATE", "FENCE", "HELD FOR", "ENDS IN"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        for (index, (key, slot)) in self.slots.iter().enumerate() {
            rows.push(vec![
                index.to_string(),
                escape_short(key),
                slot.headline(),
                or_dash(slot.held.map(|held| held.fence.to_string())),
                or_dash(slot.held_for.map(time)),
                or_dash(slot.held.map(|held| time(held.at_most))),
            ]);
        }
        text + &table(&rows)
    }
}

/// Returns a lower bound for the number of clients that wait, and the clients that a node lists.
///
/// A client stands in line on every node that it reaches, and there in the queue of every slot that
/// it accepts. Therefore only the longest queue counts. A client that waits only in shorter ones is
/// not counted.
fn waiters(slots: &[(Vec<u8>, Inspection)]) -> (u64, Vec<&WaiterInfo>) {
    let nodes = || slots.iter().flat_map(|(_, slot)| &slot.nodes);
    let leases = || nodes().filter_map(|node| lease_of(node));
    (leases().map(|lease| lease.waiters).max().unwrap_or(0), longest_queue(leases()))
}

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    permits: usize,
    held: usize,
    /// As in [`Semaphore`].
    larger_permits: Option<usize>,
    waiters: u64,
    queue: Vec<WaiterJson<'a>>,
    slots: Vec<KeyJson<'a>>,
}

impl<'a> Printed<'a> {
    fn new(semaphore: &Semaphore<'a>) -> Self {
        Self {
            name: String::from_utf8_lossy(semaphore.name).into_owned(),
            name_hex: output::key_hex(semaphore.name),
            permits: semaphore.permits,
            held: semaphore.held(),
            larger_permits: semaphore.larger_permits,
            waiters: semaphore.waiters,
            queue: semaphore.queue.iter().map(|waiter| WaiterJson::new(waiter)).collect(),
            slots: semaphore.slots.iter().map(|(key, slot)| KeyJson::new(key, slot)).collect(),
        }
    }
}
