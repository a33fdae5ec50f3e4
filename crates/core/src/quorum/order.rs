use std::cmp::Reverse;

/// Returns the indices of the nodes in the order of a key. The first is the key's queue node.
///
/// A client asks all nodes at once. The order decides who wins a tie (`client/acquire/attempt.rs`),
/// and where clients wait. While a majority needs every node that may vote, all keys share the
/// order of the empty key (`client/spare.rs`).
///
/// Clients that know the nodes by the same identities compute the same order. Adding or removing a
/// node does not reorder the others.
///
/// This is rendezvous hashing. The hash is FNV-1a with the finalizer of `MurmurHash3`. It is
/// written out here because all versions of all clients must agree on it.
pub fn order<'a>(key: &[u8], identities: impl IntoIterator<Item = &'a [u8]>) -> Vec<usize> {
    let mut ranked: Vec<_> = identities
        .into_iter()
        .enumerate()
        .map(|(index, identity)| {
            let length = (identity.len() as u64).to_le_bytes();
            (Reverse(mix(hash(&[&length, identity, key]))), identity, index)
        })
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, _, index)| index).collect()
}

fn hash(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in parts.iter().copied().flatten() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

/// Mixes the bits of a hash: the high bits of FNV-1a differ little for short keys.
fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}
