//! What a node says about itself, in its replies to INFO and to other requests.

use std::collections::BTreeMap;
use std::time::Duration;

use quorlock_core::client::Hello;
use redis::InfoDict;

use super::snapshot::State;
use crate::output::escape;

/// The counters of `INFO lock`, without their prefix, and what they count: see
/// docs/operations/configuration.md.
pub(crate) const COUNTERS: [(&str, &str); 11] = [
    ("grants", "Locks granted"),
    ("refusals", "Requests refused because the lock is held, or other clients wait for it"),
    ("abstained", "Requests answered with ABSTAIN"),
    ("extends", "Locks extended"),
    ("releases", "Locks released by their holders"),
    ("ended_by_deadline", "Locks that ended by their deadline"),
    ("ended_by_operator", "Locks that a command such as DEL has ended"),
    ("revoked", "Locks that LOCK.REVOKE revoked"),
    ("saved_from_clock_step", "Locks that outlived their key, which expired early"),
    ("saved_from_eviction", "Locks that outlived their key, which was evicted"),
    ("handovers", "Locks granted to a client that had waited"),
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// `redis 7.0.15` or `valkey 8.1.3`.
    pub(crate) server: String,
    /// What a client learns from a new connection. The mode is escaped for a terminal.
    pub(crate) hello: Hello,
    /// Zero for no limit.
    pub(crate) maxmemory_bytes: u64,
    pub(crate) maxmemory_policy: Option<String>,
    /// `None` without the module.
    pub(crate) module: Option<ModuleInfo>,
    /// `lock.max-clock-skew`; `None` if the node does not show it.
    pub(crate) max_clock_skew_ms: Option<u64>,
    /// `lock.max-waiters`; `None` if the node does not show it.
    pub(crate) max_waiters: Option<u64>,
    pub(crate) round_trip: Duration,
    /// How far the node's wall clock is ahead of this machine's; `None` if the user may not run
    /// TIME.
    pub(crate) clock_offset_us: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModuleInfo {
    pub(crate) version: String,
    /// The state of the node, by its own account.
    pub(crate) state: State,
    pub(crate) max_ttl_ms: Option<u64>,
    pub(crate) rejoin_delay_ms: Option<u64>,
    pub(crate) leases: u64,
    pub(crate) waiters: u64,
    /// The values of [`COUNTERS`], by name. An older module may lack some.
    pub(crate) counters: BTreeMap<&'static str, u64>,
    pub(crate) longest_wait_us: Option<u64>,
}

/// Why a node grants no locks, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Abstention {
    /// `start`, `promotion`, `swapdb` or `replica`.
    pub(crate) reason: String,
    /// `None` if the end is not known, as for a replica.
    pub(crate) left: Option<Duration>,
}

impl Facts {
    /// Parses the replies to INFO and INFO lock, in any order. Other replies have the other facts.
    pub(crate) fn parse(text: &str) -> Self {
        let fields = InfoDict::new(text);
        let escaped = |name: &str| {
            let value = fields.get::<String>(name).filter(|value| !value.is_empty());
            value.as_deref().map(escape)
        };
        let number = |name: &str| fields.get::<u64>(name);
        let mut hello = Hello::from_info(text);
        hello.mode = hello.mode.as_deref().map(escape);
        let server = match (escaped("valkey_version"), escaped("redis_version")) {
            (Some(version), _) => format!("valkey {version}"),
            (None, Some(version)) => format!("redis {version}"),
            (None, None) => "redis of an unknown version".to_owned(),
        };
        let module = escaped("lock_state").map(|state| ModuleInfo {
            version: escaped("lock_version").unwrap_or_else(|| "unknown".into()),
            state: match &*state {
                "voting" => State::Voting,
                "unwritable" => {
                    State::Unwritable(escaped("lock_unwritable_reason").unwrap_or(state))
                }
                _ => State::Abstaining(Abstention {
                    reason: escaped("lock_abstain_reason").unwrap_or(state),
                    left: number("lock_abstain_left_ms").map(Duration::from_millis),
                }),
            },
            max_ttl_ms: number("lock_max_ttl_ms"),
            rejoin_delay_ms: number("lock_rejoin_delay_ms"),
            leases: number("lock_leases").unwrap_or(0),
            waiters: number("lock_waiters").unwrap_or(0),
            counters: COUNTERS
                .into_iter()
                .filter_map(|(name, _)| Some((name, number(&format!("lock_{name}"))?)))
                .collect(),
            longest_wait_us: number("lock_longest_wait_us"),
        });
        Self {
            server,
            hello,
            maxmemory_bytes: number("maxmemory").unwrap_or(0),
            maxmemory_policy: escaped("maxmemory_policy"),
            module,
            ..Self::default()
        }
    }

    /// Whether the server may remove keys of locks when its memory is full.
    pub(crate) fn evicts(&self) -> bool {
        self.maxmemory_policy.as_ref().is_some_and(|policy| policy != "noeviction")
    }
}

#[cfg(test)]
mod tests {
    use quorlock_core::node_set::SetReport;

    use super::*;

    #[test]
    fn valkey_and_a_missing_module_are_recognized() {
        let text = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.3\r\nserver_mode:cluster\r\n\
            maxmemory:100\r\nmaxmemory_policy:volatile-ttl\r\n";
        let facts = Facts::parse(text);
        assert_eq!(
            (&*facts.server, facts.hello.mode.as_deref()),
            ("valkey 8.1.3", Some("cluster"))
        );
        assert!(facts.evicts() && facts.module.is_none());
        assert_eq!(Facts::parse("").server, "redis of an unknown version");
    }

    #[test]
    fn set_that_cannot_be_parsed_does_not_count_as_unset() {
        let text =
            "lock_state:voting\r\nlock_set_name:eu\r\nlock_set_id:x\r\nlock_set_members:1\r\n";
        assert_eq!(Facts::parse(text).hello.set, SetReport::Unheard);
        assert_eq!(Facts::parse("lock_state:voting\r\n").hello.set, SetReport::Unset);
    }

    #[test]
    fn text_of_a_server_cannot_control_the_terminal() {
        let facts = Facts::parse("redis_version:\x1b[2J\r\nlock_state:\x07\r\n");
        assert_eq!(facts.server, "redis \\u{1b}[2J");
        assert_eq!(facts.module.unwrap().state.reason().unwrap(), "\\u{7}");
    }
}
