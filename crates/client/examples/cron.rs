//! A job that every machine of a fleet starts at the same time, and one of them does: what cron runs everywhere.
//!
//! `QUORLOCK_NODES=redis://a,redis://b,redis://c cargo run --example cron`

use std::error::Error;
use std::time::Duration;

use quorlock_client::{AcquireError, Fence, Quorum};
use tokio::time::{Instant, sleep_until};

/// The lock is held for so long at least, also when the job is done sooner: so much later another machine may start the
/// same job, because its clock is behind.
const CLOCKS_DIFFER: Duration = Duration::from_secs(2);
/// Not at once: of many that come at the same moment, each may have one node, and then none has a majority. In so much time
/// one of them has it.
const WAIT: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = std::env::var("QUORLOCK_NODES")?;
    let quorum = Quorum::connect(nodes.split(',')).await?;

    let started = Instant::now();
    let mut lock = match quorum.lock("jobs/nightly-report").wait(WAIT).acquire().await {
        Ok(lock) => lock,
        Err(AcquireError::TimedOut { .. }) => {
            println!("another machine does it");
            return Ok(());
        }
        // Nobody knows whether another does it. A person should hear of that.
        Err(error) => return Err(error.into()),
    };
    // However long it takes.
    lock.renew();
    tokio::select! {
        pages = write_report(lock.fence()) => println!("{pages} pages"),
        // It may be another's by now, and nothing of this is to be written any more.
        lost = lock.lost() => return Err(lost.into()),
    }
    sleep_until(started + CLOCKS_DIFFER).await;
    let _ = lock.release().await;
    quorum.flush(Duration::from_secs(10)).await?;
    Ok(())
}

/// The job. Where it writes to a place that can refuse a fence that is smaller than the last, it gives it along.
async fn write_report(_fence: Fence) -> u32 {
    tokio::time::sleep(Duration::from_millis(100)).await;
    42
}
