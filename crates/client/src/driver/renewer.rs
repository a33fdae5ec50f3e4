//! One task that renews all locks of a client, each a third of its ttl after its last extension.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use quorlock_core::client::RenewalBatches;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::hold::LockInner;
use super::rounds::round;
use super::shared::Shared;
use crate::clock;

/// Timers stop while the computer sleeps, and deadlines do not.
const RENEWAL_CHECK_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Renewer {
    commands: mpsc::UnboundedSender<Command>,
}

enum Command {
    Renew(Arc<LockInner>),
    /// The next round may be due at another time: a round was decided, or a node misses the lock.
    Reschedule(u64),
    Forget(u64),
}

struct Renewing {
    shared: Weak<Shared>,
    locks: HashMap<u64, Arc<LockInner>>,
    renewals: RenewalBatches,
}

impl Renewer {
    /// Starts the task, which ends when the client is gone.
    pub(crate) fn start(runtime: &Handle, shared: Weak<Shared>) -> Self {
        let (commands, received) = mpsc::unbounded_channel();
        let renewing =
            Renewing { shared, locks: HashMap::new(), renewals: RenewalBatches::default() };
        runtime.spawn(renewing.run(received));
        Self { commands }
    }

    pub(crate) fn renew(&self, lock: &Arc<LockInner>) {
        let _ = self.commands.send(Command::Renew(Arc::clone(lock)));
    }

    pub(crate) fn reschedule(&self, lock: &LockInner) {
        let _ = self.commands.send(Command::Reschedule(lock.id));
    }

    pub(crate) fn forget(&self, lock: &LockInner) {
        let _ = self.commands.send(Command::Forget(lock.id));
    }
}

impl Renewing {
    async fn run(mut self, mut received: mpsc::UnboundedReceiver<Command>) {
        loop {
            let next =
                self.renewals.next_due().map(|at| clock::now().until(at).min(RENEWAL_CHECK_EVERY));
            tokio::select! {
                biased;
                command = received.recv() => {
                    let Some(command) = command else { return };
                    self.handle(command);
                    // All commands that have arrived are handled before anything is sent.
                    while let Ok(command) = received.try_recv() {
                        self.handle(command);
                    }
                }
                () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => {}
            }
            self.extend_due();
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Renew(lock) => {
                let id = lock.id;
                self.locks.insert(id, lock);
                self.schedule(id);
            }
            Command::Reschedule(id) => self.schedule(id),
            Command::Forget(id) => {
                self.locks.remove(&id);
                self.renewals.forget(id);
            }
        }
    }

    fn schedule(&mut self, id: u64) {
        let Some(lock) = self.locks.get(&id) else { return };
        if let Some((pause, window)) = lock.renew_in() {
            self.renewals.schedule(id, clock::now().plus(pause), window);
        } else {
            // The lock has ended, or cannot be extended any more.
            self.locks.remove(&id);
            self.renewals.forget(id);
        }
    }

    fn extend_due(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        for batch in self.renewals.take_due(clock::now()) {
            let locks = batch.iter().filter_map(|id| self.locks.get(id).cloned()).collect();
            shared.runtime.spawn(round(Arc::clone(&shared), locks));
        }
    }
}
