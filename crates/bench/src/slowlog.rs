//! The slowest commands by the server's own account: `SLOWLOG`.

use std::time::Duration;

use redis::{Connection, cmd};

/// Commands that take less are not recorded, in microseconds: `slowlog-log-slower-than`.
const FROM_US: u64 = 100;
/// More than any measurement here leaves between two looks: `slowlog-max-len`.
const ENTRIES_MAX: u32 = 10_000;

/// Commands of the measurement itself.
const OUR_OWN: [&str; 4] = ["INFO", "SLOWLOG", "CONFIG", "DEBUG"];

/// A command and its duration on the server; `None` when no command was recorded.
pub(crate) type Slowest = Option<(String, Duration)>;

/// An entry: number, time, duration in microseconds, arguments, client address, client name.
type Entry = (u64, u64, u64, Vec<String>, String, String);

/// Begins to record, without what was recorded before.
pub(crate) fn begin(connection: &mut Connection) -> anyhow::Result<()> {
    let set = |name: &str, value: u64| cmd("CONFIG").arg("SET").arg(name).arg(value).take();
    set("slowlog-log-slower-than", FROM_US).exec(connection)?;
    set("slowlog-max-len", ENTRIES_MAX.into()).exec(connection)?;
    Ok(cmd("SLOWLOG").arg("RESET").exec(connection)?)
}

/// Returns the slowest command since the last call, and forgets it.
pub(crate) fn take_slowest(connection: &mut Connection) -> anyhow::Result<Slowest> {
    let entries: Vec<Entry> = cmd("SLOWLOG").arg("GET").arg(-1).query(connection)?;
    cmd("SLOWLOG").arg("RESET").exec(connection)?;
    let commands = entries.into_iter().filter_map(|(_, _, us, mut args, ..)| {
        let name = args.swap_remove(0).to_uppercase();
        (!OUR_OWN.contains(&name.as_str())).then_some((name, Duration::from_micros(us)))
    });
    Ok(commands.max_by_key(|(_, duration)| *duration))
}

/// How long the slowest one took, at most.
pub(crate) fn duration(slowest: &Slowest) -> Duration {
    slowest.as_ref().map_or(Duration::from_micros(FROM_US), |(_, duration)| *duration)
}
