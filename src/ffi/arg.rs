use std::ptr::NonNull;

use redis_module::{RedisString, raw};

use super::api;

/// The arguments of one command, borrowed from the server.
#[derive(Clone, Copy)]
pub(crate) struct Args<'a> {
    strings: &'a [*mut raw::RedisModuleString],
}

impl<'a> Args<'a> {
    /// # Safety
    /// `argv` points to `argc` strings that live as long as `'a`, as they do for the time of a
    /// command.
    pub(super) unsafe fn new(argv: *mut *mut raw::RedisModuleString, argc: i32) -> Self {
        let strings = match usize::try_from(argc) {
            // SAFETY: the caller's promise; a command has at least its name, so the pointer is not
            // null.
            Ok(count) if count > 0 => unsafe { std::slice::from_raw_parts(argv, count) },
            _ => &[],
        };
        Self { strings }
    }

    pub(crate) fn get(&self, index: usize) -> Option<Arg<'a>> {
        let string = NonNull::new(*self.strings.get(index)?)?;
        // SAFETY: the strings of a command live, unchanged, as long as it runs.
        Some(unsafe { Arg::new(string) })
    }

    pub(crate) fn len(&self) -> usize {
        self.strings.len()
    }
}

/// A borrowed string of the server: an argument of a call, or a string that the module made.
#[derive(Clone, Copy)]
pub(crate) struct Arg<'a> {
    string: NonNull<raw::RedisModuleString>,
    bytes: &'a [u8],
}

impl<'a> Arg<'a> {
    /// # Safety
    /// `string` lives, unchanged, as long as `'a`.
    pub(super) unsafe fn new(string: NonNull<raw::RedisModuleString>) -> Self {
        let mut len = 0;
        // SAFETY: the caller's promise; the server returns a pointer to the `len` bytes.
        let bytes = unsafe {
            let start = api!(RedisModule_StringPtrLen(string.as_ptr(), &raw mut len));
            std::slice::from_raw_parts(start.cast(), len)
        };
        Self { string, bytes }
    }

    pub(super) fn as_ptr(self) -> *mut raw::RedisModuleString {
        self.string.as_ptr()
    }

    pub(crate) fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Parses as the server does: no spaces, no plus, no leading zeros, within 64 bits.
    pub(crate) fn to_integer(self) -> Option<i64> {
        let mut value = 0;
        // SAFETY: a live string and a place for the result.
        let status =
            unsafe { api!(RedisModule_StringToLongLong(self.string.as_ptr(), &raw mut value)) };
        (status == raw::REDISMODULE_OK as i32).then_some(value)
    }
}

/// A key or a token: a string that the server lends, or one that the module made.
pub(crate) enum Name<'a> {
    Lent(Arg<'a>),
    Made(RedisString),
}

impl<'a> From<Arg<'a>> for Name<'a> {
    fn from(arg: Arg<'a>) -> Self {
        Self::Lent(arg)
    }
}

impl Name<'_> {
    /// Copies bytes into a string of the server.
    pub(crate) fn made(bytes: &[u8]) -> Self {
        Self::Made(RedisString::create_from_slice(std::ptr::null_mut(), bytes))
    }

    /// Makes 128 random bits in hexadecimal digits: a value that no client knows.
    pub(crate) fn random() -> Self {
        const DIGITS: usize = 32;
        let mut digits = [0_u8; DIGITS];
        // SAFETY: a buffer for this number of digits.
        unsafe { api!(RedisModule_GetRandomHexChars(digits.as_mut_ptr().cast(), DIGITS)) };
        Self::made(&digits)
    }

    pub(crate) fn as_arg(&self) -> Arg<'_> {
        match self {
            Self::Lent(arg) => *arg,
            // SAFETY: the server returned a string, or would have ended. The string lives as long
            // as this name, and nothing changes it: the server copies a string with several owners
            // before it changes it, and this name is one.
            Self::Made(made) => unsafe { Arg::new(NonNull::new_unchecked(made.inner)) },
        }
    }
}

impl AsRef<[u8]> for Name<'_> {
    fn as_ref(&self) -> &[u8] {
        self.as_arg().as_bytes()
    }
}
