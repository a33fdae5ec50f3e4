//! The instruments: latencies, blocking sockets, `INFO`, `SLOWLOG`, processors and file limits.

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

/// A longer duration is recorded as this one.
const LONGEST_NS: u64 = 60_000_000_000;
/// Enough to distinguish a ratio of 1.01 from 1.00.
const SIGNIFICANT_DIGITS: u8 = 3;

/// The durations of one operation.
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        Self(
            Histogram::new_with_max(LONGEST_NS, SIGNIFICANT_DIGITS)
                .expect("a histogram supports this range and this precision"),
        )
    }

    pub(crate) fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn p50(&self) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(0.5))
    }

    pub(crate) fn p99(&self) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(0.99))
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    pub(crate) fn mean(&self) -> Duration {
        Duration::from_secs_f64(self.0.mean() / 1e9)
    }
}

/// Larger than any reply, and small because there are thousands of sockets.
const BUFFER_BYTES: usize = 128;

/// Opens a connection with `TCP_NODELAY` to a server that listens on TCP.
pub(crate) fn connect_tcp(server: &Server) -> anyhow::Result<TcpStream> {
    let url = server.url();
    let address = url.strip_prefix("redis://").context("the server does not listen on TCP")?;
    let stream = TcpStream::connect(address.trim_end_matches('/'))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A blocking TCP connection to a server, without a client library.
pub(crate) struct Socket {
    reader: BufReader<TcpStream>,
    line: String,
}

impl Socket {
    pub(crate) fn connect(server: &Server) -> anyhow::Result<Self> {
        let reader = BufReader::with_capacity(BUFFER_BYTES, connect_tcp(server)?);
        Ok(Self { reader, line: String::new() })
    }

    pub(crate) fn connect_many(server: &Server, count: usize) -> anyhow::Result<Vec<Self>> {
        (0..count).map(|_| Self::connect(server)).collect()
    }

    /// Requests the lock for a minute: see [`Socket::ask_for_the_lock_for`].
    pub(crate) fn ask_for_the_lock(&mut self, client: usize) -> anyhow::Result<()> {
        self.ask_for_the_lock_for(client, 60_000)
    }

    /// Requests the lock `orders/42`, which all clients use, with the token of this client. The ttl
    /// and the wait are `ms` milliseconds. Does not read the reply.
    pub(crate) fn ask_for_the_lock_for(&mut self, client: usize, ms: u64) -> anyhow::Result<()> {
        self.send(&format!("LOCK.ACQUIRE orders/42 {client:032x} {ms} WAIT {ms}\r\n"))
    }

    /// Releases the lock. Does not read the reply.
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

    /// Reads a line of a reply, and fails if it is not `answer`.
    pub(crate) fn expect(&mut self, answer: &str) -> anyhow::Result<()> {
        self.read_line()?;
        ensure!(self.line == answer, "the server answered {:?} instead of {answer:?}", self.line);
        Ok(())
    }

    fn read_line(&mut self) -> anyhow::Result<()> {
        self.line.clear();
        self.reader.read_line(&mut self.line)?;
        self.line.truncate(self.line.trim_end().len());
        Ok(())
    }
}

pub(crate) fn waiters(server: &Server) -> anyhow::Result<u64> {
    info(&mut server.try_connection()?, "lock", "lock_waiters")
}

/// Returns a number of bytes.
pub(crate) fn used_memory(connection: &mut Connection) -> anyhow::Result<u64> {
    info(connection, "memory", "used_memory")
}

/// Returns the number of lock commands that all servers have executed so far.
pub(crate) fn lock_calls(masters: &Masters) -> anyhow::Result<u64> {
    masters.iter().map(lock_calls_of).sum()
}

fn lock_calls_of(server: &Server) -> anyhow::Result<u64> {
    let stats: String = cmd("INFO").arg("commandstats").query(&mut server.try_connection()?)?;
    let lock_commands = stats.lines().filter(|line| line.starts_with("cmdstat_lock."));
    lock_commands
        .map(|line| {
            let calls = line.split_once("calls=").and_then(|(_, rest)| rest.split(',').next());
            let calls = calls.with_context(|| format!("no field `calls` in {line:?}"))?;
            calls.parse::<u64>().with_context(|| format!("`calls` is not a number in {line:?}"))
        })
        .sum()
}

/// The value of `slowlog-log-slower-than`: the slow log records no shorter command.
const SLOWLOG_THRESHOLD_US: u64 = 100;
/// The value of `slowlog-max-len`. No measurement fills the slow log between two reads.
const ENTRIES_MAX: u32 = 10_000;

/// The measurement itself sends these commands.
const IGNORED_COMMANDS: [&str; 4] = ["INFO", "SLOWLOG", "CONFIG", "DEBUG"];

/// A command and its duration on the server; `None` when no command was recorded.
pub(crate) type Slowest = Option<(String, Duration)>;

/// An entry of the slow log: number, time, duration in microseconds, arguments, client address,
/// client name.
type Entry = (u64, u64, u64, Vec<String>, String, String);

/// Starts to record slow commands, and removes earlier entries.
pub(crate) fn begin_slowlog(connection: &mut Connection) -> anyhow::Result<()> {
    let set = |name: &str, value: u64| cmd("CONFIG").arg("SET").arg(name).arg(value).take();
    set("slowlog-log-slower-than", SLOWLOG_THRESHOLD_US).exec(connection)?;
    set("slowlog-max-len", ENTRIES_MAX.into()).exec(connection)?;
    Ok(cmd("SLOWLOG").arg("RESET").exec(connection)?)
}

/// Returns the slowest command since the last call.
pub(crate) fn take_slowest(connection: &mut Connection) -> anyhow::Result<Slowest> {
    let entries: Vec<Entry> = cmd("SLOWLOG").arg("GET").arg(-1).query(connection)?;
    cmd("SLOWLOG").arg("RESET").exec(connection)?;
    let commands = entries.into_iter().filter_map(|(_, _, us, mut args, ..)| {
        let name = args.swap_remove(0).to_uppercase();
        (!IGNORED_COMMANDS.contains(&name.as_str())).then_some((name, Duration::from_micros(us)))
    });
    Ok(commands.max_by_key(|(_, duration)| *duration))
}

/// Returns the duration of the slowest command. If no command was recorded, returns the shortest
/// duration that is recorded.
pub(crate) fn slowest_duration(slowest: &Slowest) -> Duration {
    slowest.as_ref().map_or(Duration::from_micros(SLOWLOG_THRESHOLD_US), |(_, duration)| *duration)
}

/// Largest number of open files of this process or of a server, beside the waiters' connections.
pub(crate) const OTHER_FILES: usize = 256;

/// Raises the limit of open files for this process and its children, and returns it.
pub(crate) fn raise_file_limit() -> anyhow::Result<usize> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(limit.maximum.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX)))
}

/// Runs `measuring` on one processor and the servers on another, and unpins the servers afterwards.
///
/// Without this, the scheduler's choice of processors changes the results more than most effects
/// that are measured.
pub(crate) fn apart_from_servers<T: Send>(
    servers: &[&Server],
    measuring: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let anywhere = sched_getaffinity(None)?;
    let (for_measuring, for_servers) = two_processors(&anywhere)?;
    for server in servers {
        run_on(server, &for_servers)?;
    }
    let pinned = move || {
        sched_setaffinity(None, &for_measuring)?;
        measuring()
    };
    let measured =
        thread::scope(|scope| scope.spawn(pinned).join().expect("the measuring thread panicked"));
    for server in servers {
        run_on(server, &anywhere)?;
    }
    measured
}

/// Returns the processor time of the first thread of a process so far (Linux).
///
/// The kernel updates this time when the thread sleeps, so the end of one turn of the server may
/// count for the next turn.
pub(crate) fn processor_time(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/task/{pid}/schedstat");
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let ns = stat.split(' ').next().and_then(|ns| ns.parse().ok());
    Ok(Duration::from_nanos(ns.with_context(|| format!("{path} does not begin with a number"))?))
}

fn run_on(server: &Server, processors: &CpuSet) -> anyhow::Result<()> {
    let pid = Pid::from_raw(server.pid().cast_signed()).context("the server has no process ID")?;
    Ok(sched_setaffinity(Some(pid), processors)?)
}

/// Returns two of these processors, or the only one twice.
fn two_processors(all: &CpuSet) -> anyhow::Result<(CpuSet, CpuSet)> {
    let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
    let first = usable.next().context("no processor is available")?;
    let only = |cpu| {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    };
    Ok((only(first), only(usable.next().unwrap_or(first))))
}
