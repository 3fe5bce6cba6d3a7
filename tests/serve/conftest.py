"""A server in front of a scripted upstream."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Server

from scripts.asgi import serving
from scripts.rehearsal import Rehearsal
from tests.conftest import FORCED


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Server]:
    """A server in front of a scripted upstream with vLLM's protocol."""
    with serving(Rehearsal().app()) as url:
        upstream = {"url": url, "kind": "vllm"}
        with Server(tmp_path_factory.mktemp("rehearsed") / "run", model_path, upstream=upstream, sampling=FORCED) as server:
            yield server
            assert server.stop() == 0, server.log.read_text()
