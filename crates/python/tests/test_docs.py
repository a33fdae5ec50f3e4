"""The snippets of README.md, of the package's README and of docs/python.md run."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from conftest import ROOT, Nodes

PAGES = ["README.md", "crates/python/README.md", "docs/python.md"]
URLS = '["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]'
# A snippet of a page may use the names of an earlier one.
BEFORE = f"""
import quorlock
q = quorlock.Quorum({URLS})
from celery import Celery
app = Celery("docs", broker="memory://", set_as_current=False)
from django.conf import settings
settings.configure()
"""


def snippets() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        found += [(f"{page}:{index}", block) for index, block in enumerate(blocks)]
    return found


def test_pages_have_snippets():
    names = [name for name, _ in snippets()]
    assert sum(name.startswith("README.md") for name in names) == 3
    assert len(names) >= 11


@pytest.mark.parametrize(("name", "snippet"), snippets(), ids=[name for name, _ in snippets()])
def test_snippet_runs(nodes: Nodes, name: str, snippet: str):
    # Only the pages of the package have snippets that build on each other.
    code = (BEFORE if name.startswith("docs") else "") + snippet
    if "django_redis" in code:
        pytest.importorskip("django_redis")
    code = code.replace(URLS, repr(nodes.urls))
    assert "10.0.0." not in code
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0, process.stderr
    if "print" in snippet:
        assert re.search(r"fence \d+", process.stdout)


