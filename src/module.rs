//! The state of the loaded module.

use std::cell::{RefCell, RefMut};
use std::hash::{BuildHasher, RandomState};

use quorlock_core::Ttl;
use quorlock_core::node::{Node, ServerEvent, Settings, WriteConditions};
use quorlock_core::node_set::NodeSet;

use crate::ffi::{Args, Ctx, LogLevel, MainThread, Timer, clock};
use crate::{config, server_events};

/// The module's version, as `MODULE LIST` shows it: major × 10,000 + minor × 100 + patch.
pub(crate) const VERSION: i32 = 10_000 * number(env!("CARGO_PKG_VERSION_MAJOR"))
    + 100 * number(env!("CARGO_PKG_VERSION_MINOR"))
    + number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(digits: &str) -> i32 {
    let Ok(number) = i32::from_str_radix(digits, 10) else {
        panic!("a part of a version is a number")
    };
    number
}

/// The fence counters fit a processor's cache, and two keys seldom share a counter.
const FENCE_STRIPES: usize = 16_384;

/// Per hash table. Shards grow one at a time, so growth never stalls the server.
const TABLE_SHARDS: usize = 256;

static STATE: MainThread<RefCell<Option<State>>> = MainThread::new(RefCell::new(None));

pub(crate) struct State {
    pub(crate) node: Node,
    pub(crate) timer: Timer,
    pub(crate) set: Option<NodeSet>,
    /// Whether to check `maxmemory-policy` at the end of this turn, and warn if it evicts keys.
    pub(crate) check_eviction_policy: bool,
    /// Whether to read `write_conditions` at the end of this turn.
    pub(crate) read_write_conditions: bool,
    pub(crate) write_conditions: WriteConditions,
}

/// On failure logs the reason and returns false.
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
        table_shards: TABLE_SHARDS,
        hash_seed: RandomState::new().hash_one(0),
        defer_wakes: ctx.drops_replies_of_the_unblocked(),
    };
    let now = clock::now();
    let mut node = Node::new(settings, now);
    if ctx.is_only_module() {
        node.declare_only_module();
    }
    if ctx.is_replica() {
        node.handle_event(now, &ServerEvent::Demoted);
    }
    let Some(timer) = Timer::new() else { return fail("no file descriptor is left for a timer") };
    let set = config::node_set();
    if let Some(set) = &set {
        let line =
            format!("lock: this is node {} of the set {}: {}", set.id(), set.name(), set.members());
        ctx.log(LogLevel::Notice, &line);
    }
    *STATE.get().borrow_mut() = Some(State {
        node,
        timer,
        set,
        check_eviction_policy: true,
        read_write_conditions: true,
        write_conditions: WriteConditions::default(),
    });
    if config::rejoin_delay_ms() < config::max_ttl().ms() {
        ctx.log(
            LogLevel::Warning,
            "lock: lock.rejoin-delay is below lock.max-ttl: a lock granted before this start may be granted again \
             while it is held. That is safe only for a brand-new server",
        );
    }
    server_events::log_abstention(ctx);
    ctx.log(
        LogLevel::Notice,
        &format!("lock: ready; the largest ttl is {} ms", config::max_ttl().ms()),
    );
    true
}

/// Drops the state. If the node would forget locks, logs that and returns false instead.
pub(crate) fn stop(ctx: &Ctx<'_>) -> bool {
    if with(|state| state.node.can_unload(clock::monotonic())) == Some(false) {
        ctx.log(
            LogLevel::Warning,
            "lock: not unloaded: only this module knows some of the locks (shared locks, and locks whose \
             keys were evicted or expired by a step of the clock), or the keys of ended locks are not \
             removed yet. Try again in a second, or when the shared locks have ended",
        );
        return false;
    }
    *STATE.get().borrow_mut() = None;
    true
}

pub(crate) fn state() -> RefMut<'static, State> {
    RefMut::map(STATE.get().borrow_mut(), |state| {
        state.as_mut().expect("commands run only while the module is loaded")
    })
}

/// Runs `f` on the state. Returns `None` if the module is not loaded, or if the state is in use.
pub(crate) fn with<T>(f: impl FnOnce(&mut State) -> T) -> Option<T> {
    STATE.get().try_borrow_mut().ok()?.as_mut().map(f)
}

pub(crate) fn is_loaded() -> bool {
    // While the state is in use, the module is loaded.
    STATE.get().try_borrow().map_or(true, |state| state.is_some())
}

pub(crate) fn max_ttl() -> Ttl {
    state().node.max_ttl()
}
