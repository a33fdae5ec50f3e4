//! How often the nodes are asked. One gathering asks each of them once, and lists the locks.

use std::time::Duration;

/// The least interval between gatherings, as a multiple of the cost of one. Gatherings may take a
/// hundredth of a node's time. A fifth of this share is left for reading requests and writing
/// replies, which the node's command statistics do not count.
const INTERVAL_PER_COST: u32 = 125;
/// The commands of a gathering, as `INFO commandstats` names them.
const COMMANDS: [&str; 5] = ["lock.scan", "info", "config|get", "time", "ping"];

/// Returns the time from the start of one gathering to the start of the next. `cost` is the time
/// that the busiest node spent on the last one.
pub(super) fn interval(interval_min: Duration, cost: Duration) -> Duration {
    interval_min.max(cost.saturating_mul(INTERVAL_PER_COST))
}

/// Returns the time that a node spent on a gathering: the difference of [`parse_spent`] before and
/// after. A node that does not answer does not lengthen the interval.
pub(super) fn cost(before: Option<Duration>, after: Option<Duration>) -> Duration {
    match (before, after) {
        // The statistics of a restarted server begin at zero.
        (Some(before), Some(after)) => after.saturating_sub(before),
        (None, _) | (_, None) => Duration::ZERO,
    }
}

/// Returns the time that a server has spent on [`COMMANDS`] since its start, by its reply to
/// `INFO commandstats`. Other clients' commands count too: the limit is for all clients together.
pub(super) fn parse_spent(stats: &str) -> Duration {
    let us = |line: &str| -> Option<u64> {
        let (command, figures) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        COMMANDS.iter().find(|name| name.eq_ignore_ascii_case(command))?;
        figures.split(',').find_map(|figure| figure.strip_prefix("usec="))?.parse().ok()
    };
    Duration::from_micros(stats.lines().filter_map(us).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_keeps_the_load_of_a_node_below_a_hundredth() {
        let second = Duration::from_secs(1);
        assert_eq!(interval(second, Duration::ZERO), second);
        assert_eq!(interval(second, Duration::from_millis(8)), second);
        for cost_ms in [9, 20, 500] {
            let cost = Duration::from_millis(cost_ms);
            assert!(interval(second, cost) > cost * 100);
        }
        assert_eq!(interval(second, Duration::MAX), Duration::MAX);
    }

    #[test]
    fn silent_node_does_not_lengthen_the_interval() {
        let spent = Some(Duration::from_secs(7));
        assert_eq!(cost(spent, None), Duration::ZERO);
        assert_eq!(cost(None, spent), Duration::ZERO);
        assert_eq!(cost(spent, Some(Duration::from_secs(9))), Duration::from_secs(2));
        assert_eq!(cost(spent, Some(Duration::ZERO)), Duration::ZERO);
    }

    #[test]
    fn only_commands_of_gatherings_count() {
        let stats = "# Commandstats\r\ncmdstat_LOCK.SCAN:calls=3,usec=120,usec_per_call=40.00,rejected_calls=0\r\n\
            cmdstat_info:calls=1,usec=30,usec_per_call=30.00\r\ncmdstat_lock.acquire:calls=9,usec=9000\r\n\
            cmdstat_config|get:calls=1,usec=5\r\n";
        assert_eq!(parse_spent(stats), Duration::from_micros(155));
        assert_eq!(parse_spent(""), Duration::ZERO);
    }
}
