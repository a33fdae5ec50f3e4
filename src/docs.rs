//! What `COMMAND DOCS` and the hints of redis-cli say. Arguments are shown by their names, so those are for people.

use crate::ffi::command::{ArgKind, ArgSpec, KeyFlags, Spec};

const CONSTANT: &std::ffi::CStr = c"O(1); O(log N) in the number of leases to keep their deadlines in order";
const SINCE: &std::ffi::CStr = c"0.1.0";

const KEY: ArgSpec = ArgSpec { name: c"key", kind: ArgKind::Key, summary: c"The lock", option: None };
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

pub(crate) const ACQUIRE: Spec = Spec {
    name: c"lock.acquire",
    flags: c"write deny-oom blocking fast",
    summary: c"Takes a lock: its fence when granted, nil when another holds it",
    complexity: CONSTANT,
    since: SINCE,
    arity: -4,
    key: KeyFlags::READ_WRITE.union(KeyFlags::ACCESS).union(KeyFlags::INSERT),
    args: &[
        KEY,
        TOKEN,
        TTL,
        ArgSpec {
            name: c"wait-ms",
            kind: ArgKind::Integer,
            summary: c"How long to wait for the lock, in milliseconds; the reply is then the fence and the microseconds waited",
            option: Some(c"WAIT"),
        },
        FENCE,
        ArgSpec {
            name: c"label",
            kind: ArgKind::Text,
            summary: c"Who asks, for LOCK.INSPECT to show: at most 256 bytes of UTF-8",
            option: Some(c"OWNER"),
        },
    ],
};

pub(crate) const EXTEND: Spec = Spec {
    name: c"lock.extend",
    flags: c"write fast",
    summary: c"Moves the end of a held lock forward: its fence, or nil when the token does not hold it",
    complexity: CONSTANT,
    since: SINCE,
    arity: -4,
    key: KeyFlags::READ_WRITE.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE),
    args: &[
        KEY,
        TOKEN,
        TTL,
        FENCE,
        ArgSpec {
            name: c"new",
            kind: ArgKind::Text,
            summary: c"Hands the lock over: from then on only this token holds it, with a new fence",
            option: Some(c"TOKEN"),
        },
    ],
};

pub(crate) const RELEASE: Spec = Spec {
    name: c"lock.release",
    flags: c"write fast",
    summary: c"Gives a lock back: 1 when the token held it, 0 when not; safe to repeat",
    complexity: CONSTANT,
    since: SINCE,
    arity: 3,
    key: KeyFlags::READ_WRITE.union(KeyFlags::ACCESS).union(KeyFlags::DELETE),
    args: &[KEY, TOKEN],
};

pub(crate) const INSPECT: Spec = Spec {
    name: c"lock.inspect",
    flags: c"readonly fast",
    summary:
        c"Says who holds a lock, with which fence and for how long; nil when it is free; never the token",
    complexity: c"O(1)",
    since: SINCE,
    arity: 2,
    key: KeyFlags::READ_ONLY.union(KeyFlags::ACCESS),
    args: &[KEY],
};
