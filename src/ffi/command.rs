//! Commands: their description, handler and registration.

use std::ffi::CStr;
use std::{io, ptr};

use redis_module::commands::{BeginSearch, FindKeys, KeySpec, KeySpecFlags};
use redis_module::raw;

use super::{Ctx, api, entry};
use crate::commands::Handler;

/// A command: its handler, and its description for `COMMAND`, `COMMAND DOCS`, `COMMAND GETKEYS` and
/// redis-cli.
pub(crate) struct Command {
    pub(crate) name: &'static CStr,
    pub(crate) run: Handler,
    /// The flags of the server's command table.
    pub(crate) flags: &'static CStr,
    pub(crate) summary: &'static CStr,
    pub(crate) complexity: &'static CStr,
    pub(crate) since: &'static CStr,
    /// The number of arguments, including the name; negative if more may follow.
    pub(crate) arity: i32,
    pub(crate) keys: Keys,
    /// The access of the command to its keys.
    pub(crate) key_flags: KeySpecFlags,
    /// SLOWLOG and MONITOR must not show tokens: `entry.rs` hides them.
    pub(crate) has_token: bool,
    /// The intended users decide the ACL categories.
    pub(crate) users: Users,
    pub(crate) args: &'static [ArgSpec],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Users {
    /// Programs that lock: the command is in the category of the module.
    Programs,
    /// Operators: the command is in `@admin` and `@dangerous`.
    Operators,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// The first argument is the only key.
    First,
    /// The first argument is the number of keys, which follow it.
    Counted,
    None,
}

/// An argument, as documentation and hints show it.
pub(crate) struct ArgSpec {
    pub(crate) name: &'static CStr,
    pub(crate) kind: ArgKind,
    pub(crate) summary: &'static CStr,
    /// The word that introduces an optional argument.
    pub(crate) option: Option<&'static CStr>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgKind {
    Key,
    /// One or more.
    Keys,
    Text,
    Integer,
    Pattern,
    /// Only the word of the option.
    Flag,
}

/// The ACL category of the commands for programs, on servers to which a module can add one.
const CATEGORY: &CStr = c"lock";

/// The ACL categories of the commands for operators. Redis 7.0 has none for modules.
const OPERATOR_CATEGORIES: &CStr = c"admin dangerous";

/// Adds the ACL category. Returns false if the server refuses it.
pub(super) fn register_category(ctx: &Ctx<'_>) -> bool {
    // SAFETY: the static is written only while the module is being loaded; a live context, and a
    // name that is copied.
    let added = unsafe {
        raw::RedisModule_AddACLCategory
            .is_none_or(|add| add(ctx.as_ptr(), CATEGORY.as_ptr()) == raw::REDISMODULE_OK as i32)
    };
    // The server keeps the category when it unloads the module.
    added || io::Error::last_os_error().kind() == io::ErrorKind::ResourceBusy
}

/// Adds a command to its ACL categories, if the server supports them for modules.
fn categorize(command: *mut raw::RedisModuleCommand, users: Users) -> bool {
    // SAFETY: the statics are written only while the module is being loaded; a command that was
    // just created, and names that are copied.
    unsafe {
        let categories = match (users, raw::RedisModule_AddACLCategory) {
            (Users::Programs, None) => return true,
            (Users::Programs, Some(_)) => CATEGORY,
            (Users::Operators, _) => OPERATOR_CATEGORIES,
        };
        raw::RedisModule_SetCommandACLCategories
            .is_none_or(|set| set(command, categories.as_ptr()) == raw::REDISMODULE_OK as i32)
    }
}

/// Registers a command with its documentation. Returns false if the server refuses it.
pub(super) fn register(ctx: &Ctx<'_>, command: &Command, call: entry::Call) -> bool {
    // SAFETY: a live context while the module is being loaded; the server copies the strings.
    let created = unsafe {
        let (name, flags) = (command.name.as_ptr(), command.flags.as_ptr());
        // The range of arguments that are keys. `describe` adds what a range cannot express.
        let (first, last, step) = match command.keys {
            Keys::First => (1, 1, 1),
            Keys::Counted | Keys::None => (0, 0, 0),
        };
        api!(RedisModule_CreateCommand(ctx.as_ptr(), name, Some(call), flags, first, last, step))
    };
    created == raw::REDISMODULE_OK as i32 && describe(ctx, command)
}

fn describe(ctx: &Ctx<'_>, spec: &Command) -> bool {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut args: Vec<_> = spec.args.iter().map(arg).collect();
    // SAFETY: these are plain C structures; an entry of zeroes ends such a list.
    let (end_of_args, mut key_specs) =
        unsafe { (std::mem::zeroed(), [key_spec(spec.keys, &spec.key_flags), std::mem::zeroed()]) };
    args.push(end_of_args);
    let key_specs = match spec.keys {
        Keys::None => ptr::null_mut(),
        Keys::First | Keys::Counted => key_specs.as_mut_ptr(),
    };
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: spec.summary.as_ptr(),
        complexity: spec.complexity.as_ptr(),
        since: spec.since.as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: spec.arity,
        key_specs,
        args: args.as_mut_ptr(),
    };
    // SAFETY: the command was just created by this name; the server copies all that `info` points
    // to.
    unsafe {
        let command = api!(RedisModule_GetCommand(ctx.as_ptr(), spec.name.as_ptr()));
        !command.is_null()
            && api!(RedisModule_SetCommandInfo(command, &raw const info))
                == raw::REDISMODULE_OK as i32
            && categorize(command, spec.users)
    }
}

fn arg(spec: &ArgSpec) -> raw::RedisModuleCommandArg {
    let is_key = matches!(spec.kind, ArgKind::Key | ArgKind::Keys);
    let mut flags = 0;
    if spec.option.is_some() {
        flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL as i32;
    }
    if spec.kind == ArgKind::Keys {
        flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE as i32;
    }
    raw::RedisModuleCommandArg {
        name: spec.name.as_ptr(),
        type_: match spec.kind {
            ArgKind::Key | ArgKind::Keys => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
            ArgKind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
            ArgKind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
            ArgKind::Pattern => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PATTERN,
            ArgKind::Flag => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
        },
        key_spec_index: if is_key { 0 } else { -1 },
        token: spec.option.map_or(ptr::null(), CStr::as_ptr),
        summary: spec.summary.as_ptr(),
        since: ptr::null(),
        flags,
        deprecated_since: ptr::null(),
        subargs: ptr::null_mut(),
        display_text: ptr::null(),
    }
}

fn key_spec(keys: Keys, flags: &KeySpecFlags) -> raw::RedisModuleCommandKeySpec {
    let find_keys = match keys {
        Keys::First | Keys::None => FindKeys::new_range(0, 1, 0),
        // These indices count from the argument at which the search begins.
        Keys::Counted => FindKeys::new_keys_num(0, 1, 1),
    };
    let flags = KeySpecFlags::from_bits_retain(flags.bits());
    raw::RedisModuleCommandKeySpec::from(&KeySpec::new(
        None,
        flags,
        BeginSearch::new_index(1),
        find_keys,
    ))
}
