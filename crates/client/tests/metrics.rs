//! The figures that a client reports to the `metrics` facade.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{quorum, wait_until_all_hold, wait_until_free};
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// The sum of each counter, and how often each histogram was recorded.
#[derive(Default)]
struct Figures(Mutex<HashMap<String, Arc<AtomicU64>>>);

impl Figures {
    fn of(&self, name: String) -> Arc<AtomicU64> {
        Arc::clone(self.0.lock().unwrap().entry(name).or_default())
    }
}

struct Times(Arc<AtomicU64>);

impl HistogramFn for Times {
    fn record(&self, seconds: f64) {
        assert!((0.0..60.0).contains(&seconds), "{seconds} s");
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Recorder for Figures {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<_> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Counter::from_arc(self.of(format!("{}{{{}}}", key.name(), labels.join(","))))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Times(self.of(key.name().to_owned()))))
    }
}

#[tokio::test]
async fn outcomes_of_locks_are_counted_and_their_times_measured() {
    let figures = Figures::default();
    let _listening = metrics::set_default_local_recorder(&figures);
    let (nodes, quorum) = quorum(3).await;
    let mut lock = quorum.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&nodes, "k").await;
    quorum.lock("k").try_acquire().await.unwrap_err();
    lock.extend().await.unwrap();
    lock.release().await.unwrap();
    drop(quorum.lock("k").acquire().await.unwrap());
    let mut releasing = Box::pin(quorum.lock("k").acquire().await.unwrap().release());
    assert!(futures_util::poll!(&mut releasing).is_pending());
    drop(releasing);
    wait_until_free(&nodes, "k").await;
    for (name, times) in [
        ("quorlock_acquires_total{outcome=acquired}", 3),
        ("quorlock_acquires_total{outcome=held}", 1),
        ("quorlock_extends_total{outcome=extended}", 1),
        ("quorlock_releases_total{outcome=released}", 1),
        ("quorlock_releases_total{outcome=dropped}", 2),
        ("quorlock_wait_seconds", 4),
        ("quorlock_hold_seconds", 3),
    ] {
        assert_eq!(figures.of(name.to_owned()).load(Ordering::Relaxed), times, "{name}");
    }
}
