//! Turns what the nodes report into the named tuples of `quorlock.reports`.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use quorlock_client::{Fence, Inspection, LeaseInfo, LockMode, LockState, NodeHealth};

fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("quorlock.reports")?.getattr(name)
}

fn mode(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Exclusive => "exclusive",
        LockMode::Shared => "shared",
        LockMode::Foreign => "foreign",
        _ => "unknown",
    }
}

fn lease(py: Python<'_>, lease: LeaseInfo) -> PyResult<Bound<'_, PyAny>> {
    class(py, "Lease")?.call1((
        lease.owner,
        lease.fence.map(Fence::get),
        lease.ttl.as_ref().map(Duration::as_secs_f64),
        lease.held_for.as_ref().map(Duration::as_secs_f64),
        lease.waiters,
        mode(lease.mode),
        lease.holders,
        lease.revoked,
    ))
}

pub(crate) fn inspection(py: Python<'_>, inspection: Inspection) -> PyResult<Py<PyAny>> {
    let text = inspection.to_string();
    let mut nodes = Vec::new();
    for node in inspection.nodes {
        let (held, error) = match node.lease {
            Ok(None) => (None, None),
            Ok(Some(held)) => (Some(lease(py, held)?), None),
            Err(error) => (None, Some(error.to_string())),
        };
        nodes.push(class(py, "NodeInspection")?.call1((node.node, held, error))?);
    }
    let nodes = PyTuple::new(py, nodes)?;
    let class = class(py, "Inspection")?;
    let inspection = match inspection.state {
        LockState::Free => class.call1(("free", nodes, text))?,
        LockState::Unclear => class.call1(("unclear", nodes, text))?,
        LockState::Held(held) => class.call1((
            "held",
            nodes,
            text,
            held.fence.get(),
            held.owner,
            mode(held.mode),
            held.holders,
            held.at_most.as_secs_f64(),
        ))?,
    };
    Ok(inspection.unbind())
}

pub(crate) fn health(py: Python<'_>, nodes: Vec<NodeHealth>) -> PyResult<Py<PyAny>> {
    let class = class(py, "NodeHealth")?;
    let nodes = nodes.into_iter().map(|node| {
        class.call1((
            node.node,
            node.error.map(|error| error.to_string()),
            node.since.as_secs_f64(),
            node.round_trip.as_secs_f64(),
            node.module_version,
            node.set,
        ))
    });
    let nodes: Vec<_> = nodes.collect::<PyResult<_>>()?;
    Ok(nodes.into_pyobject(py)?.into_any().unbind())
}
