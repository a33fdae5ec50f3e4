"""The quorum, its reports and its errors, on real nodes."""

from __future__ import annotations

import gc
import logging
import os
import threading

import pytest
from conftest import Nodes, eventually

import quorlock


def test_quorum_connects_with_the_first_call():
    q = quorlock.Quorum(["redis://127.0.0.1:1", "redis://127.0.0.1:2"])
    assert "127.0.0.1" in repr(q)
    lock = q.lock("k")
    with pytest.raises(quorlock.NoQuorumError):
        lock.acquire(blocking=False)


def test_password_is_not_shown():
    assert "secret" not in repr(quorlock.Quorum(["redis://user:secret@127.0.0.1:1"]))


@pytest.mark.parametrize("urls", [[], ["http://a"], ["redis://a", "redis://a"]])
def test_nodes_that_cannot_be_used_are_a_connect_error(urls):
    with pytest.raises(quorlock.ConnectError):
        quorlock.Quorum(urls).lock("k").acquire()


def test_one_node_may_be_named_by_its_url_alone(nodes, key):
    with quorlock.Quorum(nodes.urls[0]).lock(key) as lock:
        assert lock.coverage == (1, 1)


def test_certificate_needs_its_key():
    with pytest.raises(ValueError):
        quorlock.Quorum(["rediss://a"], client_certificate=b"pem")


def test_certificates_are_read_from_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        quorlock.Quorum(["rediss://a"], root_certificates=str(tmp_path / "none.pem"))
    damaged = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"
    (tmp_path / "ca.pem").write_text(damaged)
    with pytest.raises(quorlock.ConnectError):
        quorlock.Quorum(["rediss://a"], root_certificates=str(tmp_path / "ca.pem")).health()


def test_password_opens_nodes_that_need_one(own_nodes, key):
    own_nodes.ask("CONFIG", "SET", "requirepass", "s3/cr@t")
    with pytest.raises(quorlock.NoQuorumError) as caught:
        quorlock.Quorum(own_nodes.urls).lock(key).acquire()
    assert caught.value.nodes[0].is_permanent
    with quorlock.Quorum(own_nodes.urls, password="s3/cr@t").lock(key) as lock:
        assert lock.owned()


def test_errors_name_each_node_and_its_answer(q, other, nodes, key):
    with other.lock(key, owner="web-3"):
        with pytest.raises(quorlock.HeldError) as caught:
            with q.lock(key, wait=0):
                pass
        assert [node.node for node in caught.value.nodes] == [str(n.path) for n in nodes.all]
        assert "refused" in {node.answer for node in caught.value.nodes}
        with pytest.raises(quorlock.WaitTimeoutError) as late:
            with q.lock(key, wait=0.3):
                pass
    assert isinstance(late.value, TimeoutError)
    assert "web-3" in late.value.holder
    assert 0.2 < late.value.waited < 5


def test_lock_survives_a_paused_node(own_nodes, key):
    q = quorlock.Quorum(own_nodes.urls)
    own_nodes.all[0].pause()
    with q.lock(key, ttl=2) as lock:
        assert lock.owned()
        assert lock.coverage == (2, 3)


def test_two_paused_nodes_are_no_quorum(own_nodes, key):
    q = quorlock.Quorum(own_nodes.urls, node_timeout=0.2)
    q.health()
    for node in own_nodes.all[:2]:
        node.pause()
    with pytest.raises(quorlock.NoQuorumError) as caught:
        q.lock(key, wait=2).acquire()
    failed = [node for node in caught.value.nodes if node.answer == "failed"]
    assert len(failed) == 2 and all(node.error for node in failed)


def test_release_without_a_quorum_is_an_error(own_nodes, key):
    q = quorlock.Quorum(own_nodes.urls, node_timeout=0.2)
    lock = q.lock(key, ttl=5)
    lock.acquire()
    for node in own_nodes.all[:2]:
        node.pause()
    with pytest.raises(quorlock.ReleaseError):
        lock.release()
    assert not lock.owned()
    with pytest.raises(quorlock.FlushError) as caught:
        q.flush(0.1)
    assert caught.value.pending == 1
    for node in own_nodes.all[:2]:
        node.resume()
    q.flush(10)
    assert own_nodes.is_free(key)


def test_inspect_shows_the_holder(q, other, key):
    assert q.inspect(key).state == "free"
    with other.lock(key, owner="web-3") as lock:
        found = q.inspect(key)
        assert (found.state, found.owner, found.mode) == ("held", "web-3", "exclusive")
        assert found.fence == lock.fence
        assert "web-3" in str(found)
        assert found.nodes[0].lease.holders == 1


def test_default_label_names_the_process(q, other, key):
    with other.lock(key):
        assert q.inspect(key).owner.endswith(f":{os.getpid()}")


def test_inspect_without_nodes_is_an_error():
    with pytest.raises(quorlock.InspectError) as caught:
        quorlock.Quorum(["redis://127.0.0.1:1"]).inspect("k")
    assert caught.value.nodes[0].answer == "failed"


def test_health_shows_each_node(q, nodes):
    health = q.health()
    assert [node.node for node in health] == [str(node.path) for node in nodes.all]
    assert all(node.error is None and node.module_version for node in health)


def test_warnings_of_the_client_reach_logging(nodes, key, caplog):
    with caplog.at_level(logging.WARNING, logger="quorlock"):
        quorlock.Quorum(nodes.urls).health()
    assert any("lock.set" in record.getMessage() for record in caplog.records)
    assert {record.name for record in caplog.records} == {"quorlock"}


def test_events_of_the_client_reach_logging_at_debug(q, nodes, key, caplog):
    q.health()
    caplog.clear()
    with q.lock(key):
        pass
    assert not [record for record in caplog.records if record.levelno < logging.WARNING]
    with caplog.at_level(logging.DEBUG, logger="quorlock"):
        with q.lock(key) as lock:
            fence, token = lock.fence, nodes.all[0].ask("GET", key)
        q.health()
    text = caplog.text
    assert f"fence: {fence}" in text
    assert token not in text


def test_client_has_one_thread_which_is_no_python_thread(q, key):
    before = threading.active_count()
    with q.lock(key):
        assert threading.active_count() == before


def test_package_is_typed_and_has_stubs():
    from pathlib import Path

    folder = Path(quorlock.__file__).parent
    assert (folder / "py.typed").exists()
    assert (folder / "_quorlock.pyi").exists()
