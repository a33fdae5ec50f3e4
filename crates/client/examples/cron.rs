//! A job that cron starts on every machine of a fleet at once, and that only one machine runs.
//!
//! With `QUORLOCK_NODES=redis://a,redis://b,redis://c`:
//! `cargo run -p quorlock-client --example cron`

use std::error::Error;
use std::time::Duration;

use quorlock_client::{AcquireError, Fence, Quorum};
use tokio::time::{Instant, sleep_until};

/// How long after its start a machine still holds the lock, even if the job is shorter. A machine
/// whose clock is behind starts later, and must find the lock taken until its wait ends. So the
/// clocks may differ by this time less [`WAIT`].
const HELD_AFTER_START: Duration = Duration::from_secs(2);
/// How long a machine waits for the lock: shorter than the lock is held.
const WAIT: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = std::env::var("QUORLOCK_NODES")?;
    let quorum = Quorum::connect(nodes.split(',')).await?;

    let started = Instant::now();
    let mut lock = match quorum.lock("jobs/nightly-report").wait(WAIT).acquire().await {
        Ok(lock) => lock,
        Err(AcquireError::TimedOut { .. }) => {
            println!("another machine does the job");
            return Ok(());
        }
        // It is unknown whether another machine does the job. Report the error.
        Err(error) => return Err(error.into()),
    };
    // The length of the job is unknown.
    lock.renew();
    tokio::select! {
        pages = write_report(lock.fence()) => println!("{pages} pages"),
        // Another machine may hold the lock now, so the job stops.
        lost = lock.lost() => return Err(lost.into()),
    }
    sleep_until(started + HELD_AFTER_START).await;
    let _ = lock.release().await;
    quorum.flush(Duration::from_secs(10)).await?;
    Ok(())
}

/// The job. It sends the fence with every write to a resource that refuses old fences.
async fn write_report(_fence: Fence) -> u32 {
    tokio::time::sleep(Duration::from_millis(100)).await;
    42
}
