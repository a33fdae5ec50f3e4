use std::sync::Arc;

use quorlock_core::client::{Answer, Context, Failure, NodeError, Reason, Shard, Spec};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lock_inner::LockInner;
use crate::driver::Shards;

/// A call that its caller awaits. Dropped before its end, it releases the lock in the background.
struct Calling<'a> {
    shards: &'a Arc<Shards>,
    index: usize,
    number: u64,
    /// Whether the caller has the lock, or knows that it has none.
    is_over: bool,
}

/// Runs a call that acquires a lock, or attaches one that had this slot.
pub(crate) async fn run_call(
    shards: &Arc<Shards>,
    spec: Spec,
    slot: Option<usize>,
    begin: impl FnOnce(&mut Shard, Arc<Spec>, &mut Context<'_>) -> u64,
) -> Result<Arc<LockInner>, Failure> {
    let (started, index) = (Instant::now(), shards.of(spec.name()));
    let (result, ended) = oneshot::channel();
    let number = shards.with_shard(index, |state, ctx| {
        let number = begin(&mut state.machines, Arc::new(spec), ctx);
        state.callers.calls.insert(number, result);
        number
    });
    let mut calling = Calling { shards, index, number, is_over: false };
    let reason = match ended.await {
        Ok(Ok(attempts)) => match LockInner::acquired(shards, index, number, attempts, slot) {
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
    let answers = vec![answer; shards.network.nodes.len()];
    Err(Failure { reason, answers, took: started.elapsed() })
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.shards.with_shard(self.index, |state, ctx| {
                state.callers.calls.remove(&self.number);
                state.machines.cancel(self.number, ctx);
            });
        }
    }
}
