//! The instruments: latencies, blocking sockets, `INFO`, `SLOWLOG`, processors and files.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hdrhistogram::Histogram;
use quorlock_faults::harness::info;
use quorlock_testkit::{Masters, Server};
use redis::{Connection, cmd};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Largest duration that is told apart, in nanoseconds: far above any measurement.
const LONGEST_NS: u64 = 60_000_000_000;
/// Enough to tell 1.01 from 1.00.
const SIGNIFICANT_DIGITS: u8 = 3;

/// The durations of one operation.
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    /// No durations.
    pub(crate) fn new() -> Self {
        Self(
            Histogram::new_with_max(LONGEST_NS, SIGNIFICANT_DIGITS)
                .expect("there are so many digits and so large numbers"),
        )
    }

    /// Adds a duration.
    pub(crate) fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The median.
    pub(crate) fn p50(&self) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(0.5))
    }

    /// The 99th percentile.
    pub(crate) fn p99(&self) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(0.99))
    }

    /// The longest duration.
    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// The mean.
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_secs_f64(self.0.mean() / 1e9)
    }
}

/// More than any answer has, and little, because there are thousands of buffers.
const BUFFER_BYTES: usize = 128;

/// A blocking connection to a server without a client library.
pub(crate) struct Socket {
    reader: BufReader<TcpStream>,
    line: String,
}

impl Socket {
    /// Connects to a server that listens on TCP.
    pub(crate) fn connect(server: &Server) -> anyhow::Result<Self> {
        let url = server.url();
        let address = url.strip_prefix("redis://").context("it listens on TCP")?;
        let stream = TcpStream::connect(address.trim_end_matches('/'))?;
        stream.set_nodelay(true)?;
        Ok(Self { reader: BufReader::with_capacity(BUFFER_BYTES, stream), line: String::new() })
    }

    /// Requests the one lock with a token of this client, without waiting for the answer.
    pub(crate) fn ask_for_the_lock(&mut self, client: usize) -> anyhow::Result<()> {
        self.send(&format!("LOCK.ACQUIRE orders/42 {client:032x} 60000 WAIT 60000\r\n"))
    }

    /// Releases the lock, without waiting for the answer.
    pub(crate) fn release(&mut self, client: usize) -> anyhow::Result<()> {
        self.send(&format!("LOCK.RELEASE orders/42 {client:032x}\r\n"))
    }

    pub(crate) fn ping(&mut self) -> anyhow::Result<()> {
        self.send("PING\r\n")?;
        self.expect("+PONG")
    }

    /// Waits until the lock is granted.
    pub(crate) fn read_grant(&mut self) -> anyhow::Result<()> {
        self.expect("*2")?;
        self.read_line()?;
        self.read_line()
    }

    pub(crate) fn send(&mut self, command: &str) -> anyhow::Result<()> {
        Ok(self.reader.get_mut().write_all(command.as_bytes())?)
    }

    /// Waits for an answer, which must be this line.
    pub(crate) fn expect(&mut self, answer: &str) -> anyhow::Result<()> {
        self.read_line()?;
        ensure!(self.line == answer, "the server answered {} and not {answer}", self.line);
        Ok(())
    }

    fn read_line(&mut self) -> anyhow::Result<()> {
        self.line.clear();
        self.reader.read_line(&mut self.line)?;
        self.line.truncate(self.line.trim_end().len());
        Ok(())
    }
}

/// Returns the number of clients that wait for a lock.
pub(crate) fn waiters(server: &Server) -> anyhow::Result<u64> {
    info(&mut server.try_connection()?, "lock", "lock_waiters")
}

/// Returns the number of lock commands that all servers have executed so far.
pub(crate) fn lock_calls(masters: &Masters) -> anyhow::Result<u64> {
    masters.iter().map(lock_calls_of).sum()
}

fn lock_calls_of(server: &Server) -> anyhow::Result<u64> {
    let info: String = cmd("INFO").arg("commandstats").query(&mut server.try_connection()?)?;
    let ours = info.lines().filter(|line| line.starts_with("cmdstat_lock."));
    ours.map(|line| {
        let calls = line.split_once("calls=").and_then(|(_, rest)| rest.split(',').next());
        calls.context("no calls")?.parse::<u64>().context("not a number of calls")
    })
    .sum()
}

/// Commands that take less are not recorded, in microseconds: `slowlog-log-slower-than`.
const FROM_US: u64 = 100;
/// More entries than any measurement makes between two reads: `slowlog-max-len`.
const ENTRIES_MAX: u32 = 10_000;

/// Commands of the measurement itself.
const OUR_OWN: [&str; 4] = ["INFO", "SLOWLOG", "CONFIG", "DEBUG"];

/// A command and its duration on the server; `None` when no command was recorded.
pub(crate) type Slowest = Option<(String, Duration)>;

/// An entry: number, time, duration in microseconds, arguments, client address, client name.
type Entry = (u64, u64, u64, Vec<String>, String, String);

/// Starts to record, and drops earlier entries.
pub(crate) fn begin_slowlog(connection: &mut Connection) -> anyhow::Result<()> {
    let set = |name: &str, value: u64| cmd("CONFIG").arg("SET").arg(name).arg(value).take();
    set("slowlog-log-slower-than", FROM_US).exec(connection)?;
    set("slowlog-max-len", ENTRIES_MAX.into()).exec(connection)?;
    Ok(cmd("SLOWLOG").arg("RESET").exec(connection)?)
}

/// Returns the slowest command since the last call.
pub(crate) fn take_slowest(connection: &mut Connection) -> anyhow::Result<Slowest> {
    let entries: Vec<Entry> = cmd("SLOWLOG").arg("GET").arg(-1).query(connection)?;
    cmd("SLOWLOG").arg("RESET").exec(connection)?;
    let commands = entries.into_iter().filter_map(|(_, _, us, mut args, ..)| {
        let name = args.swap_remove(0).to_uppercase();
        (!OUR_OWN.contains(&name.as_str())).then_some((name, Duration::from_micros(us)))
    });
    Ok(commands.max_by_key(|(_, duration)| *duration))
}

/// Returns an upper bound of the duration of the slowest command.
pub(crate) fn slowest_duration(slowest: &Slowest) -> Duration {
    slowest.as_ref().map_or(Duration::from_micros(FROM_US), |(_, duration)| *duration)
}

/// Raises the limit of open files for this process and its children, and returns it.
pub(crate) fn raise_file_limit() -> anyhow::Result<usize> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(limit.maximum.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX)))
}

/// Runs `measuring` on one processor and the servers on another, and unpins the servers afterwards.
///
/// Their placement by the scheduler makes a larger difference than most measurements.
pub(crate) fn apart<T: Send>(
    servers: &[&Server],
    measuring: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let anywhere = sched_getaffinity(None)?;
    let (ours, theirs) = two_processors(&anywhere)?;
    for server in servers {
        run_on(server, &theirs)?;
    }
    let pinned = move || {
        sched_setaffinity(None, &ours)?;
        measuring()
    };
    let measured = thread::scope(|scope| scope.spawn(pinned).join().expect("it does not panic"));
    for server in servers {
        run_on(server, &anywhere)?;
    }
    measured
}

/// Returns how long the first thread of a process has run on any processor (Linux).
///
/// The kernel updates this when the thread sleeps, so the end of one turn may count for the next.
pub(crate) fn processor_time(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/task/{pid}/schedstat");
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let ns = stat.split(' ').next().and_then(|ns| ns.parse().ok());
    Ok(Duration::from_nanos(ns.with_context(|| format!("{path} is not as expected"))?))
}

fn run_on(server: &Server, processors: &CpuSet) -> anyhow::Result<()> {
    let pid = Pid::from_raw(server.pid().cast_signed()).context("a server has a number")?;
    Ok(sched_setaffinity(Some(pid), processors)?)
}

/// Returns two of these processors, or the only one twice.
fn two_processors(all: &CpuSet) -> anyhow::Result<(CpuSet, CpuSet)> {
    let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
    let first = usable.next().context("there is a processor")?;
    let only = |cpu| {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    };
    Ok((only(first), only(usable.next().unwrap_or(first))))
}
