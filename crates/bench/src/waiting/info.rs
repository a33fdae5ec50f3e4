//! What servers say of themselves.

use anyhow::Context as _;
use quorlock_testkit::{Masters, Server};
use redis::{Connection, cmd};

/// A number of a section of `INFO`.
pub(crate) fn number(connection: &mut Connection, section: &str, field: &str) -> anyhow::Result<u64> {
    let info: String = cmd("INFO").arg(section).query(connection)?;
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let value = value.with_context(|| format!("INFO {section} has no {field}"))?;
    value.trim().parse().with_context(|| format!("{field} is {value}"))
}

/// How many clients wait for a lock.
pub(crate) fn waiters(server: &Server) -> anyhow::Result<u64> {
    number(&mut server.try_connection()?, "lock", "lock_waiters")
}

/// How many commands of ours all servers have carried out so far.
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
