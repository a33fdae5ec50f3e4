//! Workers, in one program or in many, share a list of jobs. One worker at a time does a job, and a
//! worker skips a job that another worker is doing.
//!
//! With `QUORLOCK_NODES=redis://a,redis://b,redis://c`:
//! `cargo run -p quorlock-client --example workers`

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorlock_client::{AcquireError, Quorum};
use tokio::task::JoinSet;
use tokio::time::sleep;

const WORKERS: usize = 4;
const JOBS: usize = 12;

/// Stands for the store of the jobs that are not done.
type Jobs = Arc<Mutex<BTreeSet<usize>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = std::env::var("QUORLOCK_NODES")?;
    let quorum = Quorum::connect(nodes.split(',')).await?;
    let open: Jobs = Arc::new(Mutex::new((0..JOBS).collect()));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(work(quorum.clone(), Arc::clone(&open)));
    }
    let done: usize = workers.join_all().await.iter().sum();
    println!("{done} jobs done by {WORKERS} workers");
    quorum.flush(Duration::from_secs(10)).await?;
    Ok(())
}

/// Does jobs until none is left. Returns their number.
async fn work(quorum: Quorum, open: Jobs) -> usize {
    let mut done = 0;
    loop {
        let jobs: Vec<_> = open.lock().expect("no worker panics").iter().copied().collect();
        if jobs.is_empty() {
            return done;
        }
        for job in jobs {
            match quorum.lock(format!("jobs/{job}")).try_acquire().await {
                Ok(mut lock) => {
                    // Another worker may have done the job since the list was read.
                    if open.lock().expect("no worker panics").contains(&job) {
                        lock.renew();
                        sleep(Duration::from_millis(20)).await;
                        open.lock().expect("no worker panics").remove(&job);
                        done += 1;
                    }
                    // A background task releases the lock.
                    drop(lock);
                }
                Err(AcquireError::Held { .. }) => {}
                Err(error) => println!("job {job}: {error}"),
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
}
