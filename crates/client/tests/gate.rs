//! The fences that a gate accepts and refuses.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;

use quorlock_client::{Fence, FenceGate, Stale};

fn fence(n: u64) -> Fence {
    Fence::new(n).unwrap()
}

#[test]
fn holder_passes_again_and_an_earlier_holder_does_not() {
    let gate = FenceGate::new();
    assert_eq!(gate.check(fence(7)), Ok(()));
    assert_eq!(gate.check(fence(7)), Ok(()), "the same holder writes once more");
    assert_eq!(gate.check(fence(9)), Ok(()), "fences may skip numbers");
    let stale = Stale { fence: fence(7), largest: fence(9) };
    assert_eq!(gate.check(fence(7)), Err(stale));
    assert_eq!(gate.largest(), fence(9), "a refused fence leaves no trace");
    assert!(stale.to_string().contains('7') && stale.to_string().contains('9'), "{stale}");
}

#[test]
fn gate_continues_from_the_stored_fence() {
    let gate = FenceGate::resume(fence(40));
    assert!(gate.check(fence(39)).is_err());
    assert!(gate.check(fence(40)).is_ok());
}

#[test]
fn fence_of_work_that_panics_is_remembered() {
    let gate = FenceGate::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| gate.pass(fence(5), || panic!("half-way"))));
    assert!(panicked.is_err());
    assert!(gate.check(fence(4)).is_err(), "the work may have written something");
    assert!(gate.check(fence(5)).is_ok());
}

#[test]
fn fences_of_writes_inside_a_gate_never_decrease() {
    let gate = FenceGate::new();
    let written = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for writer in 0..8_u64 {
            let (gate, written) = (&gate, &written);
            scope.spawn(move || {
                for n in 0..2000 {
                    let mine = fence(1 + n * 8 + (writer * 5 + n) % 8);
                    // The mutex protects the vector only. The gate keeps the order.
                    let _ = gate.pass(mine, || written.lock().unwrap().push(mine));
                }
            });
        }
    });
    let written = written.into_inner().unwrap();
    assert!(written.is_sorted());
    assert_eq!(written.last(), Some(&gate.largest()));
}
