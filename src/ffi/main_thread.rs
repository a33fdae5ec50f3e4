use std::cell::{RefCell, RefMut};

/// State of the module. The server calls a module from its main thread alone: commands, events and timers come one at
/// a time, also with `io-threads`, which read and write sockets and run no commands.
pub(crate) struct MainThread<T>(RefCell<Option<T>>);

// SAFETY: see above; nothing in this module starts a thread, so nobody else can reach it.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    pub(crate) const fn empty() -> Self {
        Self(RefCell::new(None))
    }

    /// Fills or, with `None`, empties it.
    pub(crate) fn set(&self, value: Option<T>) {
        *self.0.borrow_mut() = value;
    }

    /// The state, while the module is loaded. No call into the server may be made while it is borrowed: the server may
    /// call back, and would find it taken.
    pub(crate) fn borrow(&self) -> RefMut<'_, T> {
        RefMut::map(self.0.borrow_mut(), |state| {
            state.as_mut().expect("commands and events come while loaded")
        })
    }

    /// The state, unless it is empty or borrowed.
    pub(crate) fn try_borrow(&self) -> Option<RefMut<'_, T>> {
        let state = self.0.try_borrow_mut().ok()?;
        RefMut::filter_map(state, Option::as_mut).ok()
    }
}
