"""Runs the Python of docs/protocol.md against docs/protocol/vectors.json, and on simulated nodes.

The argument is the root of the repository.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1])
PAGE = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
CODE = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
VECTORS = json.loads((ROOT / "docs/protocol/vectors.json").read_text(encoding="utf-8"))
page = {}
exec(compile(CODE, "docs/protocol.md", "exec"), page)  # noqa: S102
DECISIONS = VECTORS["decisions"]


def expect(actual, expected, case):
    assert actual == expected, f"{actual!r} instead of {expected!r}: {json.dumps(case)}"



def words(answers):
    kinds = {"older": "older", "younger": "younger", "granted": "granted"}
    return {answer["node"]: kinds.get(answer["answer"], "silent") for answer in answers}


def check_numbers():
    for case in DECISIONS["token"]:
        expect(page["token"](int(case["bits"])), case["token"], case)
    for case in DECISIONS["drift"]:
        expect(page["drift"](case["measured_us"]), case["drift_us"], case)
    for case in DECISIONS["validity"]:
        passed = page["elapsed"]([0, 0], [case["elapsed_boot_us"], case["elapsed_raw_us"]])
        left = page["validity"](case["ttl_ms"] * 1000, case["waited_us"], passed)
        expect(left, case["validity_us"], case)


def check_fences():
    for case in DECISIONS["fence_proposal"]:
        tickets, proposed = page["Tickets"](), 0
        for event in case["events"]:
            if "agreed" in event:
                tickets.won(proposed, event["agreed"])
            elif "refused" in event:
                tickets.refused(event["refused"], event["wall_us"])
            else:
                proposed = tickets.propose(event["wall_us"])
                expect(proposed, event["proposed"], case)
    for case in DECISIONS["fence_agreement"]:
        agree_as(case)


def agree_as(case):
    grants, answered, is_decided = {}, set(), False
    for event in case["events"]:
        node, answer = event["node"], event["answer"]
        if answer == "granted" and node not in answered:
            grants[node] = page["Grant"](event["fence"])
        elif answer == "stored":
            page["fence_answered"](grants, node, event["fence"])
        elif answer == "unacceptable":
            page["fence_answered"](grants, node, Exception("BADFENCE FENCE is too far ahead"))
        elif answer == "failed":
            page["fence_answered"](grants, node, None)
        answered.add(node)
        then = {}
        if not is_decided:
            step, fence, nodes = page["agree"](case["nodes"], grants, case["nodes"] - len(answered))
            is_decided = step in ("won", "lost")
            if step == "won":
                then = {"won": fence, "counted": sorted(nodes)}
            elif step == "lost":
                then = {"lost": "no quorum"}
            elif step == "store" and nodes:
                then = {"fence": fence, "store": sorted(nodes)}
        expect(then, event["then"], case)


def check_results():
    for case in DECISIONS["try"]:
        answers = words(case["answers"])
        silent = {node: "silent" for node in range(case["nodes"]) if node not in answers}
        expect(page["decide"](case["nodes"], answers | silent), case["result"], case)
    for case in DECISIONS["extension"]:
        counting = set(range(case["nodes"]))
        expect(extend_as(case, counting, case)[0], case["verdict"], case)
    for case in DECISIONS["late_grant"]:
        counting = set(case["granted"])
        for turn in case["rounds"]:
            result, counting = extend_as(case, counting, turn)
            expect(result, turn["verdict"], case)
    for case in DECISIONS["release"]:
        held = [answer["answer"] for answer in case["answers"]]
        result = page["released"](case["nodes"], held.count("held"), held.count("not held"))
        expect(result, case["verdict"], case)


def extend_as(case, counting, turn):
    nodes = lambda word: {it["node"] for it in turn["answers"] if it["answer"] == word}
    return page["extension"](case["nodes"], counting, nodes("held"), nodes("not held"))


def check_replies():
    for case in VECTORS["wire"]["replies"]:
        if case["request"] not in ("acquire", "extend", "store fence"):
            continue
        reply, means = case["reply"].rstrip("\r\n"), case["means"]
        kind, rest = reply[0], reply[1:]
        value = {":": lambda: int(rest), "-": lambda: Exception(rest), "+": lambda: rest}.get(kind, lambda: None)()
        expected = ("silent", 0)
        if means == "no":
            expected = ("older", 0)
        elif "fence" in means:
            expected = ("granted", means["fence"])
        elif "held" in means:
            expected = ("older" if means["older"] else "younger", means["held"])
        expect(page["read"](value), expected, case)
    for case in VECTORS["wire"]["errors"]:
        expect(page["read"](Exception(case["error"])), ("silent", 0), case)


class Node:
    """A node in memory, for one key."""

    def __init__(self):
        self.token, self.fence, self.is_silent = None, 0, False

    def send(self, command, key, token, *args):
        if self.is_silent:
            raise TimeoutError
        holds = self.token == token
        options = dict(zip(args[1::2], args[2::2]))
        if command == "LOCK.RELEASE":
            self.token = None if holds else self.token
            return int(holds)
        if command == "LOCK.EXTEND":
            self.fence = max(self.fence, options.get("FENCE", 0)) if holds else self.fence
            return self.fence if holds else None
        if self.token is not None:
            raise Exception(f"HELD {self.fence} older: an older client holds the lock")
        self.token, self.fence = token, max(self.fence + 1, options["FENCE"])
        return self.fence


def check_lock():
    nodes = [Node() for _ in range(5)]
    send = lambda node, *args: nodes[node].send(*args)
    lock = lambda: page["Lock"](send, len(nodes), "k", 10_000, page["Tickets"]())
    nodes[3].fence, nodes[4].is_silent = 2**52, True
    first, second = lock(), lock()
    assert first.acquire() == "granted" and first.left_us() > 9_000_000
    assert second.acquire() == "held" and second.left_us() is None
    assert first.extend() == "extended" and first.release() == "released"
    assert first.extend() == "lost"
    assert second.acquire() == "granted" and second.fence > first.fence
    nodes[0].is_silent = nodes[1].is_silent = True
    assert second.extend() == "uncertain" and second.left_us() > 0
    assert first.acquire() == "no quorum"
    nodes[0].is_silent = nodes[1].is_silent = False
    for node in nodes[:3]:
        node.token = None
    assert second.extend() == "lost" and second.left_us() is None
    # A majority has different fences: the smallest that a majority can store wins.
    for node, fence in zip(nodes, [2**51, 2**51 + 8, 2**51 + 4, 2**51 + 9, 0]):
        node.token, node.fence, node.is_silent = None, fence, False
    assert first.acquire() == "granted"
    assert sum(node.fence == first.fence for node in nodes) >= 3


check_numbers()
check_fences()
check_results()
check_replies()
check_lock()
