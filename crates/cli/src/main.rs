//! The program `quorlock`.
fn main() {}
