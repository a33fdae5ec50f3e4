//! Clients that wait, and are killed, disconnected, unblocked, withdrawn or out of time, at random
//! and all at once.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use quorlock_testkit::{Server, Stress};

#[test]
fn no_waiter_is_forgotten_whatever_happens_to_the_waiters() {
    let server = Server::with_module().start().expect("a server with the module starts");
    let stress = Stress { rounds: 6000, clients: 24, keys: 3, seed: 7 };
    let outcome = stress.run(&server, &AtomicBool::new(false));
    assert_eq!(outcome.rounds, stress.rounds);
    assert!(outcome.leaves_nothing(), "{outcome:?}");
    assert!(outcome.longest_free <= Duration::from_millis(50), "{outcome:?}");
    assert!(outcome.granted > stress.rounds / 4, "{outcome:?}");
    // Every kind of end has happened.
    let Stress { rounds, .. } = stress;
    for (what, times) in [
        ("out of time", outcome.out_of_time),
        ("cut off", outcome.cut_off),
        ("hung up", outcome.hung_up),
        ("killed", outcome.kills),
        ("unblocked or withdrawn", outcome.ended_waits),
        ("deleted", outcome.deleted),
    ] {
        assert!(times > rounds / 1000, "{what} {times} times: {outcome:?}");
    }
    assert!(outcome.looks > 100, "{outcome:?}");
}
