//! The text of `COMMAND DOCS` and of redis-cli's hints, which show arguments by name.

use crate::ffi::command::{ArgKind, ArgSpec, KeyFlags, Keys, Spec, Users};

const LOGARITHMIC: &std::ffi::CStr = c"O(1) without waiters, O(log N) with N clients that wait";
const FOR_EACH_KEY: &std::ffi::CStr = c"O(K) for K keys without waiters, O(K log N) with N clients that wait";
const SINCE: &std::ffi::CStr = c"0.1.0";

const KEY: ArgSpec = ArgSpec { name: c"key", kind: ArgKind::Key, summary: c"The lock", option: None };
const NUMKEYS: ArgSpec = ArgSpec {
    name: c"numkeys",
    kind: ArgKind::Integer,
    summary: c"How many keys follow: 1 to 64",
    option: None,
};
const KEYS: ArgSpec = ArgSpec {
    name: c"key",
    kind: ArgKind::Keys,
    summary: c"The keys of the lock, in any order; one that is named twice counts once",
    option: None,
};
const TOKEN: ArgSpec = ArgSpec {
    name: c"token",
    kind: ArgKind::Text,
    summary: c"Proves who holds the lock: 1 to 256 bytes, random, new for every attempt",
    option: None,
};
const TTL: ArgSpec = ArgSpec {
    name: c"ttl-ms",
    kind: ArgKind::Integer,
    summary: c"How long from now, in milliseconds: 1 to lock.max-ttl",
    option: None,
};
const FENCE: ArgSpec = ArgSpec {
    name: c"n",
    kind: ArgKind::Integer,
    summary: c"The fence that a quorum client proposes or has agreed on",
    option: Some(c"FENCE"),
};

const WAIT: ArgSpec = ArgSpec {
    name: c"wait-ms",
    kind: ArgKind::Integer,
    summary: c"How long to wait for the lock, in milliseconds; the reply is then the fence and the microseconds waited",
    option: Some(c"WAIT"),
};
const OWNER: ArgSpec = ArgSpec {
    name: c"label",
    kind: ArgKind::Text,
    summary: c"Who asks, for LOCK.INSPECT to show: at most 256 bytes of UTF-8",
    option: Some(c"OWNER"),
};
const SHARED: ArgSpec = ArgSpec {
    name: c"shared",
    kind: ArgKind::Flag,
    summary: c"Others may hold the lock as well, if they share it; no exclusive lock beside them",
    option: Some(c"SHARED"),
};
const SHARE: ArgSpec = ArgSpec {
    summary: c"Makes an exclusive lock a shared one, and lets in those that wait to share it; never the other way round",
    ..SHARED
};
const ANY_KEYS: ArgSpec = ArgSpec {
    summary: c"The keys, of which the first that is free is locked; one that is named twice counts once",
    ..KEYS
};
const NEW_TOKEN: ArgSpec = ArgSpec {
    name: c"new",
    kind: ArgKind::Text,
    summary: c"Hands the lock over: from then on only this token holds it, with a new fence",
    option: Some(c"TOKEN"),
};
const CURSOR: ArgSpec = ArgSpec {
    name: c"cursor",
    kind: ArgKind::Integer,
    summary: c"Where to go on: 0 at first, and then what the last call returned",
    option: None,
};
const MATCH: ArgSpec = ArgSpec {
    name: c"pattern",
    kind: ArgKind::Pattern,
    summary: c"Lists only keys that match, as in SCAN: at most 255 bytes",
    option: Some(c"MATCH"),
};
const COUNT: ArgSpec = ArgSpec {
    name: c"count",
    kind: ArgKind::Integer,
    summary: c"How many locks to look at: 1 to 1000, 10 by default",
    option: Some(c"COUNT"),
};
const NOW: ArgSpec = ArgSpec {
    name: c"now",
    kind: ArgKind::Flag,
    summary: c"Ends the lock at once, as DEL does, although its holder relies on it",
    option: Some(c"NOW"),
};

pub(crate) const ACQUIRE: Spec = Spec {
    name: c"lock.acquire",
    flags: c"write deny-oom blocking fast",
    summary: c"Takes a lock: its fence when granted, nil when another holds it",
    complexity: LOGARITHMIC,
    since: SINCE,
    arity: -4,
    keys: Keys::First,
    key: KeyFlags::READ_WRITE.union(KeyFlags::ACCESS).union(KeyFlags::INSERT),
    has_token: true,
    users: Users::Programs,
    args: &[KEY, TOKEN, TTL, SHARED, WAIT, FENCE, OWNER],
};

pub(crate) const ACQUIRE_ALL: Spec = Spec {
    name: c"lock.macquire",
    flags: c"write deny-oom blocking getkeys-api",
    summary: c"Takes several keys as one lock, all or none: its fence when granted, nil when another holds one of them",
    complexity: FOR_EACH_KEY,
    arity: -5,
    keys: Keys::Counted,
    args: &[NUMKEYS, KEYS, TOKEN, TTL, WAIT, FENCE, OWNER],
    ..ACQUIRE
};

pub(crate) const ACQUIRE_ANY: Spec = Spec {
    name: c"lock.acquireany",
    flags: c"write deny-oom blocking getkeys-api",
    summary: c"Takes the lock of the first of several keys that is free: its fence and the key, nil when others hold all of them",
    complexity: FOR_EACH_KEY,
    arity: -5,
    keys: Keys::Counted,
    args: &[NUMKEYS, ANY_KEYS, TOKEN, TTL, WAIT, FENCE, OWNER],
    ..ACQUIRE
};

pub(crate) const EXTEND: Spec = Spec {
    name: c"lock.extend",
    flags: c"write fast",
    summary: c"Moves the end of a held lock forward: its fence, or nil when the token does not hold it",
    complexity: LOGARITHMIC,
    since: SINCE,
    arity: -4,
    keys: Keys::First,
    key: KeyFlags::READ_WRITE.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE),
    has_token: true,
    users: Users::Programs,
    args: &[KEY, TOKEN, TTL, SHARE, FENCE, NEW_TOKEN],
};

pub(crate) const EXTEND_ALL: Spec = Spec {
    name: c"lock.mextend",
    flags: c"write getkeys-api",
    summary: c"Moves the end of a held lock of several keys forward: its fence, or nil when the token does not hold all of them",
    complexity: FOR_EACH_KEY,
    arity: -5,
    keys: Keys::Counted,
    args: &[NUMKEYS, KEYS, TOKEN, TTL, FENCE, NEW_TOKEN],
    ..EXTEND
};

pub(crate) const RELEASE: Spec = Spec {
    name: c"lock.release",
    flags: c"write fast",
    summary: c"Gives a lock back: 1 when the token held it, 0 when not; safe to repeat",
    complexity: LOGARITHMIC,
    since: SINCE,
    arity: 3,
    keys: Keys::First,
    key: KeyFlags::READ_WRITE.union(KeyFlags::ACCESS).union(KeyFlags::DELETE),
    has_token: true,
    users: Users::Programs,
    args: &[KEY, TOKEN],
};

pub(crate) const RELEASE_ALL: Spec = Spec {
    name: c"lock.mrelease",
    flags: c"write getkeys-api",
    summary: c"Gives back whatever the token holds of several keys: 1 when there was anything, 0 when not; safe to repeat",
    complexity: FOR_EACH_KEY,
    arity: -4,
    keys: Keys::Counted,
    args: &[NUMKEYS, KEYS, TOKEN],
    ..RELEASE
};

pub(crate) const INSPECT: Spec = Spec {
    name: c"lock.inspect",
    flags: c"readonly fast",
    summary:
        c"Says who holds a lock, with which fence and for how long; nil when it is free; never the token",
    complexity: c"O(1)",
    since: SINCE,
    arity: 2,
    keys: Keys::First,
    key: KeyFlags::READ_ONLY.union(KeyFlags::ACCESS),
    has_token: false,
    users: Users::Programs,
    args: &[KEY],
};

pub(crate) const REVOKE: Spec = Spec {
    name: c"lock.revoke",
    flags: c"write admin",
    summary: c"Takes a lock back: it can no longer be extended, and ends by its deadline; 1 when there was one, 0 when not",
    complexity: FOR_EACH_KEY,
    since: SINCE,
    arity: -2,
    keys: Keys::First,
    key: KeyFlags::READ_WRITE.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE),
    has_token: false,
    users: Users::Operators,
    args: &[KEY, NOW],
};

pub(crate) const SCAN: Spec = Spec {
    name: c"lock.scan",
    flags: c"readonly admin",
    summary: c"Lists the locks of the selected database, a slice in each call: the next cursor, and what LOCK.INSPECT says of each",
    complexity: c"O(1) for each call, O(N) for all of N locks",
    since: SINCE,
    arity: -2,
    keys: Keys::None,
    key: KeyFlags::empty(),
    has_token: false,
    users: Users::Operators,
    args: &[CURSOR, MATCH, COUNT],
};

pub(crate) const HELP: Spec = Spec {
    name: c"lock.help",
    flags: c"fast allow-loading allow-stale",
    summary: c"Says what the commands of the module are: a list of lines",
    complexity: c"O(1)",
    since: SINCE,
    arity: 1,
    keys: Keys::None,
    key: KeyFlags::empty(),
    has_token: false,
    users: Users::Programs,
    args: &[],
};

/// All commands, in the order of `LOCK.HELP`.
pub(crate) const ALL: [&Spec; 11] = [
    &ACQUIRE,
    &EXTEND,
    &RELEASE,
    &ACQUIRE_ALL,
    &EXTEND_ALL,
    &RELEASE_ALL,
    &ACQUIRE_ANY,
    &INSPECT,
    &SCAN,
    &REVOKE,
    &HELP,
];
