//! What threads share, by one name: tests of interleavings put something else in its place.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::sync::{Arc, Mutex, PoisonError};
