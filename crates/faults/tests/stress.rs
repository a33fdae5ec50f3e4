//! No waiter and no lock is left behind, whatever happens to clients.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use quorlock_faults::scenarios::expire_unreleased;
use quorlock_faults::stress::Stress;
use quorlock_testkit::Server;

#[test]
fn no_waiter_is_forgotten_whatever_happens_to_waiters() {
    let server = Server::with_module().start().expect("a server with the module starts");
    let stress = Stress { rounds: 6000, clients: 24, keys: 3, seed: 7 };
    let outcome = stress.run(&server, &AtomicBool::new(false));
    assert!(outcome.leaves_nothing(), "{outcome:?}");
    assert!(outcome.longest_free <= Duration::from_millis(50), "{outcome:?}");
    assert!(outcome.granted > stress.rounds / 4, "{outcome:?}");
    // Waits and locks have ended in each of these ways.
    for (what, times) in [
        ("without the lock", outcome.without_lock),
        ("cut off", outcome.cut_off),
        ("hung up", outcome.hung_up),
        ("killed", outcome.kills),
        ("unblocked or withdrawn", outcome.ended_waits),
        ("deleted", outcome.deleted),
    ] {
        assert!(times > stress.rounds / 1000, "{what} {times} times: {outcome:?}");
    }
    assert!(outcome.observations > 100, "{outcome:?}");
}

#[test]
fn expired_unreleased_locks_leave_no_lease_no_key_and_no_memory() {
    let left = expire_unreleased(100_000).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(left.memory_bytes < left.peak_memory_bytes / 10, "{left:?}");
}
