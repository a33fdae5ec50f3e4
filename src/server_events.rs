//! Passes the server's events on to the node.
//!
//! Some events arrive while the node is busy, for example when it opens a key that has expired.
//! They are queued until the node fetches them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::CStr;

use quorlock_core::node::{Access, KeyBytes, KeyEvent, ServerEvent};

use crate::ffi::{Arg, Ctx, Key, LogLevel, MainThread, clock};
use crate::module::{self, State};

static PENDING: MainThread<RefCell<VecDeque<ServerEvent>>> =
    MainThread::new(RefCell::new(VecDeque::new()));

/// Name and key of the keyspace event that the node is sending about its own write.
static OWN: MainThread<RefCell<Option<(&'static CStr, KeyBytes)>>> =
    MainThread::new(RefCell::new(None));

/// Handles the keyspace event `name` about `key`. `event` is what the name means.
pub(crate) fn handle_key_event(ctx: &Ctx<'_>, name: &CStr, event: KeyEvent, key: Arg<'_>) {
    let own_event = OWN
        .get()
        .borrow_mut()
        .take_if(|(own, own_key)| *own == name && own_key.as_bytes() == key.as_bytes());
    if own_event.is_some() {
        return;
    }
    if module::with(|state| state.node.has_keys()) == Some(false) {
        return;
    }
    let db = ctx.db();
    let event = match event {
        KeyEvent::ExpirySet { .. } => {
            if module::with(|state| state.node.concerns(db, key.as_bytes())) == Some(false) {
                return;
            }
            // Within a keyspace event only the length of a value is safe to read.
            KeyEvent::ExpirySet { value_bytes: Key::open(ctx, key, Access::Read).value_bytes() }
        }
        event => event,
    };
    let handle = |state: &mut State| {
        state.node.handle_key_event(clock::monotonic(), db, key.as_bytes(), event);
    };
    if module::with(handle).is_none() {
        postpone(ServerEvent::Key { db, key: KeyBytes::new(key.as_bytes()), event });
    }
}

/// Handles the removal of a value of this length; zero if it is no string. `event` says why Valkey
/// removes the value; `None` if another value replaces it.
pub(crate) fn handle_removal(
    ctx: &Ctx<'_>,
    event: Option<KeyEvent>,
    key: Arg<'_>,
    value_bytes: usize,
) {
    let db = ctx.db();
    if module::with(|state| state.node.concerns(db, key.as_bytes())) == Some(false) {
        return;
    }
    // The length tells a mirror from a value that an operator wrote before, for example with
    // APPEND. After an overwrite, the node checks the new value before the turn ends.
    let is_deleted = event == Some(KeyEvent::Removed);
    let length = (!is_deleted).then_some(KeyEvent::ExpirySet { value_bytes: Some(value_bytes) });
    for event in length.into_iter().chain(event) {
        let key = KeyBytes::new(key.as_bytes());
        handle_event(ServerEvent::Key { db, key, event });
    }
}

/// Passes an event to the node: now, or when the node is no longer busy.
pub(crate) fn handle_event(event: ServerEvent) {
    if module::with(|state| state.node.handle_event(clock::now(), &event)).is_none() {
        postpone(event);
    }
}

pub(crate) fn handle_and_log(ctx: &Ctx<'_>, event: ServerEvent) {
    handle_event(event);
    log_abstention(ctx);
}

fn postpone(event: ServerEvent) {
    if module::is_loaded() {
        PENDING.get().borrow_mut().push_back(event);
    }
}

pub(crate) fn take_pending() -> Option<ServerEvent> {
    PENDING.get().borrow_mut().pop_front()
}

/// Runs `notify`, which sends one keyspace event. This module ignores that event.
///
/// It still handles the events that other modules send in reaction.
pub(crate) fn send_own(name: &'static CStr, key: Arg<'_>, notify: impl FnOnce()) {
    *OWN.get().borrow_mut() = Some((name, KeyBytes::new(key.as_bytes())));
    notify();
    *OWN.get().borrow_mut() = None;
}

pub(crate) fn log_abstention(ctx: &Ctx<'_>) {
    let abstention = module::with(|state| state.node.abstention(clock::monotonic()));
    let Some(Some((reason, left_ms))) = abstention else { return };
    let line = match left_ms {
        Some(ms) => format!(
            "lock: abstaining for {ms} ms ({reason}): locks granted earlier may still be held. \
             Meanwhile LOCK.ACQUIRE replies -ABSTAIN; LOCK.EXTEND and LOCK.RELEASE work"
        ),
        None => "lock: abstaining while this server is a replica: it grants, extends and releases \
                 no locks"
            .to_owned(),
    };
    ctx.log(LogLevel::Notice, &line);
}
