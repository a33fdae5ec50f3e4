//! The claims about a node in the tables of `steps`: they hold on a server in memory and on a real
//! server, and do not hold without the rules of the node.

use quorlock_core::node::{NodeRule, break_rule};
use quorlock_faults::fuzz::{Claim, table};

#[track_caller]
fn assert_all(name: &str, holds: fn(&Claim) -> Result<(), String>) {
    let claims = table(name);
    let failed: Vec<_> = claims.iter().filter_map(|claim| holds(claim).err()).collect();
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), claims.len(), failed.join("\n\n"));
}

macro_rules! tables {
    ($($name:ident),*) => {
        $(mod $name {
            use super::*;

            #[test]
            fn claims_hold_in_memory() {
                assert_all(stringify!($name), Claim::hold_in_memory);
            }

            #[test]
            fn claims_hold_on_a_server() {
                assert_all(stringify!($name), Claim::hold_on_a_server);
            }
        })*
    };
}

tables!(accidents, baselines, locks, revoke, several, shared, tickets, waiting);

/// A claim that does not hold when this rule is broken, and its table.
const BROKEN: [(NodeRule, &str, &str); 22] = [
    (NodeRule::SharedPassesQueue, "shared", "waiting writer is not overtaken, and later"),
    (NodeRule::ShareForgetsQueue, "shared", "exclusive lock becomes shared and serves"),
    (NodeRule::MirrorNamesHolder, "shared", "key holds a value that is no token"),
    (NodeRule::RevokedAdmitsHolders, "shared", "revoked shared lock ends with its present"),
    (NodeRule::AnyWaitsForFirst, "several", "waiter for any key is granted the first"),
    (NodeRule::OrderByArrival, "tickets", "smallest ticket is served first"),
    (NodeRule::RepeatShortens, "tickets", "repeated request of a holder is granted again"),
    (NodeRule::YieldClaimsToHold, "tickets", "yield gives the lock to an older waiter only"),
    (NodeRule::YieldsToYounger, "tickets", "yield gives the lock to an older waiter only"),
    (NodeRule::PassesUnheard, "tickets", "request that cannot wait passes no waiter"),
    (NodeRule::FullLineKeepsYoungest, "waiting", "full line keeps the oldest waiters"),
    (NodeRule::NeverKeepsKeys, "tickets", "keys are kept for a waiter for several"),
    (NodeRule::FenceOfAnyToken, "locks", "fence is raised by its holder only"),
    (NodeRule::FenceDecreases, "locks", "fence is raised by its holder only"),
    (NodeRule::ExtendRevives, "locks", "ended lock is not extended"),
    (NodeRule::ExtendsRevoked, "revoke", "revoked lock can be released and not extended"),
    (NodeRule::RevokeFreesAtOnce, "revoke", "revoked lock ends at its deadline"),
    (NodeRule::RevokeKeepsToken, "revoke", "restart does not undo a revocation"),
    (NodeRule::SomeOfTheKeys, "several", "all keys are granted or none"),
    (NodeRule::FenceOfFirstKey, "several", "fence is larger than the last fence of each"),
    (NodeRule::SharedBesideExclusive, "shared", "readers share the key and exclude writers"),
    (NodeRule::SharedChoosesFence, "shared", "readers share the key and exclude writers"),
];

#[test]
fn each_broken_rule_of_a_node_breaks_a_claim() {
    for (mutant, name, start) in BROKEN {
        let claim = table(name).into_iter().find(|claim| claim.name.starts_with(start));
        let claim = claim.unwrap_or_else(|| panic!("{name} has no claim that begins with {start}"));
        assert_eq!(claim.hold_in_memory(), Ok(()), "{mutant:?} is not broken");
        break_rule(Some(mutant));
        let result = claim.hold_in_memory();
        break_rule(None);
        assert!(result.is_err(), "{mutant:?}: {}", claim.name);
    }
}

#[test]
fn claims_that_the_safety_page_quotes_are_in_the_named_table() {
    let page = include_str!("../../../docs/safety.md");
    let pieces: Vec<_> = page.split(".steps](").collect();
    assert!(pieces.len() > 2, "{}", pieces.len());
    for before in &pieces[..pieces.len() - 1] {
        let name = before.rsplit('[').next().expect("the name of a table");
        let quoted = before.rsplit('"').nth(1).expect("a quoted claim");
        let is_there = table(name).iter().any(|claim| claim.name.starts_with(quoted));
        assert!(is_there, "{name}: {quoted}");
    }
}
