//! Why a lock needs a fence, shown with real processes and a real database.
//!
//! `cargo run -p quorlock-client --example fence_sqlite`
//!
//! Two clerks sell apples. Each acquires the lock, reads the number of apples, and writes one less.
//! One clerk is stopped (SIGSTOP) after it has read the number and has checked that it still holds
//! the lock. A long garbage collection, a stalled disk or a closed laptop would stop it in the same
//! way. The clerk continues after its lock has ended and the other clerk has sold an apple. In the
//! first run, the database accepts the late write. In the second run, the database compares the
//! fence first.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use quorlock_client::{Fence, Quorum};
use quorlock_testkit::Nodes;
use rusqlite::{Connection, params};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};

const APPLES: i64 = 10;
const TTL: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => run_twice(),
        [database, checked, stops, nodes @ ..] => {
            sell(Path::new(database), checked == "true", stops == "true", nodes)
        }
        _ => Err("usage: fence_sqlite, without arguments".into()),
    }
}

/// The program of a clerk, which sells one apple. Prints the fence, the number of apples that the
/// clerk read, and what became of the write.
#[tokio::main(flavor = "current_thread")]
async fn sell(
    database: &Path,
    checked: bool,
    stops: bool,
    nodes: &[String],
) -> Result<(), Box<dyn Error>> {
    let quorum = Quorum::connect(nodes).await?;
    let lock = quorum.lock("stock/apples").ttl(TTL).wait(WAIT).acquire().await?;

    let stock = Connection::open(database)?;
    let apples: i64 = stock.query_row("SELECT apples FROM stock", [], |row| row.get(0))?;
    // A careful clerk checks the lock before it writes. That is not enough.
    assert!(!lock.remaining().is_zero());
    if stops {
        // Stands for a pause at the worst moment.
        kill_process(getpid(), Signal::STOP)?;
    }

    let rows = if checked {
        write_if_latest(&stock, apples - 1, lock.fence())?
    } else {
        stock.execute("UPDATE stock SET apples = ?1", [apples - 1])?
    };
    println!("{} {apples} {}", lock.fence(), if rows == 1 { "wrote" } else { "refused" });
    drop(lock);
    quorum.flush(Duration::from_secs(10)).await?;
    Ok(())
}

/// The check and the write are one statement, so that no other write comes in between.
fn write_if_latest(stock: &Connection, apples: i64, fence: Fence) -> rusqlite::Result<usize> {
    let fence = i64::from(fence);
    stock.execute(
        "UPDATE stock SET apples = ?1, fence = ?2 WHERE fence <= ?2",
        params![apples, fence],
    )
}

fn run_twice() -> Result<(), Box<dyn Error>> {
    println!(
        "Three nodes, one SQLite database with {APPLES} apples, and two clerks who sell one \
         apple each,\nunder a lock that lasts {TTL:?}."
    );
    let nodes = Nodes::start(3);
    for checked in [false, true] {
        println!("\n{}", if checked { "With the fence:" } else { "Without a fence:" });
        let (sold, left) = simulate(checked, &nodes.urls())?;
        let is_right = left == APPLES - sold;
        println!(
            "  => {sold} sold, {left} left of {APPLES}: {}",
            if is_right { "right" } else { "WRONG" }
        );
        if is_right != checked {
            return Err("the result is not the expected one".into());
        }
    }
    Ok(())
}

/// Returns how many apples the clerks report as sold, and how many the database has left.
fn simulate(checked: bool, nodes: &[String]) -> Result<(i64, i64), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let database = directory.path().join("stock.db");
    let stock = Connection::open(&database)?;
    stock.execute_batch(
        "CREATE TABLE stock (apples INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0)",
    )?;
    stock.execute("INSERT INTO stock (apples) VALUES (?1)", [APPLES])?;

    let clerk = |stops: bool| -> Result<Command, Box<dyn Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(&database).args([checked, stops].map(|is| is.to_string())).args(nodes);
        Ok(command)
    };
    let anna = clerk(true)?.stdout(Stdio::piped()).spawn()?;
    let pid = Pid::from_child(&anna);
    waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)?;
    let ben = clerk(false)?.output();
    kill_process(pid, Signal::CONT)?;
    let (anna, ben) = (Sale::read(anna.wait_with_output()?)?, Sale::read(ben?)?);
    println!("  Anna reads {anna}. She still holds the lock, and is stopped before she writes.");
    println!("  Her lock expires. Ben acquires it, reads {ben}, and writes one less.");
    let ending = if anna.wrote {
        "writes over it".to_owned()
    } else {
        format!("is refused: her fence is {}, and the database has seen {}", anna.fence, ben.fence)
    };
    println!("  Anna wakes up, writes one less than she had read, and {ending}.");

    let sold = i64::from(anna.wrote) + i64::from(ben.wrote);
    Ok((sold, stock.query_row("SELECT apples FROM stock", [], |row| row.get(0))?))
}

/// What a clerk printed.
struct Sale {
    fence: String,
    read: String,
    wrote: bool,
}

impl Sale {
    fn read(output: Output) -> Result<Self, Box<dyn Error>> {
        let text = String::from_utf8(output.stdout)?;
        let [fence, read, end] = text.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err(format!("a clerk ended early: {text}").into());
        };
        Ok(Self { fence: fence.to_owned(), read: read.to_owned(), wrote: end == "wrote" })
    }
}

impl fmt::Display for Sale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} apples (fence {})", self.read, self.fence)
    }
}
