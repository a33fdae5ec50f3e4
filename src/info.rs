//! The fields of `INFO lock`. docs/operations/configuration.md explains them.

use quorlock_core::node::{Reason, Unwritable};

use crate::ffi::clock;
use crate::ffi::info::Section;
use crate::{config, module};

pub(crate) fn write(section: &Section) {
    let health = section.server_health();
    module::with(|state| {
        let (node, now) = (&state.node, clock::monotonic());
        let unwritable = health.and_then(|health| Unwritable::of(&health, state.write_conditions));
        section.text(c"version", env!("CARGO_PKG_VERSION"));
        match (node.abstention(now), unwritable) {
            (None, None) => section.text(c"state", "voting"),
            // A replica never votes. Another abstention ends, but does not help while the server
            // refuses writes.
            (
                None | Some((Reason::Start | Reason::Promotion | Reason::SwapDb, _)),
                Some(reason),
            ) => {
                section.text(c"state", "unwritable");
                section.text(c"unwritable_reason", reason.word());
            }
            (Some((reason, left_ms)), _) => {
                section.text(c"state", "abstaining");
                section.text(c"abstain_reason", reason.word());
                if let Some(left_ms) = left_ms {
                    section.number(c"abstain_left_ms", left_ms);
                }
            }
        }
        if let Some(set) = &state.set {
            section.text(c"set_name", set.name());
            section.number(c"set_id", set.id().get().into());
            section.text(c"set_members", &set.members().to_string());
        }
        section.number(c"max_ttl_ms", node.max_ttl().ms());
        section.number(c"rejoin_delay_ms", config::rejoin_delay_ms());
        section.number(c"leases", node.leases() as u64);
        section.number(c"waiters", node.waiters() as u64);
        let stats = node.stats();
        for (name, count) in [
            (c"grants", stats.grants),
            (c"refusals", stats.refusals),
            (c"abstained", stats.abstained),
            (c"extends", stats.extends),
            (c"releases", stats.releases),
            (c"ended_by_deadline", stats.ended_by_deadline),
            (c"ended_by_operator", stats.ended_by_operator),
            (c"revoked", stats.revoked),
            (c"saved_from_clock_step", stats.saved_from_clock_step),
            (c"saved_from_eviction", stats.saved_from_eviction),
            (c"handovers", stats.handovers),
            (c"longest_wait_us", stats.longest_wait_us),
        ] {
            section.number(name, count);
        }
    });
}
