//! The same clients with simpler rules, which admit too many holders.
//!
//! - A reader asks one node. A writer can have a majority without that node.
//! - A semaphore is a counter on each node, and a permit needs a majority of the counters. Five
//!   nodes with four places each have 20 places in all, and six holders need only 18.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use rand::RngExt as _;
use rand::seq::SliceRandom as _;
use redis::{Cmd, RedisResult, cmd};

use super::client::{Role, RunState};
use super::history::{Hold, Mode};
use super::{KEY, Kind, MAX_TTL, PERMITS, READERS, SEMAPHORE_CLIENTS, WRITERS};
use crate::harness::{Grant, NodeConnection, now, random_of, result_of};

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

/// Runs clients until `state.stop` is set.
pub(super) fn run(kind: Kind, seed: u64, urls: &[String], state: &Arc<RunState>) -> Result<()> {
    let roles = match kind {
        Kind::Shared => [vec![Role::Writer; WRITERS], vec![Role::Reader; READERS]].concat(),
        Kind::Semaphore => vec![Role::Semaphore; SEMAPHORE_CLIENTS],
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..)
            .zip(roles)
            .map(|(id, role)| scope.spawn(move || role.compete(id, seed, urls, state)))
            .collect();
        clients.into_iter().try_for_each(|client| result_of(client.join()))
    })
}

impl Role {
    fn compete(self, id: u32, seed: u64, urls: &[String], state: &RunState) -> Result<()> {
        let mut rng = random_of(seed, id);
        let mut nodes = NodeConnection::all(urls, NODE_TIMEOUT)?;
        let (enough, tries) =
            if self == Self::Reader { (1, 1) } else { (urls.len() / 2 + 1, urls.len()) };
        let mode = if self == Self::Writer { Mode::Exclusive } else { Mode::Shared };
        while !state.is_over() {
            let token = rng.random::<u128>().to_string();
            let asked = now();
            // In random order, so that chance decides which nodes grant the lock.
            nodes.shuffle(&mut rng);
            let mut granted = 0;
            for node in &mut nodes[..tries] {
                let grant: RedisResult<Option<u64>> = node.call(&self.acquire(&token));
                granted += usize::from(grant.ok().flatten().is_some_and(|answer| answer > 0));
                if granted == enough {
                    break;
                }
            }
            let from = now();
            // Half of the ttl leaves more than enough for drift.
            let until = asked + MAX_TTL / 2;
            thread::sleep(rng.random_range(Duration::ZERO..=WORK_MAX));
            if granted == enough && from < until {
                let to = until.min(now());
                let grant = Grant { key: KEY.into(), client: id, from, to, fence: 0 };
                state.record().holds.push(Hold { mode, grant });
            }
            for node in &mut nodes {
                let _ = node.call::<u64>(&self.release(&token));
            }
        }
        Ok(())
    }

    fn acquire(self, token: &str) -> Cmd {
        let ms = MAX_TTL.as_millis();
        match self {
            Self::Writer => cmd("LOCK.ACQUIRE").arg(KEY).arg(token).arg(ms).take(),
            Self::Reader => cmd("LOCK.ACQUIRE").arg(KEY).arg(token).arg(ms).arg("SHARED").take(),
            Self::Semaphore => {
                cmd("EVAL").arg(TAKE_PERMIT).arg(1).arg(KEY).arg(token).arg(PERMITS).arg(ms).take()
            }
        }
    }

    fn release(self, token: &str) -> Cmd {
        let name = if self == Self::Semaphore { "ZREM" } else { "LOCK.RELEASE" };
        cmd(name).arg(KEY).arg(token).take()
    }
}
