//! The same clients with simpler rules, which do harm.
//!
//! - A reader asks one node. A writer can have a majority without that node.
//! - A semaphore is a counter on each node, and a permit needs a majority of the counters. Five
//!   nodes with four places each have 20 places in all, and six holders need only 18.
//! - The fence of a lock is the largest one of its grants, on which the nodes have not agreed.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use quorlock_testkit::in_parallel;
use rand::RngExt as _;
use rand::seq::SliceRandom as _;
use redis::{Client, Cmd, Connection, FromRedisValue, RedisError, RedisResult, cmd};

use super::clients::{Role, RunState, random_of};
use super::{MAX_TTL, PERMITS, Plan};
use crate::history::{Hold, Mode, now};

const NODE_TIMEOUT: Duration = Duration::from_millis(100);
const WORK_MAX: Duration = Duration::from_millis(10);

/// Adds a holder to the set of holders, unless the set is full.
const TAKE_PERMIT: &str = "
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
    return 0
end
return redis.call('ZADD', KEYS[1], now_ms + ARGV[3], ARGV[1])";

/// Runs clients until the storm is over.
pub(super) fn run(plan: Plan, urls: &[String], state: &RunState) -> Result<()> {
    let clients = (0..).zip(plan.kind.groups().concat());
    let ended = in_parallel(clients, |(id, role)| compete(role, id, plan, urls, state));
    ended.into_iter().collect()
}

fn compete(role: Role, id: u32, plan: Plan, urls: &[String], state: &RunState) -> Result<()> {
    let mut rng = random_of(plan.seed, id);
    let open = |url: &String| Ok(Node { client: Client::open(url.as_str())?, connection: None });
    let mut nodes: Vec<Node> = urls.iter().map(open).collect::<RedisResult<_>>()?;
    let (enough, tries) =
        if role == Role::Reader { (1, 1) } else { (urls.len() / 2 + 1, urls.len()) };
    let mode = if role == Role::Writer { Mode::Exclusive } else { Mode::Shared };
    while !state.record().is_over {
        let (key, token) = (plan.kind.key(&mut rng), rng.random::<u128>().to_string());
        let asked = now();
        // In random order, so that chance decides which nodes grant the lock.
        nodes.shuffle(&mut rng);
        let acquire = acquire(role, &key, &token)?;
        let mut fences = Vec::new();
        for node in &mut nodes[..tries] {
            let granted = node.call::<Option<u64>>(&acquire).ok().flatten();
            fences.extend(granted.filter(|&fence| fence > 0));
            if fences.len() == enough {
                break;
            }
        }
        let from = now();
        // Half of the ttl leaves more than enough for drift.
        let until = asked + MAX_TTL / 2;
        thread::sleep(rng.random_range(Duration::ZERO..=WORK_MAX));
        if let Some(&fence) = fences.iter().max()
            && fences.len() == enough
        {
            let to = until.min(now());
            state.add(Hold { key: key.clone(), mode, client: id, from, to, fence });
        }
        let release = if role == Role::Permit { "ZREM" } else { "LOCK.RELEASE" };
        for node in &mut nodes {
            let _ = node.call::<u64>(cmd(release).arg(&key).arg(&token));
        }
    }
    Ok(())
}

fn acquire(role: Role, key: &str, token: &str) -> Result<Cmd> {
    let ms = MAX_TTL.as_millis();
    let lock = || cmd("LOCK.ACQUIRE").arg(key).arg(token).arg(ms).take();
    Ok(match role {
        Role::Reader => lock().arg("SHARED").take(),
        Role::Writer => {
            let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
            lock().arg("FENCE").arg(u64::try_from(since.as_micros())?).take()
        }
        Role::Permit => {
            cmd("EVAL").arg(TAKE_PERMIT).arg(1).arg(key).arg(token).arg(PERMITS).arg(ms).take()
        }
    })
}

/// A blocking connection to a node. After a timeout or a lost connection, the next call opens a new
/// one.
struct Node {
    client: Client,
    connection: Option<Connection>,
}

impl Node {
    fn call<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.client.get_connection_with_timeout(NODE_TIMEOUT)?,
        };
        connection.set_read_timeout(Some(NODE_TIMEOUT))?;
        let answer = command.query(&mut connection);
        // After a timeout, the next call would read the late answer as its own.
        if !answer.as_ref().is_err_and(RedisError::is_io_error) {
            self.connection = Some(connection);
        }
        answer
    }
}
