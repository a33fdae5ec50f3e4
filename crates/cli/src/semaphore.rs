//! `quorlock inspect --permits N NAME`: a semaphore as a whole.

use std::fmt::Write as _;
use std::process::ExitCode;

use quorlock_client::{InspectError, Inspection, Quorum, WaiterInfo};
use serde::Serialize;

use crate::inspect::{Kind, PrintedKey, PrintedWaiter, Summary, named};
use crate::shown::{self, escaped, table, time, with_plural};
use crate::{exit, say};

/// What the nodes say about the slots of a semaphore.
struct Semaphore<'a> {
    name: &'a [u8],
    permits: usize,
    /// Each slot that counts, with its key.
    slots: Vec<(&'a [u8], Summary<'a>)>,
    /// The number of permits that some other client uses at least, if that is larger.
    larger: Option<usize>,
    waiters: u64,
    queue: Vec<&'a WaiterInfo>,
}

pub(crate) async fn inspect(
    quorum: &Quorum,
    name: &[u8],
    permits: u8,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let slots = match quorum.inspect_semaphore(name).await {
        Ok(slots) => slots,
        Err(error @ InspectError::NoAnswer { .. }) => {
            say(error);
            return Ok(ExitCode::from(exit::NO_MAJORITY));
        }
        Err(error) => return Err(error.into()),
    };
    let semaphore = Semaphore::new(name, permits.into(), &slots);
    if json {
        shown::print(&(shown::json(&Printed::new(&semaphore))? + "\n"));
    } else {
        shown::print(&semaphore.text());
    }
    if let Some(larger) = semaphore.larger {
        warn(name, permits.into(), larger);
    }
    Ok(ExitCode::from(semaphore.code()))
}

/// Warns of a client with a larger number of permits.
pub(crate) fn warn(name: &[u8], permits: usize, larger: usize) {
    say(format_args!(
        "warning: another client of {} uses at least {larger} permits, so that more than {permits} may be \
         held: give the same number everywhere",
        escaped(name)
    ));
}

impl<'a> Semaphore<'a> {
    /// `slots` are all that a semaphore may have.
    fn new(name: &'a [u8], permits: usize, slots: &'a [(Vec<u8>, Inspection)]) -> Self {
        let is_used = |inspection: &Inspection| {
            inspection.nodes.iter().any(|node| matches!(node.lease, Ok(Some(_))))
        };
        let last = slots.iter().rposition(|(_, inspection)| is_used(inspection));
        let larger = last.map(|last| last + 1).filter(|larger| *larger > permits);
        // Also those of clients with a larger number: they count for the whole as well.
        let shown = &slots[..larger.unwrap_or(permits).min(slots.len())];
        let (waiters, queue) = waiters(shown);
        let slots = shown.iter().map(|(key, slot)| (&**key, Summary::of(slot))).collect();
        Self { name, permits, slots, larger, waiters, queue }
    }

    fn held(&self) -> usize {
        let is_held = |kind: Kind| matches!(kind, Kind::Held | Kind::Revoked | Kind::Foreign);
        self.slots.iter().filter(|(_, slot)| is_held(slot.kind)).count()
    }

    fn code(&self) -> u8 {
        let is_unknown = |kind: Kind| matches!(kind, Kind::NoMajority | Kind::Divided);
        match self.held() {
            0 if self.slots.iter().any(|(_, slot)| is_unknown(slot.kind)) => exit::NO_MAJORITY,
            0 => exit::FREE,
            _ => exit::SUCCESS,
        }
    }

    fn text(&self) -> String {
        let (held, permits) = (self.held(), with_plural(self.permits as u64, "permit"));
        let mut text = format!("{}: {held} of {permits} held\n", escaped(self.name));
        if self.waiters > 0 {
            let queue: Vec<_> = self.queue.iter().map(|waiter| named(waiter)).collect();
            let hidden = self.waiters.saturating_sub(queue.len() as u64);
            let more = if hidden > 0 { format!(" and {hidden} more") } else { String::new() };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  waiting  {}: {}{more}", self.waiters, queue.join(", "));
        }
        let heading = ["SLOT", "KEY", "STATE", "FENCE", "HELD FOR", "ENDS IN"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        for (index, (key, slot)) in self.slots.iter().enumerate() {
            let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            rows.push(vec![
                index.to_string(),
                escaped(key),
                slot.headline(),
                or_none(slot.held.map(|held| held.fence.to_string())),
                or_none(slot.since.map(time)),
                or_none(slot.held.map(|held| time(held.at_most))),
            ]);
        }
        text + &table(&rows)
    }
}

/// How many clients wait for a permit, and the first of them. A client waits on one node, in the
/// queue of every slot that it accepts.
fn waiters(slots: &[(Vec<u8>, Inspection)]) -> (u64, Vec<&WaiterInfo>) {
    let (mut waiters, mut queue) = (0, Vec::new());
    let nodes = slots.first().map_or(0, |(_, slot)| slot.nodes.len());
    for node in 0..nodes {
        let on_node =
            || slots.iter().filter_map(|(_, slot)| slot.nodes[node].lease.as_ref().ok()?.as_ref());
        waiters += on_node().map(|lease| lease.waiters).max().unwrap_or(0);
        if let Some(longest) = on_node().max_by_key(|lease| lease.queue.len()) {
            queue.extend(&longest.queue);
        }
    }
    (waiters, queue)
}

/// What `--json` prints. Times are in milliseconds.
#[derive(Serialize)]
struct Printed<'a> {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    permits: usize,
    held: usize,
    /// The number of permits that some client uses at least, if it is larger.
    larger_permits: Option<usize>,
    waiters: u64,
    queue: Vec<PrintedWaiter<'a>>,
    slots: Vec<PrintedKey<'a>>,
}

impl<'a> Printed<'a> {
    fn new(semaphore: &Semaphore<'a>) -> Self {
        Self {
            name: String::from_utf8_lossy(semaphore.name).into_owned(),
            name_hex: shown::key_hex(semaphore.name),
            permits: semaphore.permits,
            held: semaphore.held(),
            larger_permits: semaphore.larger,
            waiters: semaphore.waiters,
            queue: semaphore.queue.iter().map(|waiter| PrintedWaiter::new(waiter)).collect(),
            slots: semaphore.slots.iter().map(|(key, slot)| PrintedKey::new(key, slot)).collect(),
        }
    }
}
