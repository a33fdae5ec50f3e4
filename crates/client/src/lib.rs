//! The quorum client of Quorlock.
