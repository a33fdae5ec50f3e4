use std::marker::PhantomData;
use std::ptr::NonNull;

use quorlock_core::node::Lend;
use redis_module::raw;

use super::api::api;

/// The arguments of one command, as the server passes them: nothing is copied.
#[derive(Clone, Copy)]
pub(crate) struct Args<'a> {
    strings: &'a [*mut raw::RedisModuleString],
}

impl<'a> Args<'a> {
    /// # Safety
    /// `argv` points to `argc` strings that live as long as `'a`, as they do for the time of a command.
    pub(super) unsafe fn new(argv: *mut *mut raw::RedisModuleString, argc: i32) -> Self {
        let strings = match usize::try_from(argc) {
            // SAFETY: the caller's promise; a command has at least its name, so the pointer is not null.
            Ok(count) if count > 0 => unsafe { std::slice::from_raw_parts(argv, count) },
            _ => &[],
        };
        Self { strings }
    }

    pub(crate) fn get(&self, index: usize) -> Option<Arg<'a>> {
        let string = NonNull::new(*self.strings.get(index)?)?;
        Some(Arg { string, lives: PhantomData })
    }
}

/// A string that the server lends for the time of a call.
#[derive(Clone, Copy)]
pub(crate) struct Arg<'a> {
    string: NonNull<raw::RedisModuleString>,
    lives: PhantomData<&'a ()>,
}

impl<'a> Arg<'a> {
    /// # Safety
    /// `string` lives as long as `'a`.
    pub(super) unsafe fn new(string: NonNull<raw::RedisModuleString>) -> Self {
        Self { string, lives: PhantomData }
    }

    pub(super) fn as_ptr(self) -> *mut raw::RedisModuleString {
        self.string.as_ptr()
    }

    pub(crate) fn as_bytes(self) -> &'a [u8] {
        // SAFETY: the string lives as long as 'a, and the server does not change a string that it has passed.
        unsafe { bytes_of(self.string) }
    }

    /// One reference to the same string, to be kept.
    pub(crate) fn share(self) -> Held {
        self.keep()
    }

    /// The server's own notion of an integer: no spaces, no plus, no leading zeros, within 64 bits.
    pub(crate) fn to_integer(self) -> Option<i64> {
        let mut value = 0;
        // SAFETY: a live string and a place for the result.
        let status = unsafe { api!(RedisModule_StringToLongLong(self.string.as_ptr(), &raw mut value)) };
        (status == raw::REDISMODULE_OK as i32).then_some(value)
    }
}

impl Lend for Arg<'_> {
    type Kept = Held;

    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn keep(&self) -> Held {
        // SAFETY: a live string. Holding counts one more reference (or copies, where it cannot), so that it outlives
        // the command; no context is needed for that.
        let held = unsafe { api!(RedisModule_HoldString(std::ptr::null_mut(), self.string.as_ptr())) };
        Held { string: NonNull::new(held).expect("the server returns a string that it holds") }
    }
}

/// A string of the server that a lease keeps: shared with the argument it came from, and with the key's value.
#[derive(Debug)]
pub(crate) struct Held {
    string: NonNull<raw::RedisModuleString>,
}

impl Held {
    /// The same string, as an argument.
    pub(crate) fn lend(&self) -> Arg<'_> {
        Arg { string: self.string, lives: PhantomData }
    }

    /// One more reference to the same string.
    pub(crate) fn share(&self) -> Self {
        self.lend().keep()
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the reference that is held keeps the string alive, and the server copies a shared string before it
        // changes it.
        unsafe { bytes_of(self.string) }
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        self.share()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: gives back the one reference that `keep` took.
        unsafe { api!(RedisModule_FreeString(std::ptr::null_mut(), self.string.as_ptr())) }
    }
}

/// # Safety
/// The string lives, unchanged, as long as `'a`.
unsafe fn bytes_of<'a>(string: NonNull<raw::RedisModuleString>) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: a live string; the server returns a pointer to its `len` bytes.
    unsafe {
        let start = api!(RedisModule_StringPtrLen(string.as_ptr(), &raw mut len));
        std::slice::from_raw_parts(start.cast(), len)
    }
}
