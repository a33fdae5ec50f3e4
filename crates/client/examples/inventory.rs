//! A stock that is counted down under a lock, in a database that refuses old fences.
//!
//! A lock alone cannot stop a program that was paused and does not know that its lock has ended. So
//! each write carries the fence of its lock, and the database refuses a fence smaller than the
//! last.
//!
//! With `QUORLOCK_NODES=redis://a,redis://b,redis://c`:
//! `cargo run -p quorlock-client --example inventory -- stock.sqlite 10`

use std::error::Error;
use std::time::Duration;

use quorlock_client::{Fence, Quorum};
use rusqlite::{Connection, params};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: inventory DATABASE ORDERS")?;
    let orders: u32 = args.next().ok_or("usage: inventory DATABASE ORDERS")?.parse()?;
    let nodes = std::env::var("QUORLOCK_NODES")?;
    let quorum = Quorum::connect(nodes.split(',')).await?;
    let database = Connection::open(path)?;
    database.busy_timeout(Duration::from_secs(5))?;

    let mut earlier = None;
    for _ in 0..orders {
        let lock = quorum.lock("stock/spoons").wait(Duration::from_secs(60)).acquire().await?;
        let left = count_left(&database)?;
        // The program may be paused here for longer than the lock lasts.
        if !sell(&database, left, lock.fence())? {
            return Err("the lock was lost, and the database has refused the sale".into());
        }
        earlier = Some(lock.fence());
        // A release that too few nodes confirm in time continues in the background.
        let _ = lock.release().await;
    }
    // Simulates a late write. First, a new holder writes the count unchanged, so that the database
    // stores the new fence.
    let last = quorum.lock("stock/spoons").wait(Duration::from_secs(60)).acquire().await?;
    sell(&database, count_left(&database)? + 1, last.fence())?;
    if let Some(earlier) = earlier {
        // Then a write with the fence of an earlier lock arrives.
        let refused = !sell(&database, 1_000_000, earlier)?;
        println!("a late write was refused: {refused}");
    }
    println!("{} left", count_left(&database)?);
    let _ = last.release().await;
    // Waits for the releases in the background before the program ends.
    quorum.flush(Duration::from_secs(10)).await?;
    Ok(())
}

fn count_left(database: &Connection) -> rusqlite::Result<u32> {
    database.query_row("SELECT count FROM stock WHERE item = 'spoons'", [], |row| row.get(0))
}

/// Sells one of the `left` spoons. Returns whether the database accepted the fence.
fn sell(database: &Connection, left: u32, fence: Fence) -> rusqlite::Result<bool> {
    let fence = i64::from(fence);
    let sold = database.execute(
        "UPDATE stock SET count = ?1, fence = ?2 WHERE item = 'spoons' AND fence <= ?2",
        params![left.saturating_sub(1), fence],
    )?;
    Ok(sold == 1)
}
