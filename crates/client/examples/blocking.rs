//! A program without tokio that acquires a lock, works under it and releases it.
//!
//! With `QUORLOCK_NODES=redis://a,redis://b,redis://c`:
//! `cargo run -p quorlock-client --example blocking`

use std::error::Error;
use std::time::Duration;

use quorlock_client::blocking::Quorum;

fn main() -> Result<(), Box<dyn Error>> {
    let nodes = std::env::var("QUORLOCK_NODES")?;
    let quorum = Quorum::connect(nodes.split(','))?;

    // Short work.
    let lock = quorum
        .lock("orders/42")
        .ttl(Duration::from_secs(10))
        .wait(Duration::from_secs(5))
        .acquire()?;
    println!("fence {}, {:?} left, held on {}", lock.fence(), lock.remaining(), lock.coverage());
    // Without an answer of a majority, the client repeats the release in the background.
    let _ = lock.release();

    // Work of unknown length: the lock is renewed, and the work checks it before each step.
    let steps = quorum.lock("orders/42").run(|lock| {
        let mut steps = 0;
        while steps < 10 && !lock.ownership().is_lost() {
            std::thread::sleep(Duration::from_millis(20));
            steps += 1;
        }
        steps
    })?;
    println!("{steps} steps under the lock");
    quorum.flush(Duration::from_secs(10))?;
    Ok(())
}
