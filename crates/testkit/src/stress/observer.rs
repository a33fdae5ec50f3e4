use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, RedisResult, Value, cmd, from_redis_value, pipe};

use super::{Shared, Stress};

/// How long between two looks.
const PAUSE: Duration = Duration::from_micros(500);

/// The longest time for which it was seen, look after look, that a lock was free although somebody waited for it: from
/// when the first of these looks was answered to when the last was sent. Seen once only, it is no time at all, since a
/// look may come between the end of a lock and the end of that turn of the server's loop, when the next is served.
///
/// A look is a transaction, and thus one moment of the server: `LOCK.INSPECT` says how many wait for each lock that is
/// held, and `INFO lock` how many wait at all. The rest wait for a lock that is free.
pub(super) fn observe(shared: &Shared<'_>) -> Duration {
    let mut connection = shared.server.connection();
    let mut first_seen: Option<Instant> = None;
    let mut longest = Duration::ZERO;
    while !shared.is_over() {
        let sent = Instant::now();
        if look(&mut connection, shared.stress.keys).expect("nobody kills this client") {
            let since = *first_seen.get_or_insert_with(Instant::now);
            longest = longest.max(sent.saturating_duration_since(since));
        } else {
            first_seen = None;
        }
        shared.tally.looked();
        thread::sleep(PAUSE);
    }
    longest
}

/// Whether somebody waits for a lock that is free.
fn look(connection: &mut Connection, keys: usize) -> RedisResult<bool> {
    let mut transaction = pipe();
    transaction.atomic().add_command(cmd("INFO").arg("lock").take());
    for index in 0..keys {
        transaction.add_command(cmd("LOCK.INSPECT").arg(Stress::key(index)).take());
    }
    let mut answers = transaction.query::<Vec<Value>>(connection)?.into_iter();
    let info: String = answers.next().map(from_redis_value).transpose()?.unwrap_or_default();
    let waiters = info.lines().find_map(|line| line.strip_prefix("lock_waiters:"));
    let waiters: u64 = waiters.and_then(|waiters| waiters.trim().parse().ok()).expect("the module says so");
    let for_held_locks: u64 = answers.map(|held| waiters_of(&held)).sum();
    Ok(waiters > for_held_locks)
}

/// How many wait for a lock, if it is held.
fn waiters_of(inspected: &Value) -> u64 {
    let Value::Array(fields) = inspected else { return 0 };
    let name = |field: &[Value]| matches!(&field[0], Value::BulkString(name) if name == b"waiters");
    let waiters = fields.chunks_exact(2).find(|field| name(field)).map(|field| &field[1]);
    match waiters {
        Some(Value::Int(waiters)) => u64::try_from(*waiters).unwrap_or_default(),
        _ => panic!("LOCK.INSPECT answered {inspected:?}"),
    }
}
