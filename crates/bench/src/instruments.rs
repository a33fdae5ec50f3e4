//! The instruments: latencies, blocking sockets, `INFO`, `SLOWLOG`, processors and file limits.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hdrhistogram::Histogram;
use quorlock_testkit::Server;
use redis::{Connection, cmd};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

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
}

/// Larger than most replies, and small because there are thousands of sockets.
const BUFFER_BYTES: usize = 128;

/// A blocking TCP connection to a server, with `TCP_NODELAY` and without a client library.
pub(crate) struct Socket {
    reader: BufReader<TcpStream>,
    line: String,
}

impl Socket {
    pub(crate) fn connect(server: &Server) -> anyhow::Result<Self> {
        let url = server.url();
        let address = url.strip_prefix("redis://").context("the server does not listen on TCP")?;
        let stream = TcpStream::connect(address.trim_end_matches('/'))?;
        stream.set_nodelay(true)?;
        let reader = BufReader::with_capacity(BUFFER_BYTES, stream);
        Ok(Self { reader, line: String::new() })
    }

    pub(crate) fn connect_many(server: &Server, count: usize) -> anyhow::Result<Vec<Self>> {
        (0..count).map(|_| Self::connect(server)).collect()
    }

    /// Requests the lock `orders/42` with the token of this client. The ttl and the wait are `ms`
    /// milliseconds. Does not read the reply.
    pub(crate) fn ask_for_the_lock(&mut self, client: usize, ms: u64) -> anyhow::Result<()> {
        self.send(&format!("LOCK.ACQUIRE orders/42 {client:032x} {ms} WAIT {ms}\r\n"))
    }

    /// Waits until the lock is granted.
    pub(crate) fn read_grant(&mut self) -> anyhow::Result<()> {
        self.expect("*2")?;
        self.read_line()?;
        self.read_line()?;
        Ok(())
    }

    pub(crate) fn ping(&mut self) -> anyhow::Result<()> {
        self.send("PING\r\n")?;
        self.expect("+PONG")
    }

    pub(crate) fn send(&mut self, commands: &str) -> anyhow::Result<()> {
        Ok(self.reader.get_mut().write_all(commands.as_bytes())?)
    }

    /// Reads a line of a reply, and fails if it is not `answer`.
    pub(crate) fn expect(&mut self, answer: &str) -> anyhow::Result<()> {
        let line = self.read_line()?;
        ensure!(line == answer, "the server answered {line:?} instead of {answer:?}");
        Ok(())
    }

    /// Reads replies, and fails if they are not `answers`.
    pub(crate) fn expect_all(&mut self, answers: &[u8], buffer: &mut [u8]) -> anyhow::Result<()> {
        self.reader.read_exact(buffer)?;
        ensure!(buffer == answers, "the server sent an unexpected answer");
        Ok(())
    }

    /// Reads the answers of this many lock commands, each a line. Fails if one is a refusal.
    pub(crate) fn expect_done(&mut self, answers: usize) -> anyhow::Result<()> {
        for _ in 0..answers {
            let line = self.read_line()?;
            // An error, a null, or a zero is a refusal.
            let is_done = line.starts_with('+') || line.starts_with(':') && line != ":0";
            ensure!(is_done, "the server answered a lock command with {line:?}");
        }
        Ok(())
    }

    pub(crate) fn read_line(&mut self) -> anyhow::Result<&str> {
        self.line.clear();
        self.reader.read_line(&mut self.line)?;
        Ok(self.line.trim_end())
    }
}

/// Returns the time that the server has spent on a command since its start.
pub(crate) fn time_of_command(
    connection: &mut Connection,
    command: &str,
) -> anyhow::Result<Duration> {
    let info: String = cmd("INFO").arg("commandstats").query(connection)?;
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_")?.strip_prefix(command));
    // Before its first call, a command has no line.
    let Some(line) = line else { return Ok(Duration::ZERO) };
    let us = line.split(',').find_map(|field| field.strip_prefix("usec=")?.parse().ok());
    Ok(Duration::from_micros(us.context("the statistics have no such field")?))
}

/// The value of `slowlog-log-slower-than`: the slow log records no shorter command.
const SLOWLOG_THRESHOLD: Duration = Duration::from_micros(100);
/// The value of `slowlog-max-len`. No measurement fills the slow log between two reads.
const ENTRIES_MAX: u32 = 10_000;

/// The measurement itself sends these commands.
const IGNORED_COMMANDS: [&str; 4] = ["INFO", "SLOWLOG", "CONFIG", "DEBUG"];

/// An entry of the slow log: number, time, duration in microseconds, arguments, client address,
/// client name.
type Entry = (u64, u64, u64, Vec<String>, String, String);

/// Starts to record slow commands.
pub(crate) fn begin_slowlog(connection: &mut Connection) -> anyhow::Result<()> {
    cmd("CONFIG")
        .arg("SET")
        .arg(&["slowlog-log-slower-than", &SLOWLOG_THRESHOLD.as_micros().to_string()])
        .arg(&["slowlog-max-len", &ENTRIES_MAX.to_string()])
        .exec(connection)?;
    Ok(())
}

/// Returns the duration and the name of the slowest command since the last call. If no command was
/// recorded, returns the shortest duration that is recorded.
pub(crate) fn take_slowest(connection: &mut Connection) -> anyhow::Result<(Duration, String)> {
    let entries: Vec<Entry> = cmd("SLOWLOG").arg("GET").arg(-1).query(connection)?;
    cmd("SLOWLOG").arg("RESET").exec(connection)?;
    let commands = entries.into_iter().filter_map(|(_, _, us, mut args, ..)| {
        let name = args.swap_remove(0).to_uppercase();
        (!IGNORED_COMMANDS.contains(&name.as_str())).then_some((Duration::from_micros(us), name))
    });
    Ok(commands.max().unwrap_or((SLOWLOG_THRESHOLD, "none longer".into())))
}

/// Largest number of open files of this process or of a server, beside the waiters' connections.
pub(crate) const OTHER_FILES: usize = 256;

/// Raises the limit of open files for this process and its children to its maximum, and fails if
/// that is less than these connections need.
pub(crate) fn require_files(connections: usize) -> anyhow::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    let needed = connections + OTHER_FILES;
    ensure!(
        maximum.is_none_or(|files| files >= needed as u64),
        "{connections} connections need {needed} open files: raise `ulimit -n`"
    );
    Ok(())
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
    let [for_measuring, for_servers] = two_processors()?;
    for server in servers {
        sched_setaffinity(Some(process_of(server)?), &for_servers)?;
    }
    let pinned = move || {
        sched_setaffinity(None, &for_measuring)?;
        measuring()
    };
    let measured =
        thread::scope(|scope| scope.spawn(pinned).join().expect("the measuring thread panicked"));
    for server in servers {
        sched_setaffinity(Some(process_of(server)?), &anywhere)?;
    }
    measured
}

/// Moves this thread to the processor of a pinned server. Returns the processors that it had.
///
/// For single events, of which the longest counts: while two processors of a virtual machine are
/// busy, the host may take one of them away for milliseconds.
pub(crate) fn join_server(server: &Server) -> anyhow::Result<CpuSet> {
    let apart = sched_getaffinity(None)?;
    sched_setaffinity(None, &sched_getaffinity(Some(process_of(server)?))?)?;
    Ok(apart)
}

/// Returns the processor time of the first thread of a server so far (Linux).
///
/// The kernel updates this time when the thread sleeps, so the end of one turn of the server may
/// count for the next turn.
pub(crate) fn processor_time(server: &Server) -> anyhow::Result<Duration> {
    scheduled(server.pid(), 0)
}

/// Returns how long the first thread of a server and this thread have waited for a processor so far
/// (Linux).
pub(crate) fn time_without_processor(server: &Server) -> anyhow::Result<Duration> {
    let this = gettid().as_raw_nonzero().get().cast_unsigned();
    Ok(scheduled(server.pid(), 1)? + scheduled(this, 1)?)
}

/// Returns a field of the scheduler's figures of a thread.
fn scheduled(thread: u32, field: usize) -> anyhow::Result<Duration> {
    let path = format!("/proc/{thread}/schedstat");
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let ns = stat.split_whitespace().nth(field).and_then(|ns| ns.parse().ok());
    Ok(Duration::from_nanos(ns.with_context(|| format!("{path} has an unexpected form"))?))
}

fn process_of(server: &Server) -> anyhow::Result<Pid> {
    Pid::from_raw(server.pid().cast_signed()).context("the server has no process ID")
}

/// Returns two processors, or the only one twice.
fn two_processors() -> anyhow::Result<[CpuSet; 2]> {
    let all = sched_getaffinity(None)?;
    let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
    let first = usable.next().context("no processor is available")?;
    let second = usable.next().unwrap_or(first);
    Ok([first, second].map(|cpu| {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    }))
}
