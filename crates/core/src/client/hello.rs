use std::sync::Arc;

use crate::node_set::SetReport;

/// What a server reports about itself when a client connects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Its run id, which changes at each start.
    pub run_id: Option<Arc<str>>,
    /// Its mode: `standalone`, `sentinel` or `cluster`.
    pub mode: Option<String>,
    /// Whether it is a replica.
    pub is_replica: bool,
    /// The version of its lock module, if that is loaded.
    pub module_version: Option<String>,
    /// The set that it reports.
    pub set: SetReport,
}

impl Hello {
    /// Reads the reply to `INFO server replication lock`. It may contain other sections.
    pub fn from_info(info: &str) -> Self {
        let field = |name: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.map(str::trim).filter(|value| !value.is_empty())
        };
        let set = match ["lock_set_name", "lock_set_id", "lock_set_members"].map(field) {
            // The module prints only valid sets. If this client cannot read one, the set counts as
            // unknown, not as unset.
            [Some(name), Some(id), Some(members)] => {
                format!("{name} {id} {members}").parse().map_or(SetReport::Unheard, SetReport::Set)
            }
            _ => SetReport::Unset,
        };
        let module_version = field("lock_version").or(field("lock_state").map(|_| "unknown"));
        Self {
            run_id: field("run_id").map(Into::into),
            mode: field("redis_mode").or(field("server_mode")).map(str::to_owned),
            is_replica: field("role").is_some_and(|role| role != "master"),
            module_version: module_version.map(str::to_owned),
            set,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_of_valkey_is_read() {
        assert_eq!(Hello::from_info("server_mode:cluster\r\n").mode.as_deref(), Some("cluster"));
    }

    #[test]
    fn server_without_the_module_is_recognized() {
        let hello = Hello::from_info("role:master\r\nlock_version:\r\n");
        assert_eq!(hello, Hello { set: SetReport::Unset, ..Hello::default() });
    }
}
