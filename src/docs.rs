//! The table of the commands: their handlers, and their descriptions for `COMMAND DOCS`,
//! `LOCK.HELP` and redis-cli's hints.

use std::ffi::CStr;

use redis_module::commands::KeySpecFlags;

use crate::commands;
use crate::ffi::command::{ArgKind, ArgSpec, Command, Keys, Users};

const LOGARITHMIC: &CStr = c"O(1) without waiters, O(log N) with N waiting clients";
const FOR_EACH_KEY: &CStr = c"O(K) for K keys without waiters, O(K log N) with N waiting clients";
const SINCE: &CStr = c"0.1.0";

const KEY: ArgSpec =
    ArgSpec { name: c"key", kind: ArgKind::Key, summary: c"The lock", option: None };
const NUMKEYS: ArgSpec = ArgSpec {
    name: c"numkeys",
    kind: ArgKind::Integer,
    summary: c"How many keys follow: 1 to 64",
    option: None,
};
const KEYS: ArgSpec = ArgSpec {
    name: c"key",
    kind: ArgKind::Keys,
    summary: c"The keys of the lock, in any order; a repeated key counts once",
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
    summary: c"How long the lock lasts from now, in milliseconds: 1 to lock.max-ttl",
    option: None,
};
const FENCE: ArgSpec = ArgSpec {
    name: c"n",
    kind: ArgKind::Integer,
    summary: c"The fence on which a quorum client has agreed",
    option: Some(c"FENCE"),
};
const TICKET: ArgSpec = ArgSpec {
    summary: c"The ticket of a quorum client, which is also the fence that it proposes: waiters with smaller tickets come first, and 0 is the front of the queue. The request may then be repeated, and is refused with the error HELD",
    ..FENCE
};

const WAIT: ArgSpec = ArgSpec {
    name: c"wait-ms",
    kind: ArgKind::Integer,
    summary: c"How long to wait for the lock, in milliseconds; the reply to a grant then includes the microseconds waited. A token waits once on a key; with FENCE, a repeated request takes over the place of the older one",
    option: Some(c"WAIT"),
};
const OWNER: ArgSpec = ArgSpec {
    name: c"label",
    kind: ArgKind::Text,
    summary: c"The client's label, which LOCK.INSPECT shows: at most 256 bytes of UTF-8",
    option: Some(c"OWNER"),
};
const SHARED: ArgSpec = ArgSpec {
    name: c"shared",
    kind: ArgKind::Flag,
    summary: c"Allows other holders of the key at the same time, if they use SHARED too",
    option: Some(c"SHARED"),
};
const MAKE_SHARED: ArgSpec = ArgSpec {
    summary: c"Turns an exclusive lock into a shared one, never the reverse, and grants it to waiters with SHARED",
    ..SHARED
};
const ANY_KEYS: ArgSpec = ArgSpec {
    summary:
        c"The keys in order of preference: the first free one is locked; a repeated key counts once",
    ..KEYS
};
const NEW_TOKEN: ArgSpec = ArgSpec {
    name: c"new",
    kind: ArgKind::Text,
    summary:
        c"Replaces the token, with a new fence: from then on the old token does not hold the lock",
    option: Some(c"TOKEN"),
};
const CURSOR: ArgSpec = ArgSpec {
    name: c"cursor",
    kind: ArgKind::Integer,
    summary: c"0 in the first call, and then the cursor that the last call returned",
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
    summary: c"The most locks to examine: 1 to 1000, 10 by default",
    option: Some(c"COUNT"),
};
const NOW: ArgSpec = ArgSpec {
    name: c"now",
    kind: ArgKind::Flag,
    summary: c"Ends the lock at once, as DEL does, although its holder may still rely on it",
    option: Some(c"NOW"),
};

const ACQUIRE: Command = Command {
    name: c"lock.acquire",
    run: commands::acquire,
    flags: c"write deny-oom blocking fast",
    summary: c"Acquires a lock. Returns its fence, or nil if the key is held or other clients wait for it",
    complexity: LOGARITHMIC,
    since: SINCE,
    arity: -4,
    keys: Keys::First,
    key_flags: KeySpecFlags::READ_WRITE.union(KeySpecFlags::ACCESS).union(KeySpecFlags::INSERT),
    has_token: true,
    users: Users::Programs,
    args: &[KEY, TOKEN, TTL, SHARED, WAIT, TICKET, OWNER],
};

const ACQUIRE_ALL: Command = Command {
    name: c"lock.macquire",
    flags: c"write deny-oom blocking getkeys-api",
    summary: c"Acquires several keys as one lock, all or none. Returns its fence, or nil if a key is held or other clients wait for it",
    complexity: FOR_EACH_KEY,
    arity: -5,
    keys: Keys::Counted,
    args: &[NUMKEYS, KEYS, TOKEN, TTL, WAIT, TICKET, OWNER],
    ..ACQUIRE
};

const ACQUIRE_ANY: Command = Command {
    name: c"lock.acquireany",
    run: commands::acquire_any,
    flags: c"write deny-oom blocking getkeys-api",
    summary: c"Acquires the lock of the first free key of several. Returns its fence and the key, or nil if no key is free",
    complexity: FOR_EACH_KEY,
    arity: -5,
    keys: Keys::Counted,
    args: &[NUMKEYS, ANY_KEYS, TOKEN, TTL, WAIT, TICKET, OWNER],
    ..ACQUIRE
};

const EXTEND: Command = Command {
    name: c"lock.extend",
    run: commands::extend,
    flags: c"write fast",
    summary: c"Extends a held lock. Returns its fence, or nil if the token does not hold it",
    key_flags: KeySpecFlags::READ_WRITE.union(KeySpecFlags::ACCESS).union(KeySpecFlags::UPDATE),
    args: &[KEY, TOKEN, TTL, MAKE_SHARED, FENCE, NEW_TOKEN],
    ..ACQUIRE
};

const EXTEND_ALL: Command = Command {
    name: c"lock.mextend",
    flags: c"write getkeys-api",
    summary:
        c"Extends a held lock of several keys. Returns its fence, or nil if the token does not hold all of them",
    complexity: FOR_EACH_KEY,
    arity: -5,
    keys: Keys::Counted,
    args: &[NUMKEYS, KEYS, TOKEN, TTL, FENCE, NEW_TOKEN],
    ..EXTEND
};

const RELEASE: Command = Command {
    name: c"lock.release",
    run: commands::release,
    flags: c"write fast",
    summary: c"Releases a lock. Returns 1 if the token held it, 0 if not; safe to repeat",
    arity: 3,
    key_flags: KeySpecFlags::READ_WRITE.union(KeySpecFlags::ACCESS).union(KeySpecFlags::DELETE),
    args: &[KEY, TOKEN],
    ..ACQUIRE
};

const RELEASE_ALL: Command = Command {
    name: c"lock.mrelease",
    flags: c"write getkeys-api",
    summary:
        c"Releases each of several keys that the token holds. Returns 1 if it held any, 0 if not; safe to repeat",
    complexity: FOR_EACH_KEY,
    arity: -4,
    keys: Keys::Counted,
    args: &[NUMKEYS, KEYS, TOKEN],
    ..RELEASE
};

const YIELD: Command = Command {
    name: c"lock.yield",
    run: commands::yield_lock,
    summary: c"Releases a lock if an older client waits for it. Returns 1 if the token gave the lock up, 0 if it still holds it, or nil if it did not hold it",
    ..RELEASE
};

const YIELD_ALL: Command = Command {
    name: c"lock.myield",
    run: commands::yield_lock,
    summary: c"Releases those of several keys that the token holds, if an older client waits for one of them. Returns 1 if the token gave them up, 0 if it still holds them, or nil if it held none",
    ..RELEASE_ALL
};

const INSPECT: Command = Command {
    name: c"lock.inspect",
    run: commands::inspect,
    flags: c"readonly fast",
    summary:
        c"Describes the holder of a lock, its fence and the time left, but never its token. Returns nil if the key is free",
    complexity: c"O(1)",
    arity: 2,
    key_flags: KeySpecFlags::READ_ONLY.union(KeySpecFlags::ACCESS),
    has_token: false,
    args: &[KEY],
    ..ACQUIRE
};

const REVOKE: Command = Command {
    name: c"lock.revoke",
    run: commands::revoke,
    flags: c"write admin",
    summary: c"Revokes a lock: it can no longer be extended, and ends by its deadline. Returns 1 if there was a lock, 0 if not",
    complexity: FOR_EACH_KEY,
    arity: -2,
    key_flags: KeySpecFlags::READ_WRITE.union(KeySpecFlags::ACCESS).union(KeySpecFlags::UPDATE),
    users: Users::Operators,
    args: &[KEY, NOW],
    ..INSPECT
};

const SCAN: Command = Command {
    name: c"lock.scan",
    run: commands::scan,
    flags: c"readonly admin",
    summary: c"Lists the locks of the selected database, a slice in each call. Returns the next cursor, and for each lock its key and the fields of LOCK.INSPECT",
    complexity: c"O(1) for each call, O(N) for all of N locks",
    keys: Keys::None,
    key_flags: KeySpecFlags::empty(),
    args: &[CURSOR, MATCH, COUNT],
    ..REVOKE
};

const HELP: Command = Command {
    name: c"lock.help",
    run: commands::help,
    flags: c"fast allow-loading allow-stale",
    summary: c"Describes the commands of the module. Returns an array of lines",
    complexity: c"O(1)",
    arity: 1,
    users: Users::Programs,
    args: &[],
    ..SCAN
};

/// All commands, in the order of `LOCK.HELP`.
pub(crate) const ALL: [&Command; 13] = [
    &ACQUIRE,
    &EXTEND,
    &RELEASE,
    &YIELD,
    &ACQUIRE_ALL,
    &EXTEND_ALL,
    &RELEASE_ALL,
    &YIELD_ALL,
    &ACQUIRE_ANY,
    &INSPECT,
    &SCAN,
    &REVOKE,
    &HELP,
];

/// The reply of `LOCK.HELP`: the syntax and the purpose of each command.
///
/// Formats the lines like the HELP of the server's own commands: descriptions are indented.
pub(crate) fn help_lines() -> Vec<String> {
    let mut lines = vec!["LOCK.<command> [<arg> [value] [opt] ...]. Commands are:".to_owned()];
    for command in ALL {
        lines.push(syntax(command));
        lines.push(format!("    {}.", text(command.summary)));
    }
    lines
}

fn syntax(command: &Command) -> String {
    let args = command.args.iter().map(|arg| format!(" {}", argument(arg)));
    text(command.name).to_uppercase() + &args.collect::<String>()
}

fn argument(ArgSpec { name, kind, option, .. }: &ArgSpec) -> String {
    match (option, kind) {
        (Some(option), ArgKind::Flag) => format!("[{}]", text(option)),
        (Some(option), _) => format!("[{} <{}>]", text(option), text(name)),
        (None, ArgKind::Keys) => format!("<{0}> [<{0}> ...]", text(name)),
        (None, _) => format!("<{}>", text(name)),
    }
}

fn text(text: &CStr) -> &str {
    text.to_str().unwrap_or_default()
}
