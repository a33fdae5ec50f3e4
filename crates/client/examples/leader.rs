//! Leader election: one of several programs leads until it ends, is cut off, or has led for a day.
//! Then another program leads.
//!
//! With `QUORLOCK_NODES=redis://a,redis://b,redis://c`:
//! `cargo run -p quorlock-client --example leader`

use std::error::Error;
use std::time::Duration;

use quorlock_client::{AcquireError, LockWatch, Quorum, RunError};
use tokio::time::sleep;

/// The longest time for which the lock of a dead leader keeps the others from leading.
const TTL: Duration = Duration::from_secs(5);
/// How long a program leads at most. After this time, a leader that hangs is deposed too.
const TERM_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = std::env::var("QUORLOCK_NODES")?;
    let quorum = Quorum::connect(nodes.split(',')).await?;
    let leadership =
        quorum.lock("leader").ttl(TTL).wait(Duration::from_secs(60)).max_hold(TERM_MAX);
    loop {
        match leadership.run(lead).await {
            // A real leader leads until it is shut down. This one steps down after a while.
            Ok(()) => break,
            // The lock was lost. `lead` was dropped at the await point that it had reached, unless
            // it had finished. The program runs for election again.
            Err(RunError::Lost { lost, .. }) => println!("deposed: {lost}"),
            Err(RunError::NotAcquired(AcquireError::TimedOut { waited, .. })) => {
                println!("has followed for {waited:?}");
            }
            Err(error) => {
                println!("{error}");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
    quorum.flush(Duration::from_secs(10)).await?;
    Ok(())
}

async fn lead(lock: LockWatch) {
    println!("leads, fence {}, {} nodes", lock.fence(), lock.coverage());
    for _ in 0..5 {
        // Stands for the work of a leader. A real one sends the fence with every command, so that
        // followers can refuse the commands of a deposed leader.
        sleep(Duration::from_millis(50)).await;
    }
    println!("steps down");
}
