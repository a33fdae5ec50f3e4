//! A cache that many programs read, and that one of them refreshes when it is out of date.
//!
//! The cache is two files that belong together. Programs read them at the same time under the
//! shared lock, and one program writes them under the exclusive lock. So no program reads the
//! prices of one refresh and the names of another. A file cannot check a fence, so the refresh
//! stops when its lock is lost. In `fence_sqlite.rs`, a database refuses a late write.
//!
//! With `QUORLOCK_NODES=redis://a,redis://b,redis://c`:
//! `cargo run -p quorlock-client --example cache -- DIRECTORY`

use std::error::Error;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use quorlock_client::{ExtendError, Fence, Lock, Quorum};
use tokio::time::sleep;

/// A cache that is older than this is refreshed.
const AGE_MAX: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: cache DIRECTORY")?;
    let directory = Path::new(&directory);
    let nodes = std::env::var("QUORLOCK_NODES")?;
    let quorum = Quorum::connect(nodes.split(',')).await?;
    for _ in 0..10 {
        let lock = open(&quorum, directory).await?;
        let prices = fs::read_to_string(directory.join("prices"))?;
        let names = fs::read_to_string(directory.join("names"))?;
        println!("{prices}, {names}");
        let _ = lock.release().await;
    }
    quorum.flush(Duration::from_secs(10)).await?;
    Ok(())
}

/// Returns the lock under which the cache is read, which is shared unless its downgrade was not
/// confirmed. Refreshes a cache that is out of date.
async fn open(quorum: &Quorum, directory: &Path) -> Result<Lock, Box<dyn Error>> {
    let reading = quorum.lock("cache/prices").shared().acquire().await?;
    if is_fresh(directory) {
        return Ok(reading);
    }
    // A reader cannot become a writer: it releases its lock, and acquires another one.
    let _ = reading.release().await;
    let mut lock = quorum.lock("cache/prices").acquire().await?;
    // Another program may have refreshed the cache in between.
    if !is_fresh(directory) {
        lock.renew();
        tokio::select! {
            refreshed = refresh(directory, lock.fence()) => refreshed?,
            lost = lock.lost() => return Err(lost.into()),
        }
    }
    // The lock is never free in this step: other readers can hold it now, but no writer can.
    match lock.downgrade().await {
        // Other readers may have to wait a little longer.
        Ok(()) | Err(ExtendError::NoQuorum { .. }) => Ok(lock),
        Err(error) => Err(error.into()),
    }
}

fn is_fresh(directory: &Path) -> bool {
    let written = fs::metadata(directory.join("complete")).and_then(|file| file.modified());
    written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < AGE_MAX))
}

/// Writes both files. If the program dies before the end, the cache counts as out of date.
async fn refresh(directory: &Path, fence: Fence) -> io::Result<()> {
    let _ = fs::remove_file(directory.join("complete"));
    for file in ["prices", "names"] {
        // Stands for a slow query.
        sleep(Duration::from_millis(50)).await;
        fs::write(directory.join(file), format!("{file} of refresh {fence}"))?;
    }
    fs::write(directory.join("complete"), "")?;
    println!("refreshed");
    Ok(())
}
