/// A static that only the server's main thread uses.
///
/// The server calls a module only from that thread. Calls nest: an event may arrive during a
/// command. The threads of `io-threads` only read and write sockets.
pub(crate) struct MainThread<T>(T);

// SAFETY: see above; this module starts no thread, so no other thread can reach it.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }

    pub(crate) fn get(&self) -> &T {
        &self.0
    }
}
