//! The native part of the Python package `quorlock`: bindings over `quorlock-client`.
//!
//! Every rule about locks is in the client. This crate starts its runtime, waits for its calls
//! without the GIL, and turns its results and errors into Python objects.

mod call;
mod engine;
mod errors;
mod held;
mod logs;
mod quorum;
mod reports;
mod request;

use pyo3::prelude::*;

/// The native part of the package.
// Without the GIL, a fork could copy a locked mutex. `quorlock/__init__.py` refuses such a process.
#[pymodule(gil_used = true)]
#[pyo3(name = "_quorlock")]
mod native {
    #[pymodule_export]
    use crate::call::{Bridge, Call};
    #[pymodule_export]
    use crate::engine::{await_ended, inherited};
    #[pymodule_export]
    use crate::held::Held;
    #[pymodule_export]
    use crate::quorum::Quorum;
    #[pymodule_export]
    use crate::request::Request;
}
