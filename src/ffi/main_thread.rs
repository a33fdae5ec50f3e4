/// A static that only the server's main thread uses. The server calls a module from that thread
/// alone: commands, events and timers come one at a time, also with `io-threads`, which read and
/// write sockets and run no commands.
pub(crate) struct MainThread<T>(T);

// SAFETY: see above; nothing in this module starts a thread, so no other thread can reach it.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }

    pub(crate) fn get(&self) -> &T {
        &self.0
    }
}
