/// Why a server refuses or delays writes, and with them every request for a lock.
///
/// The server answers before the module is asked, so the node itself neither votes nor abstains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unwritable {
    /// The server loads its data.
    Loading,
    /// The memory has reached `maxmemory`, and the server may evict nothing, or found nothing to
    /// evict.
    MemoryFull,
    /// The last save or the last write to the append-only file failed.
    SaveFailed,
    /// Fewer replicas than `min-replicas-to-write` are connected and up to date.
    TooFewReplicas,
    /// An operator paused writes, or the server fails over to a replica.
    WritesPaused,
}

/// What a server reports about itself that decides whether it accepts writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of its own in INFO")]
pub struct ServerHealth {
    /// `loading`.
    pub is_loading: bool,
    /// Whether `maxmemory` is exceeded after what the server could evict.
    pub memory_is_full: bool,
    /// Whether `rdb_last_bgsave_status` is an error.
    pub save_failed: bool,
    /// Whether there is an append-only file, and `aof_last_write_status` is an error.
    pub append_failed: bool,
    /// `min_slaves_good_slaves`.
    pub good_replicas: u64,
    /// Whether clients that write are paused.
    pub writes_are_paused: bool,
}

/// The configuration under which a server stops to accept writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteConditions {
    /// Whether a failed save stops writes: `stop-writes-on-bgsave-error`, if there are save points.
    pub needs_save: bool,
    /// `min-replicas-to-write`; zero if `min-replicas-max-lag` is zero.
    pub min_replicas: u64,
}

impl Unwritable {
    /// All reasons, in the order in which a server checks them.
    pub const ALL: [Self; 5] = [
        Self::Loading,
        Self::MemoryFull,
        Self::SaveFailed,
        Self::TooFewReplicas,
        Self::WritesPaused,
    ];

    /// Returns why a master refuses `LOCK.ACQUIRE`; `None` if it accepts writes.
    pub fn of(health: &ServerHealth, conditions: WriteConditions) -> Option<Self> {
        let applies = |reason: &Self| match reason {
            Self::Loading => health.is_loading,
            Self::MemoryFull => health.memory_is_full,
            Self::SaveFailed => health.append_failed || health.save_failed && conditions.needs_save,
            Self::TooFewReplicas => health.good_replicas < conditions.min_replicas,
            Self::WritesPaused => health.writes_are_paused,
        };
        Self::ALL.into_iter().find(applies)
    }

    /// The reason as one word, as INFO shows it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::MemoryFull => "memory-full",
            Self::SaveFailed => "save-failed",
            Self::TooFewReplicas => "too-few-replicas",
            Self::WritesPaused => "writes-paused",
        }
    }
}

impl Default for WriteConditions {
    /// The server's own defaults.
    fn default() -> Self {
        Self { needs_save: true, min_replicas: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_unwritable_only_for_a_reason_that_it_checks_itself() {
        let reason = |health, needs_save, min_replicas| {
            Unwritable::of(&health, WriteConditions { needs_save, min_replicas })
        };
        let healthy = ServerHealth::default();
        assert_eq!(reason(healthy, true, 0), None);
        assert_eq!(reason(healthy, true, 1), Some(Unwritable::TooFewReplicas));
        let one_replica = ServerHealth { good_replicas: 1, ..healthy };
        assert_eq!(reason(one_replica, true, 1), None);
        assert_eq!(reason(one_replica, true, 2), Some(Unwritable::TooFewReplicas));
        let unsaved = ServerHealth { save_failed: true, ..healthy };
        assert_eq!(reason(unsaved, true, 0), Some(Unwritable::SaveFailed));
        assert_eq!(reason(unsaved, false, 0), None);
        let unappended = ServerHealth { append_failed: true, ..healthy };
        assert_eq!(reason(unappended, false, 0), Some(Unwritable::SaveFailed));
        let full = ServerHealth { memory_is_full: true, writes_are_paused: true, ..healthy };
        assert_eq!(reason(full, true, 1), Some(Unwritable::MemoryFull), "the first check counts");
        let paused = ServerHealth { writes_are_paused: true, ..healthy };
        assert_eq!(reason(paused, true, 0), Some(Unwritable::WritesPaused));
    }
}
