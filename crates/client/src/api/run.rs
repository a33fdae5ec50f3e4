//! Something that is done under a lock.

use std::pin::pin;

use crate::{Lock, LockWatch, LostError, Released, RunError};

/// See [`crate::LockBuilder::run`].
pub(crate) async fn run<T, F>(mut lock: Lock, work: impl FnOnce(LockWatch) -> F) -> Result<T, RunError<T>>
where
    F: Future<Output = T>,
{
    lock.keep_alive();
    let watch = lock.watch();
    let lost = {
        let work = pin!(work(watch.clone()));
        tokio::select! {
            biased;
            output = work => Ok(output),
            lost = watch.lost() => Err(lost),
        }
        // What was being done is dropped here, before the lock is given back.
    };
    let output = match lost {
        Ok(output) => output,
        Err(lost) => return Err(RunError::Lost { lost, output: None }),
    };
    match finish(lock).await {
        Ok(()) => Ok(output),
        Err(lost) => Err(RunError::Lost { lost, output: Some(output) }),
    }
}

/// Gives the lock back after something was done under it: only one that was held to the end has protected it.
pub(crate) async fn finish(lock: Lock) -> Result<(), LostError> {
    if let Some(lost) = lock.loss() {
        return Err(lost);
    }
    let watch = lock.watch();
    match lock.release().await {
        Ok(Released::AlreadyOver) => Err(LostError::Ended { nodes: watch.report() }),
        // It was held by this machine's clocks, which is what counts; and the release goes on in the background.
        Ok(Released::Released) | Err(_) => Ok(()),
    }
}
