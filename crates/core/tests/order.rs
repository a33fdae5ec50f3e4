//! The order of the nodes for a key.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use quorlock_core::quorum::order;

#[test]
fn order_does_not_depend_on_how_a_client_lists_the_nodes() {
    let names: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    let mut firsts = [0; 4];
    for n in 0..4000_u32 {
        let key = n.to_le_bytes();
        let ours: Vec<_> = order(&key, names).into_iter().map(|index| names[index]).collect();
        let reversed: Vec<_> = names.into_iter().rev().collect();
        let theirs: Vec<_> =
            order(&key, reversed.clone()).into_iter().map(|index| reversed[index]).collect();
        assert_eq!(ours, theirs);
        let without_d: Vec<_> =
            order(&key, names[..3].iter().copied()).into_iter().map(|i| names[i]).collect();
        assert_eq!(without_d, ours.iter().copied().filter(|name| name != b"d").collect::<Vec<_>>());
        firsts[names.iter().position(|name| *name == ours[0]).unwrap()] += 1;
    }
    assert!(firsts.iter().all(|&count| (900..1100).contains(&count)), "{firsts:?}");
}

#[test]
fn order_of_a_key_never_changes_between_versions() {
    let names: [&[u8]; 3] = [b"one", b"two", b"three"];
    let orders = ["orders/42", "nightly", ""].map(|key| order(key.as_bytes(), names));
    assert_eq!(orders, [[1, 0, 2], [0, 1, 2], [0, 1, 2]].map(Vec::from));
}
