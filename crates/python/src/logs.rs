//! Passes the events of the client to `logging`.
//!
//! The threads that drive a runtime put them into a queue, since they must not wait for the GIL.
//! The Python threads that call the client empty the queue.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Of the events that no call has collected, the oldest are dropped.
const RECORDS_MAX: usize = 1000;

/// The level of the logger, as of the last call. Python's levels are multiples of ten.
static LEVEL: AtomicU8 = AtomicU8::new(30);

thread_local! {
    static COLLECTED: RefCell<Option<Arc<Records>>> = const { RefCell::new(None) };
}

/// The events of one engine. A forked child forgets them, because a thread that the child does not
/// have may hold the mutex.
#[derive(Default)]
pub(crate) struct Records {
    queue: Mutex<VecDeque<(u8, String)>>,
    is_filled: AtomicBool,
}

struct Collector;

/// A thread whose events are collected.
pub(crate) struct Collecting;

/// The text of an event: its message, and then its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

/// Collects the events of this thread, until the result is dropped.
pub(crate) fn collect_into(records: Arc<Records>) -> Collecting {
    COLLECTED.set(Some(records));
    Collecting
}

impl Drop for Collecting {
    fn drop(&mut self) {
        COLLECTED.set(None);
    }
}

pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // This library has its own copy of `tracing`, with no other subscriber.
        let _ = tracing::subscriber::set_global_default(Collector);
    });
}

/// Passes the collected events to the logger, all of them even if its handlers raise exceptions.
pub(crate) fn forward(py: Python<'_>, records: &Records) -> PyResult<()> {
    if !records.is_filled.swap(false, Ordering::AcqRel) {
        return Ok(());
    }
    let collected = mem::take(&mut *records.queue.lock().unwrap_or_else(PoisonError::into_inner));
    let mut forwarded = Ok(());
    for (level, text) in collected {
        let logged = logger(py)?.call_method1("log", (level, "%s", text)).map(drop);
        forwarded = forwarded.and(logged);
    }
    forwarded
}

fn logger(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static LOGGER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = || -> PyResult<_> {
        let logging = py.import("logging")?;
        Ok(logging.call_method1("getLogger", ("quorlock",))?.unbind())
    };
    Ok(LOGGER.get_or_try_init(py, make)?.bind(py))
}

/// Reads the level of the logger, below which the client makes no records.
pub(crate) fn read_level(py: Python<'_>) -> PyResult<()> {
    let level: i64 = logger(py)?.call_method0(intern!(py, "getEffectiveLevel"))?.extract()?;
    LEVEL.store(u8::try_from(level.max(0)).unwrap_or(u8::MAX), Ordering::Relaxed);
    Ok(())
}

fn python_level(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target().starts_with("quorlock")
            && python_level(*metadata.level()) >= LEVEL.load(Ordering::Relaxed)
    }

    fn register_callsite(
        &self,
        metadata: &'static Metadata<'static>,
    ) -> tracing::subscriber::Interest {
        if metadata.is_event() && metadata.target().starts_with("quorlock") {
            tracing::subscriber::Interest::sometimes()
        } else {
            tracing::subscriber::Interest::never()
        }
    }

    fn event(&self, event: &Event<'_>) {
        COLLECTED.with_borrow(|records| {
            let Some(records) = records else { return };
            let mut text = Text::default();
            event.record(&mut text);
            let record = (python_level(*event.metadata().level()), text.message + &text.fields);
            let mut queue = records.queue.lock().unwrap_or_else(PoisonError::into_inner);
            if queue.len() == RECORDS_MAX {
                queue.pop_front();
            }
            queue.push_back(record);
            records.is_filled.store(true, Ordering::Release);
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing into a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, ", {name}: {value:?}"),
        };
    }
}
