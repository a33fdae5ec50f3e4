//! Workers share a list of jobs. One worker at a time does a job, and a worker skips a job that
//! another worker is doing. Here the workers are tasks of one program; in many programs, they would
//! share the list in a database.
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

/// Stands for a database of the jobs that are not done.
type Undone = Arc<Mutex<BTreeSet<usize>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = std::env::var("QUORLOCK_NODES")?;
    let quorum = Quorum::connect(nodes.split(',')).await?;
    let undone: Undone = Arc::new(Mutex::new((0..JOBS).collect()));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(work(quorum.clone(), Arc::clone(&undone)));
    }
    let done: usize = workers.join_all().await.iter().sum();
    println!("{done} jobs done by {WORKERS} workers");
    quorum.flush(Duration::from_secs(10)).await?;
    Ok(())
}

/// Does jobs until none is left. Returns how many this worker did.
async fn work(quorum: Quorum, undone: Undone) -> usize {
    let mut done = 0;
    loop {
        let jobs: Vec<_> = undone.lock().expect("no worker panics").iter().copied().collect();
        if jobs.is_empty() {
            return done;
        }
        for job in jobs {
            match quorum.lock(format!("jobs/{job}")).try_acquire().await {
                Ok(mut lock) => {
                    // Another worker may have done the job since the list was read.
                    if undone.lock().expect("no worker panics").contains(&job) {
                        lock.renew();
                        tokio::select! {
                            () = do_job() => {
                                undone.lock().expect("no worker panics").remove(&job);
                                done += 1;
                            }
                            lost = lock.lost() => println!("job {job} was stopped: {lost}"),
                        }
                    }
                    // A background task releases the lock.
                    drop(lock);
                }
                Err(AcquireError::Held { .. }) => {}
                Err(error) => eprintln!("job {job}: {error}"),
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Stands for a job that takes some time.
async fn do_job() {
    sleep(Duration::from_millis(20)).await;
}
