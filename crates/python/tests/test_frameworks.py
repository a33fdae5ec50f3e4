"""celery and django, on real nodes."""

from __future__ import annotations

import threading

import pytest
from conftest import SOON, eventually

import quorlock
from quorlock.celery import HEADER, AlreadyQueued, _running, once

celery = pytest.importorskip("celery")


@pytest.fixture
def app(key):
    app = celery.Celery(key, broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_default_queue = key
    app.conf.broker_transport_options = {"polling_interval": 0.01}
    return app


@pytest.fixture
def worker(app):
    from celery.contrib.testing.worker import start_worker

    def start():
        return start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=SOON)

    return start


def test_task_is_queued_once(app, q, key):
    @once(q, key=key)
    @app.task(name=key)
    def report():
        pass

    report.delay()
    with pytest.raises(AlreadyQueued):
        report.delay()
    eventually(lambda: q.inspect(key).state == "held", "the lock is held without a process")


def test_task_can_be_skipped_silently(app, q, key):
    @once(q, key=key, raise_if_queued=False)
    @app.task(name=key)
    def report():
        pass

    assert report.delay() is not None
    assert report.delay() is None


def test_key_follows_the_arguments(app, q):
    @once(q)
    @app.task(name=f"report-{id(app)}")
    def report(day, part=0):
        pass

    report.delay("monday")
    report.delay("tuesday")
    report.delay("monday", part=1)
    with pytest.raises(AlreadyQueued):
        report.delay("monday")


def test_worker_holds_the_lock_of_the_caller_until_the_task_ends(app, worker, q, nodes, key):
    begun, go = threading.Event(), threading.Event()

    @once(q, key=key, ttl=2)
    @app.task(name=key)
    def report(day):
        begun.set()
        assert go.wait(SOON)
        return day

    result = report.delay("monday")
    fence = q.inspect(key).fence
    with worker():
        assert begun.wait(SOON)
        assert q.inspect(key).fence > fence, "the worker has attached the lock"
        with pytest.raises(AlreadyQueued):
            report.delay("monday")
        go.set()
        assert result.get(timeout=SOON) == "monday"
    eventually(lambda: nodes.is_free(key), "the key is free")


def test_failed_task_releases_the_lock(app, worker, q, nodes, key):
    @once(q, key=key)
    @app.task(name=key)
    def report():
        raise KeyError("work")

    result = report.delay()
    with worker():
        with pytest.raises(KeyError):
            result.get(timeout=SOON)
    eventually(lambda: nodes.is_free(key), "the key is free")


def test_message_that_lost_its_lock_acquires_it_anew(app, worker, q, nodes, key):
    @once(q, key=key, ttl=1)
    @app.task(name=key)
    def report():
        return quorlock is not None

    result = report.delay()
    nodes.end(key)
    with worker():
        assert result.get(timeout=SOON) is True


def test_retry_keeps_the_lock(app, worker, q, nodes, key):
    runs, states = [], []

    @once(q, key=key, ttl=5)
    @app.task(name=key, bind=True, max_retries=2, default_retry_delay=0)
    def report(self):
        runs.append(self.request.retries)
        states.append(q.inspect(key).state)
        if len(runs) < 3:
            raise self.retry()
        return "done"

    result = report.delay()
    with worker():
        assert result.get(timeout=SOON) == "done"
    assert runs == [0, 1, 2] and states == ["held"] * 3
    eventually(lambda: nodes.is_free(key), "the key is free")


def test_retry_without_a_quorum_is_sent_without_the_lock(app, worker, own_nodes, key):
    q, runs = quorlock.Quorum(own_nodes.urls, node_timeout=0.5), []

    @once(q, key=key, ttl=5)
    @app.task(name=key, bind=True, max_retries=2, default_retry_delay=0)
    def report(self):
        runs.append(self.request.retries)
        if len(runs) > 1:
            return q.inspect(key).state
        for node in own_nodes.all[:2]:
            node.pause()
        try:
            raise self.retry()
        finally:
            for node in own_nodes.all[:2]:
                node.resume()

    result = report.delay()
    with worker():
        assert result.get(timeout=2 * SOON) == "held"
    assert runs == [0, 1]


@pytest.mark.parametrize("raises", [True, False])
def test_retry_waits_for_another_holder(app, worker, q, other, nodes, key, raises):
    runs, holder = [], other.lock(key)

    @once(q, key=key, ttl=2, raise_if_queued=raises)
    @app.task(name=key, bind=True, max_retries=2, default_retry_delay=0)
    def report(self):
        runs.append(self.request.retries)
        if len(runs) > 1:
            return "done"
        nodes.end(key)
        eventually(lambda: not _running.get()[key].owned(), "the lock is lost")
        assert holder.acquire()
        threading.Timer(0.5, holder.release).start()
        raise self.retry()

    result = report.delay()
    with worker():
        assert result.get(timeout=2 * SOON) == "done"
    assert runs == [0, 1]


def test_message_that_is_not_sent_releases_the_lock(app, q, nodes, key, monkeypatch):
    @app.task(name=key)
    def report():
        pass

    def fail(*arguments, **options):
        assert HEADER in options["headers"]
        raise ConnectionError("no broker")

    monkeypatch.setattr(report, "apply_async", fail)
    once(q, key=key)(report)
    with pytest.raises(ConnectionError):
        report.apply_async()
    eventually(lambda: nodes.is_free(key), "the key is free")


def test_eager_and_direct_calls_hold_the_lock(app, q, nodes, key):
    states = []

    @once(q, key=key)
    @app.task(name=key)
    def report():
        states.append(q.inspect(key).state)
        return "done"

    app.conf.task_always_eager = True
    assert report.delay().get() == "done"
    assert report() == "done"
    assert states == ["held", "held"]
    with q.lock(key), pytest.raises(AlreadyQueued):
        report()
    eventually(lambda: nodes.is_free(key), "the key is free")


@pytest.fixture(scope="module")
def caches(shared_nodes):
    django = pytest.importorskip("django")
    from django.conf import settings

    if not settings.configured:
        options = {"quorlock": {"nodes": shared_nodes.urls}}
        location = f"unix://{shared_nodes.all[0].path}"
        settings.configure(
            CACHES={
                "default": {
                    "BACKEND": "quorlock.django.RedisCache",
                    "LOCATION": location,
                    "OPTIONS": {**options, "db": 1},
                },
                "other": {
                    "BACKEND": "quorlock.django.RedisCache",
                    "LOCATION": location,
                    "KEY_PREFIX": "other",
                    "OPTIONS": options,
                },
                "broken": {"BACKEND": "quorlock.django.RedisCache", "LOCATION": location},
            }
        )
        django.setup()
    from django.core.cache import caches

    return caches


def test_cache_of_django_has_locks(caches, q, key):
    cache = caches["default"]
    cache.set("value", 7)
    with cache.lock(key, timeout=10, blocking_timeout=5) as lock:
        assert lock.owned()
        assert q.inspect(f":1:{key}").state == "held"
        assert not cache.lock(key).acquire(blocking=False)
        assert caches["other"].lock(key).acquire(blocking=False), "another prefix"
    assert cache.get("value") == 7


def test_threads_of_django_share_one_client(caches, key):
    quorums = [caches["default"]._quorum, caches["other"]._quorum]
    thread = threading.Thread(target=lambda: quorums.append(caches["default"]._quorum))
    thread.start()
    thread.join()
    assert quorums[0] is quorums[1] is quorums[2]


def test_cache_without_nodes_is_refused(caches):
    with pytest.raises(ValueError):
        caches["broken"].lock("k")
