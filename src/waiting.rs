//! The clients behind the tickets of the node's queues, and what becomes of each.
//!
//! A client is in here from the moment it is blocked until it is answered or gone. No call into the server is made
//! while the state is borrowed.

use std::collections::HashMap;

use quorlock_core::Fence;
use quorlock_core::node::Ticket;

use crate::error::CommandError;
use crate::ffi::{Blocked, Ctx, Held};
use crate::{commands, module};

pub(crate) struct Waiting {
    clients: HashMap<Ticket, Client>,
    /// Granted, and to be unblocked before the server sleeps.
    unblock_later: Vec<Ticket>,
    /// Granted to clients that were gone before they could be told: to be given back.
    abandoned: Vec<Grant>,
    /// Whether clients are unblocked only before the server sleeps. Redis 7.0 drops the answer of one that was unblocked
    /// and then, in the same turn of the loop, got a `CLIENT UNBLOCK`. Elsewhere it would only take longer.
    defers: bool,
}

struct Client {
    blocked: Blocked,
    fate: Fate,
}

enum Fate {
    Waits,
    Granted { grant: Grant, unblocked: bool },
    Dismissed(Option<CommandError>),
}

/// A lock that was handed over.
pub(crate) struct Grant {
    pub(crate) db: u32,
    /// One of its keys: what ends one ends all.
    pub(crate) key: Held,
    pub(crate) token: Held,
    pub(crate) fence: Fence,
    pub(crate) waited_us: u64,
}

impl Waiting {
    pub(crate) fn new(defers: bool) -> Self {
        Self { clients: HashMap::new(), unblock_later: Vec::new(), abandoned: Vec::new(), defers }
    }

    /// A client was blocked.
    pub(crate) fn join(&mut self, blocked: Blocked) {
        self.clients.insert(blocked.ticket(), Client { blocked, fate: Fate::Waits });
    }

    /// Grants that nobody knows of, once.
    pub(crate) fn take_abandoned(&mut self) -> Vec<Grant> {
        std::mem::take(&mut self.abandoned)
    }

    pub(crate) fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }
}

/// The lock is this client's.
pub(crate) fn grant(ticket: Ticket, grant: Grant) {
    let unblock = module::with(|state| {
        let waiting = &mut state.waiting;
        let Some(client) = waiting.clients.get_mut(&ticket) else {
            waiting.abandoned.push(grant);
            return None;
        };
        client.fate = Fate::Granted { grant, unblocked: !waiting.defers };
        if waiting.defers {
            waiting.unblock_later.push(ticket);
            return None;
        }
        Some(client.blocked)
    });
    if let Some(Some(blocked)) = unblock {
        blocked.unblock();
    }
}

/// This client waits no more: it is told nil, or an error.
pub(crate) fn dismiss(ticket: Ticket, error: Option<CommandError>) {
    let unblock = module::with(|state| {
        let client = state.waiting.clients.get_mut(&ticket)?;
        client.fate = Fate::Dismissed(error);
        Some(client.blocked)
    });
    if let Some(Some(blocked)) = unblock {
        blocked.unblock();
    }
}

/// Unblocks those that were granted a lock in this turn of the loop, where that had to wait.
pub(crate) fn unblock_deferred() {
    let unblock = module::with(|state| {
        let waiting = &mut state.waiting;
        let mut unblock = Vec::new();
        for ticket in waiting.unblock_later.drain(..) {
            if let Some(Client { blocked, fate: Fate::Granted { unblocked, .. } }) =
                waiting.clients.get_mut(&ticket)
                && !std::mem::replace(unblocked, true)
            {
                unblock.push(*blocked);
            }
        }
        unblock
    });
    unblock.into_iter().flatten().for_each(Blocked::unblock);
}

/// Answers a client that was unblocked.
pub(crate) fn reply(ctx: &Ctx<'_>, ticket: Ticket) {
    let client = module::with(|state| state.waiting.clients.remove(&ticket)).flatten();
    answer(ctx, client.map(|client| client.fate));
}

/// Answers a client whose wait somebody ended by `CLIENT UNBLOCK`.
pub(crate) fn unblocked(ctx: &Ctx<'_>, ticket: Ticket) {
    let fate = leave(ticket);
    answer(ctx, fate);
}

/// A client is gone. What it was granted, and was not told, is given back.
pub(crate) fn disconnected(ticket: Ticket) {
    if let Some(Fate::Granted { grant, .. }) = leave(ticket) {
        module::with(|state| state.waiting.abandoned.push(grant));
    }
}

/// Forgets a client whose wait the server has ended.
fn leave(ticket: Ticket) -> Option<Fate> {
    let client = module::with(|state| {
        state.node.cancel(ticket);
        state.waiting.clients.remove(&ticket)
    });
    let Client { blocked, fate } = client.flatten()?;
    if matches!(fate, Fate::Waits | Fate::Granted { unblocked: false, .. }) {
        blocked.unblock();
    }
    Some(fate)
}

fn answer(ctx: &Ctx<'_>, fate: Option<Fate>) {
    match fate {
        Some(Fate::Granted { grant, .. }) => commands::reply_granted(ctx, grant.fence, grant.waited_us),
        Some(Fate::Dismissed(Some(error))) => ctx.reply_error(&error),
        Some(Fate::Dismissed(None) | Fate::Waits) | None => ctx.reply_null(),
    }
}
