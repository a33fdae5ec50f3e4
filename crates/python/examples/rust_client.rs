//! Acquires and releases a lock with the Rust client, as `bench/bench.py` does with the package.
//!
//! `rust_client COUNT URL...` prints the time of each round trip in microseconds, one a line: first
//! those of the blocking API, then those of a task on tokio, after a line `tokio`.

use std::error::Error;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().ok_or("a count")?.parse()?;
    let urls: Vec<String> = arguments.collect();
    let ttl = Duration::from_secs(10);

    let quorum = quorlock_client::blocking::Quorum::connect(&urls)?;
    for _ in 0..count {
        let began = Instant::now();
        quorum.lock("rust-blocking").ttl(ttl).acquire()?.release()?;
        println!("{}", began.elapsed().as_micros());
    }
    println!("tokio");
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let quorum = quorlock_client::Quorum::connect(&urls).await?;
        for _ in 0..count {
            let began = Instant::now();
            quorum.lock("rust-tokio").ttl(ttl).acquire().await?.release().await?;
            println!("{}", began.elapsed().as_micros());
        }
        Ok(())
    })
}
