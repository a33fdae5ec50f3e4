//! What the machine lends to servers and their clients: processors and open files.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use quorlock_testkit::Server;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Raises the number of files that this process, and each that it starts, may have open, and returns it.
pub(crate) fn raise_file_limit() -> anyhow::Result<usize> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(limit.maximum.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX)))
}

/// Runs `measuring` on one processor and the servers on another, and lets the servers go anywhere afterwards. Where the
/// scheduler happens to put them makes more of a difference than most of what is measured.
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

/// Returns how long the first thread of a process has run on any processor (Linux). The kernel brings this up to date when
/// the thread sleeps, so that the end of one turn may count towards the next.
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

/// Two of these, or the only one twice.
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
