use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{Answer, Context, Failure, NodeError, Reason, Shard, Spec, Token};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lock::LockInner;
use super::shared::Shared;

/// A call that its caller awaits. Dropped before its end, it releases the lock in the background.
struct Calling<'a> {
    shared: &'a Arc<Shared>,
    index: usize,
    number: u64,
    /// Whether the caller has the lock, or knows that it has none.
    is_over: bool,
}

/// Acquires a lock within `wait`; `None` is no limit.
pub(crate) async fn acquire(
    shared: &Arc<Shared>,
    spec: Spec,
    wait: Option<Duration>,
) -> Result<Arc<LockInner>, Failure> {
    run(shared, spec, |shard, spec, ctx| shard.call(spec, wait, ctx)).await
}

/// Swaps the token of a lock that another process detached.
pub(crate) async fn attach(
    shared: &Arc<Shared>,
    spec: Spec,
    old: Token,
) -> Result<Arc<LockInner>, Failure> {
    run(shared, spec, |shard, spec, ctx| shard.attach(spec, old, ctx)).await
}

async fn run(
    shared: &Arc<Shared>,
    spec: Spec,
    begin: impl FnOnce(&mut Shard, Arc<Spec>, &mut Context<'_>) -> u64,
) -> Result<Arc<LockInner>, Failure> {
    let (started, index) = (Instant::now(), shared.shard_of(spec.name()));
    let (result, ended) = oneshot::channel();
    let number = shared.with_shard(index, |state, ctx| {
        let number = begin(&mut state.machines, Arc::new(spec), ctx);
        // Dropped if the runtime has ended: no timer would end the call.
        if !state.is_closed() {
            state.calls.insert(number, result);
        }
        number
    });
    let mut calling = Calling { shared, index, number, is_over: false };
    let reason = match ended.await {
        Ok(Ok(attempts)) => match LockInner::acquired(shared, index, number, attempts) {
            Some(lock) => {
                calling.is_over = true;
                return Ok(lock);
            }
            None => Reason::InsufficientValidity,
        },
        Ok(Err(failure)) => {
            calling.is_over = true;
            return Err(failure);
        }
        Err(_) => Reason::NoQuorum,
    };
    let answer = if reason == Reason::InsufficientValidity {
        Answer::Granted(None)
    } else {
        let reason = "the client's runtime has ended".to_owned();
        Answer::Failed(NodeError::Down { reason })
    };
    let answers = vec![answer; shared.nodes.len()];
    Err(Failure { reason, answers, took: started.elapsed() })
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.with_shard(self.index, |state, ctx| {
                state.calls.remove(&self.number);
                state.machines.cancel(self.number, ctx);
            });
        }
    }
}
