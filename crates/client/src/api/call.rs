use std::sync::Arc;

use quorlock_core::client::{Answer, Context, Failure, NodeError, Reason, Shard, Spec};
use scopeguard::{ScopeGuard, guard};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lock_inner::LockInner;
use crate::driver::Shards;

/// Runs a call that acquires a lock, or attaches one that had this slot.
///
/// Dropped before its end, the call releases the lock in the background.
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
    let cancel = guard((), |()| {
        shards.with_shard(index, |state, ctx| {
            state.callers.calls.remove(&number);
            state.machines.cancel(number, ctx);
        });
    });
    let (reason, answer) = match ended.await {
        Ok(Ok(attempts)) => match LockInner::acquired(shards, index, number, attempts, slot) {
            Some(lock) => {
                ScopeGuard::into_inner(cancel);
                return Ok(lock);
            }
            None => (Reason::InsufficientValidity, Answer::Granted(None)),
        },
        Ok(Err(failure)) => {
            ScopeGuard::into_inner(cancel);
            return Err(failure);
        }
        Err(_) => {
            let reason = "the client's runtime has ended".to_owned();
            (Reason::NoQuorum, Answer::Failed(NodeError::Down { reason }))
        }
    };
    let answers = vec![answer; shards.network.nodes.len()];
    Err(Failure { reason, answers, took: started.elapsed() })
}
