//! What operators ask about locks: LOCK.INSPECT, LOCK.REVOKE and LOCK.SCAN, and their replies.

use std::collections::HashMap;
use std::time::Duration;

use ::redis::{FromRedisValue, Pipeline, Value, from_redis_value};
use quorlock_core::node::SCAN_COUNT_MAX;
use quorlock_core::operator::{
    LeaseInfo, LockMode, RevokeCommand, RevokeReply, WaiterInfo, inspection_answer,
};
use quorlock_core::{Fence, NodeError};

use super::Connection;
use super::command::read_error;

type Key = Vec<u8>;
type Fields = HashMap<String, Value>;

/// A part of a node's locks: the reply to one LOCK.SCAN.
pub(crate) struct Slice {
    /// Where the next slice begins; 0 at the end.
    pub(crate) cursor: u64,
    pub(crate) locks: Vec<(Key, LeaseInfo)>,
    /// Why the node abstains; `None` if it votes.
    pub(crate) abstains: Option<String>,
}

impl Connection {
    /// Also asks whether the node may have forgotten a lock.
    pub(crate) async fn inspect(&self, key: &[u8]) -> Result<Option<LeaseInfo>, NodeError> {
        let reply = self.revoke(key, RevokeCommand::Inspect).await?;
        inspection_answer(reply.lease, reply.abstains)
    }

    /// The lease of each key; `None` if the key is free.
    pub(crate) async fn leases<'a>(
        &self,
        keys: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<Vec<Option<LeaseInfo>>, NodeError> {
        let mut pipeline = Pipeline::with_capacity(keys.len());
        for key in keys {
            pipeline.cmd("LOCK.INSPECT").arg(key);
        }
        self.ask_all(pipeline).await?.into_iter().map(read_lease).collect()
    }

    pub(crate) async fn revoke(
        &self,
        key: &[u8],
        command: RevokeCommand,
    ) -> Result<RevokeReply, NodeError> {
        let mut pipeline = Pipeline::with_capacity(3);
        match command {
            RevokeCommand::Revoke => {
                pipeline.cmd("LOCK.REVOKE").arg(key);
            }
            RevokeCommand::RevokeNow => {
                pipeline.cmd("LOCK.REVOKE").arg(key).arg("NOW");
            }
            RevokeCommand::Inspect => {}
        }
        pipeline.cmd("LOCK.INSPECT").arg(key).cmd("INFO").arg("lock");
        read_revocation(command, self.ask_all(pipeline).await?)
    }

    pub(crate) async fn scan(&self, cursor: u64, pattern: &[u8]) -> Result<Slice, NodeError> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("LOCK.SCAN").arg(cursor).arg("MATCH").arg(pattern);
        pipeline.arg("COUNT").arg(SCAN_COUNT_MAX).cmd("INFO").arg("lock");
        let [slice, info] = <[Value; 2]>::try_from(self.ask_all(pipeline).await?)
            .map_err(|_| NodeError::UnexpectedReply)?;
        let (cursor, locks) = read_slice(slice)?;
        Ok(Slice { cursor, locks, abstains: read_abstention(info)? })
    }
}

fn read_revocation(command: RevokeCommand, replies: Vec<Value>) -> Result<RevokeReply, NodeError> {
    let mut replies = replies.into_iter();
    let was_locked = match command {
        RevokeCommand::Inspect => false,
        RevokeCommand::Revoke | RevokeCommand::RevokeNow => {
            match read(replies.next().unwrap_or(Value::Nil))? {
                0 => false,
                1 => true,
                _ => return Err(NodeError::UnexpectedReply),
            }
        }
    };
    let (Some(lease), Some(info), None) = (replies.next(), replies.next(), replies.next()) else {
        return Err(NodeError::UnexpectedReply);
    };
    let lease = read_lease(lease)?;
    let abstains = read_abstention(info)?;
    // NOW has ended the lock, so a lease under the key is another lock's, for example a waiter's.
    let lease = lease.filter(|_| command != RevokeCommand::RevokeNow);
    Ok(RevokeReply { was_locked, lease, abstains })
}

fn read_slice(reply: Value) -> Result<(u64, Vec<(Key, LeaseInfo)>), NodeError> {
    let (cursor, locks): (u64, Vec<Fields>) = read(reply)?;
    let locks = locks.into_iter().map(|mut lock| {
        let key = lock.remove("key").ok_or(NodeError::UnexpectedReply)?;
        Ok((read(key)?, lease_of(lock)?))
    });
    Ok((cursor, locks.collect::<Result<_, NodeError>>()?))
}

/// `None` if the key is free.
fn read_lease(reply: Value) -> Result<Option<LeaseInfo>, NodeError> {
    read::<Option<Fields>>(reply)?.map(lease_of).transpose()
}

/// Skips fields of a newer module.
fn lease_of(mut fields: Fields) -> Result<LeaseInfo, NodeError> {
    let (Some(fence), Some(ttl_ms)) = (fields.remove("fence"), fields.remove("ttl")) else {
        return Err(NodeError::UnexpectedReply);
    };
    let mut lease = LeaseInfo::default();
    let fence: Option<u64> = read(fence)?;
    let fence = fence.map(|fence| Fence::new(fence).ok_or(NodeError::UnexpectedReply));
    lease.fence = fence.transpose()?;
    // The number is negative for a key without an expiry.
    lease.ttl = u64::try_from(read::<i64>(ttl_ms)?).ok().map(Duration::from_millis);
    lease.owners = match fields.remove("owner") {
        Some(Value::Array(owners)) => owners.into_iter().map(text).collect::<Result<_, _>>()?,
        owner => vec![text(owner.unwrap_or(Value::Nil))?],
    };
    lease.owner = lease.owners.first().cloned().flatten();
    lease.held_for = take::<u64>(&mut fields, "held")?.map(Duration::from_millis);
    lease.mode = match take::<String>(&mut fields, "mode")?.as_deref() {
        Some("exclusive") => LockMode::Exclusive,
        Some("shared") => LockMode::Shared,
        Some("foreign") => LockMode::Foreign,
        _ => LockMode::Unknown,
    };
    lease.holders = take(&mut fields, "holders")?.unwrap_or(lease.holders);
    lease.waiters = take(&mut fields, "waiters")?.unwrap_or(lease.waiters);
    lease.keys = take(&mut fields, "keys")?.unwrap_or(lease.keys);
    lease.revoked = take::<i64>(&mut fields, "revoked")?.is_some_and(|revoked| revoked != 0);
    let clients: Option<Vec<Fields>> = take(&mut fields, "clients")?;
    let mut clients = clients.unwrap_or_default().into_iter();
    let labels: Option<Vec<Value>> = take(&mut fields, "queue")?;
    for label in labels.unwrap_or_default() {
        let mut client = clients.next().unwrap_or_default();
        let mut field = |name| text(client.remove(name).unwrap_or(Value::Nil));
        let mut waiter = WaiterInfo::default();
        waiter.owner = text(label)?;
        waiter.client = field("client")?;
        waiter.user = field("user")?;
        waiter.address = field("address")?;
        lease.queue.push(waiter);
    }
    Ok(lease)
}

/// `None` if the field is nil or missing.
fn take<T: FromRedisValue>(fields: &mut Fields, name: &str) -> Result<Option<T>, NodeError> {
    read(fields.remove(name).unwrap_or(Value::Nil))
}

/// A client chose the text, which may be any bytes.
fn text(value: Value) -> Result<Option<String>, NodeError> {
    let text: Option<Vec<u8>> = read(value)?;
    Ok(text.map(|text| String::from_utf8_lossy(&text).into_owned()))
}

/// Why the node abstains, after the milliseconds left if known: `59990 start`; `None` if it votes.
fn read_abstention(reply: Value) -> Result<Option<String>, NodeError> {
    let info: String = read(reply)?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if field("lock_state:") != Some("abstaining") {
        return Ok(None);
    }
    let reason = field("lock_abstain_reason:").unwrap_or("unknown");
    Ok(Some(match field("lock_abstain_left_ms:") {
        Some(left_ms) => format!("{left_ms} {reason}"),
        None => reason.to_owned(),
    }))
}

fn read<T: FromRedisValue>(reply: Value) -> Result<T, NodeError> {
    match reply {
        Value::ServerError(error) => Err(read_error(&error.into())),
        reply => from_redis_value(reply).map_err(|_| NodeError::UnexpectedReply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn voting() -> Value {
        text("# lock\r\nlock_version:0.1.0\r\nlock_state:voting\r\n")
    }

    /// A lock, with some fields instead of its own.
    fn lock<const N: usize>(fields: [(&str, Value); N]) -> Value {
        let mut all = HashMap::from([
            ("clients", Value::Array(vec![Value::Map(vec![(text("user"), text("default"))])])),
            ("fence", Value::Int(7)),
            ("holders", Value::Int(1)),
            ("held", Value::Int(1500)),
            ("key", text("k")),
            ("keys", Value::Int(1)),
            ("mode", text("exclusive")),
            ("of a newer module", Value::Array(vec![Value::Nil])),
            ("owner", text("web-3")),
            ("queue", Value::Array(vec![text("web-4"), Value::Nil])),
            ("revoked", Value::Int(1)),
            ("ttl", Value::Int(7302)),
            ("waiters", Value::Int(2)),
        ]);
        all.extend(fields);
        Value::Map(all.into_iter().map(|(name, value)| (text(name), value)).collect())
    }

    #[test]
    fn fields_of_a_lease_are_read() {
        let lease = read_lease(lock([])).unwrap().unwrap();
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!((lease.fence, lease.ttl, lease.held_for), (Fence::new(7), ms(7302), ms(1500)));
        assert_eq!((lease.owner.as_deref(), lease.mode), (Some("web-3"), LockMode::Exclusive));
        assert_eq!((lease.waiters, lease.keys, lease.holders, lease.revoked), (2, 1, 1, true));
        assert_eq!((lease.queue[0].owner.as_deref(), lease.queue.len()), (Some("web-4"), 2));
        assert_eq!(lease.queue[0].user.as_deref(), Some("default"));
        assert_eq!((&lease.queue[1].owner, &lease.queue[1].user), (&None, &None));
        let foreign = lock([("owner", Value::Nil), ("fence", Value::Nil), ("ttl", Value::Int(-1))]);
        let lease = read_lease(foreign).unwrap().unwrap();
        assert_eq!((lease.owner, lease.fence, lease.ttl), (None, None, None));
        let no_ttl = Value::Map(vec![(text("fence"), Value::Int(7))]);
        let unexpected = [no_ttl, lock([("fence", Value::Int(-5))]), Value::Okay];
        for reply in unexpected {
            assert_eq!(read_lease(reply), Err(NodeError::UnexpectedReply));
        }
    }

    #[test]
    fn revocation_reads_the_reply_the_lease_that_is_left_and_the_abstention() {
        let replies = vec![Value::Int(1), lock([]), voting()];
        let unexpected = Err(NodeError::UnexpectedReply);
        let reply = read_revocation(RevokeCommand::Revoke, replies.clone()).unwrap();
        let (was_locked, is_held) = (reply.was_locked, reply.lease.is_some());
        assert_eq!((was_locked, is_held, reply.abstains), (true, true, None));
        let reply = read_revocation(RevokeCommand::RevokeNow, replies.clone()).unwrap();
        assert_eq!(reply.lease, None, "it is the next lock");
        assert_eq!(read_revocation(RevokeCommand::Inspect, replies), unexpected);
        let info =
            "lock_state:abstaining\r\nlock_abstain_reason:start\r\nlock_abstain_left_ms:59990\r\n";
        let reply = read_revocation(RevokeCommand::Inspect, vec![Value::Nil, text(info)]).unwrap();
        assert_eq!((reply.was_locked, reply.abstains.as_deref()), (false, Some("59990 start")));
        let replies = vec![Value::Int(2), Value::Nil, voting()];
        assert_eq!(read_revocation(RevokeCommand::Revoke, replies), unexpected);
    }

    #[test]
    fn slice_has_a_key_for_each_lock() {
        let slice = |lock| Value::Array(vec![text("12"), Value::Array(vec![lock])]);
        let (cursor, locks) = read_slice(slice(lock([]))).unwrap();
        assert_eq!((cursor, &locks[0].0[..], locks.len()), (12, &b"k"[..], 1));
        assert!(read_slice(slice(Value::Map(Vec::new()))).is_err());
        assert!(read_slice(Value::Okay).is_err());
    }
}
