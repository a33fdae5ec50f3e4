//! LOCK.INSPECT and its reply.

use std::time::Duration;

use ::redis::{Pipeline, Value, from_redis_value};
use quorlock_core::Fence;
use quorlock_core::client::{LeaseInfo, LockMode, NodeError, WaiterInfo, inspection_answer};

use super::Connection;
use super::command::read_error;

impl Connection {
    /// Also asks whether the node may have forgotten a lock.
    pub(crate) async fn inspect(&self, key: &[u8]) -> Result<Option<LeaseInfo>, NodeError> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("LOCK.INSPECT").arg(key).cmd("INFO").arg("lock");
        read_inspection(self.ask_all(pipeline).await)
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
}

fn read_inspection(replies: Result<Vec<Value>, NodeError>) -> Result<Option<LeaseInfo>, NodeError> {
    let Ok([lease, info]) = <[Value; 2]>::try_from(replies?) else {
        return Err(NodeError::UnexpectedReply);
    };
    inspection_answer(read_lease(lease)?, read_abstention(info)?)
}

/// The fields of a map in RESP3, or of a flat array in RESP2; `None` for nil.
pub(super) fn fields_of(reply: Value) -> Result<Option<Vec<(Value, Value)>>, NodeError> {
    match reply {
        Value::Nil => Ok(None),
        Value::Map(fields) => Ok(Some(fields)),
        Value::Array(values) if values.len().is_multiple_of(2) => {
            let mut values = values.into_iter();
            Ok(Some(std::iter::from_fn(|| Some((values.next()?, values.next()?))).collect()))
        }
        Value::ServerError(error) => Err(read_error(&error.into())),
        _ => Err(NodeError::UnexpectedReply),
    }
}

/// `None` if the key is free. Skips fields of a newer module.
pub(super) fn read_lease(reply: Value) -> Result<Option<LeaseInfo>, NodeError> {
    let Some(fields) = fields_of(reply)? else { return Ok(None) };
    let mut lease = LeaseInfo::default();
    let (mut has_fence_and_ttl, mut clients) = ((false, false), Vec::new());
    for (name, value) in fields {
        let name: String = read(name)?;
        match name.as_str() {
            "owner" => {
                lease.owners = match value {
                    Value::Array(owners) => {
                        owners.into_iter().map(read_text).collect::<Result<_, _>>()?
                    }
                    owner => vec![read_text(owner)?],
                };
                lease.owner = lease.owners.first().cloned().flatten();
            }
            "fence" => {
                let fence: Option<u64> = read(value)?;
                let checked =
                    fence.map(|fence| Fence::new(fence).ok_or(NodeError::UnexpectedReply));
                lease.fence = checked.transpose()?;
                has_fence_and_ttl.0 = true;
            }
            "ttl" => {
                // The number is negative for a key without an expiry.
                let ttl_ms: i64 = read(value)?;
                lease.ttl = u64::try_from(ttl_ms).ok().map(Duration::from_millis);
                has_fence_and_ttl.1 = true;
            }
            "held" => {
                let held_ms: Option<u64> = read(value)?;
                lease.held_for = held_ms.map(Duration::from_millis);
            }
            "mode" => {
                lease.mode = match read::<String>(value)?.as_str() {
                    "exclusive" => LockMode::Exclusive,
                    "shared" => LockMode::Shared,
                    "foreign" => LockMode::Foreign,
                    _ => LockMode::Unknown,
                }
            }
            "holders" => lease.holders = read(value)?,
            "waiters" => lease.waiters = read(value)?,
            "queue" => {
                let labels: Option<Vec<Value>> = read(value)?;
                for label in labels.unwrap_or_default() {
                    let mut waiter = WaiterInfo::default();
                    waiter.owner = read_text(label)?;
                    lease.queue.push(waiter);
                }
            }
            "clients" => clients = read::<Option<Vec<Value>>>(value)?.unwrap_or_default(),
            "keys" => lease.keys = read(value)?,
            "revoked" => lease.revoked = read::<i64>(value)? != 0,
            _ => {}
        }
    }
    // The field `clients` may come before `queue`.
    for (waiter, client) in lease.queue.iter_mut().zip(clients) {
        for (name, value) in fields_of(client)?.unwrap_or_default() {
            match read::<String>(name)?.as_str() {
                "client" => waiter.client = read_text(value)?,
                "user" => waiter.user = read_text(value)?,
                "address" => waiter.address = read_text(value)?,
                _ => {}
            }
        }
    }
    if has_fence_and_ttl == (true, true) {
        Ok(Some(lease))
    } else {
        Err(NodeError::UnexpectedReply)
    }
}

/// A client chose the text, which may be any bytes.
fn read_text(value: Value) -> Result<Option<String>, NodeError> {
    let text: Option<Vec<u8>> = read(value)?;
    Ok(text.map(|text| String::from_utf8_lossy(&text).into_owned()))
}

/// Why the node abstains, after the milliseconds left if known: `59990 start`; `None` if it votes.
pub(super) fn read_abstention(reply: Value) -> Result<Option<String>, NodeError> {
    if let Value::ServerError(error) = reply {
        return Err(read_error(&error.into()));
    }
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

pub(super) fn read<T: ::redis::FromRedisValue>(value: Value) -> Result<T, NodeError> {
    from_redis_value(value).map_err(|_| NodeError::UnexpectedReply)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn fields() -> Vec<(Value, Value)> {
        vec![
            (text("owner"), text("web-3")),
            (text("fence"), Value::Int(1_795_249_538_261_001)),
            (text("ttl"), Value::Int(7302)),
            (text("waiters"), Value::Int(2)),
            (text("keys"), Value::Int(1)),
        ]
    }

    fn voting() -> Value {
        text("# lock\r\nlock_version:0.1.0\r\nlock_state:voting\r\n")
    }

    #[test]
    fn map_and_flat_array_read_alike() {
        let mut with_more = fields();
        with_more.push((text("since"), Value::Array(vec![Value::Nil])));
        let flat = fields().into_iter().flat_map(|(name, value)| [name, value]).collect();
        for reply in [Value::Map(fields()), Value::Array(flat), Value::Map(with_more)] {
            let lease = read_inspection(Ok(vec![reply, voting()])).unwrap().unwrap();
            assert_eq!(lease.owner.as_deref(), Some("web-3"));
            assert_eq!(lease.fence, Fence::new(1_795_249_538_261_001));
            assert_eq!(lease.ttl, Some(Duration::from_millis(7302)));
            assert_eq!((lease.waiters, lease.keys), (2, 1));
        }
    }

    #[test]
    fn holders_waiters_and_revocation_are_read() {
        let mut all = fields();
        let client = vec![(text("user"), text("default")), (text("address"), text("unix"))];
        all.extend([
            (text("clients"), Value::Array(vec![Value::Map(client)])),
            (text("held"), Value::Int(1500)),
            (text("mode"), text("exclusive")),
            (text("holders"), Value::Int(1)),
            (text("queue"), Value::Array(vec![text("web-4"), Value::Nil])),
            (text("revoked"), Value::Int(1)),
        ]);
        let lease = read_lease(Value::Map(all)).unwrap().unwrap();
        assert_eq!(
            (lease.held_for, lease.mode),
            (Some(Duration::from_millis(1500)), LockMode::Exclusive)
        );
        assert_eq!((lease.holders, lease.revoked, lease.queue.len()), (1, true, 2));
        assert_eq!(lease.queue[0].owner.as_deref(), Some("web-4"));
        assert_eq!(lease.queue[0].address.as_deref(), Some("unix"));
        assert_eq!((&lease.queue[1].owner, &lease.queue[1].user), (&None, &None));
    }

    #[test]
    fn foreign_string_may_have_no_owner_fence_or_ttl() {
        let mut fields = fields();
        (fields[0].1, fields[1].1, fields[2].1) = (Value::Nil, Value::Nil, Value::Int(-1));
        let lease = read_lease(Value::Map(fields)).unwrap().unwrap();
        assert_eq!((lease.owner, lease.fence, lease.ttl), (None, None, None));
    }

    #[test]
    fn nil_is_free_unless_the_node_abstains() {
        assert_eq!(read_inspection(Ok(vec![Value::Nil, voting()])), Ok(None));
        let info =
            "lock_state:abstaining\r\nlock_abstain_reason:start\r\nlock_abstain_left_ms:59990\r\n";
        let abstains = NodeError::Abstains { reason: "59990 start".into() };
        assert_eq!(read_inspection(Ok(vec![Value::Nil, text(info)])), Err(abstains));
    }

    #[test]
    fn other_replies_are_unexpected() {
        let mut no_ttl = fields();
        no_ttl.remove(2);
        let mut negative_fence = fields();
        negative_fence[1].1 = Value::Int(-5);
        for reply in [
            Value::Okay,
            Value::Array(vec![text("owner")]),
            Value::Map(no_ttl),
            Value::Map(negative_fence),
        ] {
            assert_eq!(read_lease(reply), Err(NodeError::UnexpectedReply));
        }
        assert_eq!(read_inspection(Ok(vec![Value::Nil])), Err(NodeError::UnexpectedReply));
    }
}
