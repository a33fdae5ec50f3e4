//! A stock that is counted down under a lock, in a database that refuses whoever comes too late.
//!
//! A lock alone cannot do that: a program that was paused goes on where it was, and does not know that its lock is another's by
//! now. So each write has the fence of its lock, and the database takes none whose fence is smaller than the last.
//!
//! `QUORLOCK_NODES=redis://a,redis://b,redis://c cargo run --example inventory -- stock.sqlite 10`

use std::error::Error;
use std::time::Duration;

use quorlock_client::{Fence, Quorum};
use rusqlite::{Connection, params};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("which database?")?;
    let orders: u32 = args.next().ok_or("how many orders?")?.parse()?;
    let nodes = std::env::var("QUORLOCK_NODES")?;
    let quorum = Quorum::connect(nodes.split(',')).await?;
    let database = Connection::open(path)?;
    database.busy_timeout(Duration::from_secs(5))?;

    let mut earlier = None;
    for _ in 0..orders {
        let lock = quorum.lock("stock/spoons").wait(Duration::from_secs(60)).acquire().await?;
        let left = count_left(&database)?;
        // Anything may happen here: this program may be paused for a minute, and then it goes on.
        if !sell(&database, left, lock.fence())? {
            return Err("the lock was lost, and the database has refused the sale".into());
        }
        earlier = Some(lock.fence());
        // Where too few have confirmed it in time, the release goes on in the background.
        let _ = lock.release().await;
    }
    // As if a write of an earlier lock had been on its way all the time, while others have sold.
    let last = quorum.lock("stock/spoons").wait(Duration::from_secs(60)).acquire().await?;
    sell(&database, count_left(&database)? + 1, last.fence())?;
    if let Some(earlier) = earlier {
        let refused = !sell(&database, 1_000_000, earlier)?;
        println!("a late write was refused: {refused}");
    }
    println!("{} left", count_left(&database)?);
    let _ = last.release().await;
    // Without it, what is released in the background may not be, when the program ends.
    quorum.flush(Duration::from_secs(10)).await?;
    Ok(())
}

fn count_left(database: &Connection) -> rusqlite::Result<u32> {
    database.query_row("SELECT count FROM stock WHERE item = 'spoons'", [], |row| row.get(0))
}

/// Sells one of `left`. False when a lock with a larger fence has written already.
fn sell(database: &Connection, left: u32, fence: Fence) -> rusqlite::Result<bool> {
    let fence = i64::try_from(fence.get()).expect("a fence is below 2^53");
    let sold = database.execute(
        "UPDATE stock SET count = ?1, fence = ?2 WHERE item = 'spoons' AND fence <= ?2",
        params![left.saturating_sub(1), fence],
    )?;
    Ok(sold == 1)
}
