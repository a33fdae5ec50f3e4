//! The module's state while it is loaded.

use std::cell::RefMut;
use std::hash::{BuildHasher, RandomState};

use quorlock_core::Ttl;
use quorlock_core::node::{Node, Settings};

use crate::audience::Audience;
use crate::ffi::{Args, Ctx, Held, LogLevel, MainThread, Timer, clock};
use crate::waiting::Waiting;
use crate::{config, observe};

/// The module's version, as `MODULE LIST` shows it: major × 10,000 + minor × 100 + patch.
pub(crate) const VERSION: i32 = 100;

/// A fixed number of fence counters: so few that they stay in a processor's cache, and so many that keys seldom share one.
const FENCE_STRIPES: usize = 16_384;

static STATE: MainThread<State> = MainThread::empty();

pub(crate) struct State {
    pub(crate) node: Node<Held>,
    pub(crate) audience: Audience,
    pub(crate) timer: Timer,
    pub(crate) waiting: Waiting,
    /// The keyspace event that is being sent is about a write of our own.
    pub(crate) own_write: bool,
    pub(crate) look_at_eviction_policy: bool,
}

/// Begins. False, with the reason in the server's log, when this cannot be.
pub(crate) fn start(ctx: &Ctx<'_>, args: Args<'_>) -> bool {
    let fail = |why: &str| {
        ctx.log(LogLevel::Warning, &format!("lock: not loaded: {why}"));
        false
    };
    if ctx.is_cluster() {
        return fail(
            "this server is in cluster mode, where a slot can move to a server that does not know its locks. Use \
             independent masters",
        );
    }
    if let Err(error) = config::load(ctx, args) {
        return fail(&error.to_string());
    }
    let settings = Settings {
        max_ttl: config::max_ttl(),
        rejoin_delay_ms: config::rejoin_delay_ms(),
        max_clock_skew_ms: config::max_clock_skew_ms(),
        max_waiters: config::max_waiters(),
        fence_stripes: FENCE_STRIPES,
        hash_seed: RandomState::new().hash_one(0),
    };
    let mut node = Node::new(settings, clock::now());
    if ctx.is_replica() {
        node.demote();
    }
    let Some(timer) = Timer::new() else { return fail("no file descriptor is left for a timer") };
    STATE.set(Some(State {
        node,
        audience: Audience::new(ctx.is_only_module()),
        timer,
        waiting: Waiting::new(ctx.drops_replies_of_the_unblocked()),
        own_write: false,
        look_at_eviction_policy: true,
    }));
    if config::rejoin_delay_ms() < config::max_ttl().ms() {
        ctx.log(
            LogLevel::Warning,
            "lock: lock.rejoin-delay is below lock.max-ttl: a lock granted before this start may be granted again \
             while it is held. That is right only for a server that is brand-new",
        );
    }
    observe::log_abstention(ctx);
    ctx.log(LogLevel::Notice, &format!("lock: ready; the largest ttl is {} ms", config::max_ttl().ms()));
    true
}

/// Ends. False, with the reason in the server's log, while locks would be forgotten by it.
pub(crate) fn stop(ctx: &Ctx<'_>) -> bool {
    if with(|state| state.node.lacks_mirrors()) == Some(true) {
        ctx.log(
            LogLevel::Warning,
            "lock: not unloaded: there are locks whose keys were evicted, or expired by a step of the clock, so that \
             only this module knows of them. Try again in a second",
        );
        return false;
    }
    STATE.set(None);
    true
}

/// The state. Not to be held across a call into the server: see [`MainThread::borrow`].
pub(crate) fn state() -> RefMut<'static, State> {
    STATE.borrow()
}

/// Does something with the state, unless it is not there (before a start, after a stop) or in use.
pub(crate) fn with<T>(what: impl FnOnce(&mut State) -> T) -> Option<T> {
    STATE.try_borrow().map(|mut state| what(&mut state))
}

pub(crate) fn max_ttl() -> Ttl {
    state().node.max_ttl()
}
