/// Bytes that are lent for the time of a call and that a lease may keep. A server keeps its own reference-counted
/// string instead of a copy; whoever has no such thing lends a slice.
pub trait Lend {
    /// What a lease holds on to. Cheap to clone where it can be: a lock of several keys has a lease for each.
    type Kept: AsRef<[u8]> + Clone;

    /// The bytes themselves.
    fn bytes(&self) -> &[u8];

    /// Something that outlives the call.
    fn keep(&self) -> Self::Kept;
}

impl Lend for &[u8] {
    type Kept = Box<[u8]>;

    fn bytes(&self) -> &[u8] {
        self
    }

    fn keep(&self) -> Self::Kept {
        (*self).into()
    }
}
