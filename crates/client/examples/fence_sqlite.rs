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
use std::io::{BufRead as _, BufReader, Write as _, stdin};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use quorlock_client::{Fence, Quorum};
use quorlock_testkit::Nodes;
use rusqlite::{Connection, params};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

const APPLES: i64 = 10;
const TTL: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => run_twice(),
        [database, checked, nodes @ ..] => sell(Path::new(database), checked == "checked", nodes),
        [_] => Err("usage: fence_sqlite, without arguments".into()),
    }
}

/// The program of a clerk, which sells one apple.
#[tokio::main(flavor = "current_thread")]
async fn sell(database: &Path, checked: bool, nodes: &[String]) -> Result<(), Box<dyn Error>> {
    let quorum = Quorum::connect(nodes).await?;
    let lock = quorum.lock("stock/apples").ttl(TTL).wait(WAIT).acquire().await?;

    let stock = Connection::open(database)?;
    let apples: i64 = stock.query_row("SELECT apples FROM stock", [], |row| row.get(0))?;
    // A careful clerk checks the lock before it writes. That is not enough.
    assert!(!lock.remaining().is_zero());
    println!("{} {apples}", lock.fence());
    // Waits for a line of input, so that the first process can stop one of the clerks here.
    stdin().read_line(&mut String::new())?;

    let rows = if checked {
        write_if_latest(&stock, apples - 1, lock.fence())?
    } else {
        stock.execute("UPDATE stock SET apples = ?1", [apples - 1])?
    };
    println!("{}", if rows == 1 { "wrote" } else { "refused" });
    drop(lock);
    quorum.flush(Duration::from_secs(10)).await?;
    Ok(())
}

/// The check and the write are one statement, so that no other write comes in between.
fn write_if_latest(stock: &Connection, apples: i64, fence: Fence) -> rusqlite::Result<usize> {
    let fence = i64::try_from(fence.get()).expect("a fence is less than 2^53");
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

    let mut anna = Clerk::start(&database, checked, nodes)?;
    let anna_read = anna.line()?;
    println!(
        "  Anna reads {}. She still holds the lock, and is stopped before she writes.",
        apples(&anna_read)
    );
    anna.stop()?;

    let mut ben = Clerk::start(&database, checked, nodes)?;
    let ben_read = ben.line()?;
    println!(
        "  Her lock expires. Ben acquires it, reads {}, and writes one less.",
        apples(&ben_read)
    );
    let ben_result = ben.go_on()?;

    let anna_result = anna.go_on()?;
    let ending = match anna_result.as_str() {
        "wrote" => "writes over it".into(),
        _ => format!(
            "is refused: her fence is {}, and the database has seen {}",
            fence(&anna_read),
            fence(&ben_read)
        ),
    };
    println!("  Anna wakes up, writes one less than she had read, and {ending}.");

    let sold = [anna_result, ben_result].iter().filter(|end| *end == "wrote").count();
    Ok((i64::try_from(sold)?, stock.query_row("SELECT apples FROM stock", [], |row| row.get(0))?))
}

/// Formats the number of apples that a clerk read, and the clerk's fence.
fn apples(line: &str) -> String {
    format!("{} apples (fence {})", line.split(' ').nth(1).unwrap_or("no"), fence(line))
}

fn fence(line: &str) -> &str {
    line.split(' ').next().unwrap_or_default()
}

/// A clerk's process. Dropping this value ends the process.
struct Clerk {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Clerk {
    fn start(database: &Path, checked: bool, nodes: &[String]) -> Result<Self, Box<dyn Error>> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(database)
            .arg(if checked { "checked" } else { "unchecked" })
            .args(nodes)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        Ok(Self { process, output })
    }

    /// The next line that the clerk prints.
    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() { Err("a clerk ended early".into()) } else { Ok(line.trim().to_owned()) }
    }

    /// Stops the process, and returns when it has stopped.
    fn stop(&self) -> Result<(), Box<dyn Error>> {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::STOP)?;
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)?;
        Ok(())
    }

    /// Lets the clerk write, even if its process was stopped, and returns the result.
    fn go_on(&mut self) -> Result<String, Box<dyn Error>> {
        self.process.stdin.take().expect("it goes on once").write_all(b"go on\n")?;
        kill_process(Pid::from_child(&self.process), Signal::CONT)?;
        let end = self.line()?;
        self.process.wait()?;
        Ok(end)
    }
}

impl Drop for Clerk {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
