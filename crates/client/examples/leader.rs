//! One of several programs leads, for as long as it lives and can be reached; then another does.
//!
//! `QUORLOCK_NODES=redis://a,redis://b,redis://c cargo run --example leader`

use std::error::Error;
use std::time::Duration;

use quorlock_client::{AcquireError, LockWatch, Quorum, RunError};
use tokio::time::sleep;

/// How long nobody leads after a leader has died.
const TTL: Duration = Duration::from_secs(5);
/// A leader that has hung is deposed after that.
const TERM_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = std::env::var("QUORLOCK_NODES")?;
    let quorum = Quorum::connect(nodes.split(',')).await?;
    let leadership = quorum.lock("leader").ttl(TTL).wait(Duration::from_secs(60)).max_hold(TERM_MAX);
    loop {
        match leadership.run(lead).await {
            // A real leader goes on until it is told to stop. This one has enough after a while.
            Ok(()) => break,
            // Whatever it did was stopped, wherever it was. It stands for election again.
            Err(RunError::Lost { lost, .. }) => println!("deposed: {lost}"),
            Err(RunError::NotAcquired(AcquireError::TimedOut { waited, .. })) => {
                println!("follows since {waited:?}");
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
        // Every order has the fence, so that followers refuse those of a leader that was deposed and does not know.
        sleep(Duration::from_millis(50)).await;
    }
    println!("steps down");
}
