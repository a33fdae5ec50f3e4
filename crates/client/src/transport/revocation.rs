//! LOCK.REVOKE and LOCK.SCAN, and their replies.

use ::redis::{Pipeline, Value};
use quorlock_core::client::{LeaseInfo, NodeError, RevokeCommand, RevokeReply, limits};

use super::Connection;
use super::command::read_error;
use super::inspection::{fields_of, read, read_abstention, read_lease};

type Key = Vec<u8>;

/// A part of a node's locks: the reply to one LOCK.SCAN.
pub(crate) struct Slice {
    /// Where the next slice begins; 0 at the end.
    pub(crate) cursor: u64,
    pub(crate) locks: Vec<(Key, LeaseInfo)>,
    /// Why the node abstains; `None` if it votes.
    pub(crate) abstains: Option<String>,
}

impl Connection {
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
        pipeline.arg("COUNT").arg(limits::SCAN_COUNT).cmd("INFO").arg("lock");
        let [slice, info] = <[Value; 2]>::try_from(self.ask_all(pipeline).await?)
            .map_err(|_| NodeError::UnexpectedReply)?;
        let (cursor, locks) = read_slice(slice)?;
        Ok(Slice { cursor, locks, abstains: read_abstention(info)? })
    }
}

fn read_revocation(command: RevokeCommand, replies: Vec<Value>) -> Result<RevokeReply, NodeError> {
    let mut replies = replies.into_iter();
    let was_locked = match command {
        RevokeCommand::Inspect => None,
        RevokeCommand::Revoke | RevokeCommand::RevokeNow => Some(match replies.next() {
            Some(Value::Int(0)) => false,
            Some(Value::Int(1)) => true,
            Some(Value::ServerError(error)) => return Err(read_error(&error.into())),
            _ => return Err(NodeError::UnexpectedReply),
        }),
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
    let (cursor, locks): (u64, Vec<Value>) = match reply {
        Value::ServerError(error) => return Err(read_error(&error.into())),
        reply => read(reply)?,
    };
    let locks = locks.into_iter().map(|lock| {
        let fields = fields_of(lock)?.ok_or(NodeError::UnexpectedReply)?;
        let is_key = |(name, _): &&(Value, Value)| *name == Value::BulkString(b"key".to_vec());
        let key = fields.iter().find(is_key).map(|(_, key)| key.clone());
        let key: Vec<u8> = read(key.ok_or(NodeError::UnexpectedReply)?)?;
        let lease = read_lease(Value::Map(fields))?.ok_or(NodeError::UnexpectedReply)?;
        Ok((key, lease))
    });
    Ok((cursor, locks.collect::<Result<_, NodeError>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn lock() -> Vec<Value> {
        vec![text("owner"), Value::Nil, text("fence"), Value::Int(7), text("ttl"), Value::Int(9)]
    }

    fn voting() -> Value {
        text("lock_state:voting\r\n")
    }

    #[test]
    fn revocation_reads_the_reply_and_the_lease_that_is_left() {
        let replies = vec![Value::Int(1), Value::Array(lock()), voting()];
        let unexpected = Err(NodeError::UnexpectedReply);
        let reply = read_revocation(RevokeCommand::Revoke, replies.clone()).unwrap();
        let (was_locked, is_held) = (reply.was_locked, reply.lease.is_some());
        assert_eq!((was_locked, is_held, reply.abstains), (Some(true), true, None));
        let reply = read_revocation(RevokeCommand::RevokeNow, replies.clone()).unwrap();
        assert_eq!(reply.lease, None, "it is the next lock");
        assert_eq!(read_revocation(RevokeCommand::Inspect, replies), unexpected);
        let replies = vec![Value::Nil, voting()];
        assert_eq!(read_revocation(RevokeCommand::Inspect, replies).unwrap().was_locked, None);
        let replies = vec![Value::Int(2), Value::Nil, voting()];
        assert_eq!(read_revocation(RevokeCommand::Revoke, replies), unexpected);
    }

    #[test]
    fn slice_has_a_key_for_each_lock() {
        let with_key = [vec![text("key"), text("k")], lock()].concat();
        let slice = |locks| Value::Array(vec![text("12"), Value::Array(locks)]);
        let (cursor, locks) = read_slice(slice(vec![Value::Array(with_key)])).unwrap();
        assert_eq!((cursor, &locks[0].0[..], locks.len()), (12, &b"k"[..], 1));
        assert!(read_slice(slice(vec![Value::Array(lock())])).is_err());
        assert!(read_slice(Value::Okay).is_err());
    }
}
