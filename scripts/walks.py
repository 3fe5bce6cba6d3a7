"""Follows two walks through the product, and counts the files of clawctl that they cross: from a batch to its gradient, and from a
request to its capture.

Each is run once with the tiny model `crafts`, with a profiler in all threads of the process. A file counts if one of its functions
is called between the walk's first and its last call.
"""

import ast
import asyncio
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import orjson

PACKAGE = Path(__file__).resolve().parent.parent / "clawctl"
_MODEL = "crafts"
_KEY = "claw-walk"


class Walk:
    """Records files of clawctl in the order of their first calls, from the call of `first` until `last` is called."""

    def __init__(self, first: CodeType, last: str) -> None:
        self._first, self._last = first, last
        self.files: dict[Path, None] = {}
        self._walking = False

    def __enter__(self) -> "Walk":
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _called(self, frame: FrameType, event: str, called: Any) -> None:
        if event not in ("call", "c_call"):
            return
        self._walking |= event == "call" and frame.f_code is self._first
        if self._walking and event == "call" and frame.f_code.co_filename.startswith(f"{PACKAGE}/"):
            self.files[Path(frame.f_code.co_filename)] = None
        if (frame.f_code.co_qualname if event == "call" else getattr(called, "__name__", "")) == self._last:
            self._walking = False


def batch_to_gradient() -> list[Path]:
    """From `LocalTrainer._step` to the first call of PyTorch's backward pass."""
    import torch

    from clawctl.config import Recipe
    from clawctl.train.sample import Batch, Sample
    from clawctl.trainers.local.ranks import Ranks
    from clawctl.trainers.local.trainer import LocalTrainer

    torch.set_num_threads(1)
    trainer = LocalTrainer(Recipe.model_validate({"model": {"path": _MODEL}}), Ranks(0, 1, torch.device("cpu")))
    trainer.resume(0, None, None)
    ids = list(range(3, 35))
    turns = [Sample(str(n), "s", "k", ids, ids[n : n + 8], [-1.0] * 8, 1.0, 0, (-1.0) ** n, None) for n in range(4)]
    with Walk(LocalTrainer._step.__code__, "run_backward") as walk:
        trainer.step(Batch(1, turns))
    return list(walk.files)


def request_to_capture() -> list[Path]:
    """From `Gateway._generate` to `LineWriter.append`. The model runs in another process, which is not counted."""
    with tempfile.TemporaryDirectory(prefix="clawctl-walk-") as folder:
        return asyncio.run(_request(Path(folder)))


async def _request(folder: Path) -> list[Path]:
    from clawctl.config import Recipe
    from clawctl.engines import ENGINES
    from clawctl.run.directory import open_run
    from clawctl.run.model_files import IdReader
    from clawctl.run.policies import ensure_base_policy
    from clawctl.serve.app import Gateway
    from clawctl.serve.capture import Capture
    from clawctl.serve.versions import Versions

    recipe, run = Recipe.model_validate({"model": {"path": _MODEL}}), open_run(folder / "run")
    ensure_base_policy(run, recipe.model.path)
    with Walk(Gateway._generate.__code__, "LineWriter.append") as walk:  # before threads start
        versions = Versions(run, ENGINES.load("transformers", "serve.engine")(run, recipe))
        capture = Capture(run.captures, recipe.privacy, IdReader(recipe.model_path))
        gateway, ready = Gateway(run, recipe, _KEY, versions, capture), asyncio.Event()
        keeping = asyncio.ensure_future(versions.live.keep(ready.set))
        await ready.wait()
        await _post(gateway, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4})
    keeping.cancel()
    gateway.stop()
    versions.stop()
    capture.close()
    return list(walk.files)


async def _post(gateway: Any, body: dict[str, Any]) -> None:
    headers = {"host": "127.0.0.1", "authorization": f"Bearer {_KEY}", "content-type": "application/json"}
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"", "client": ("127.0.0.1", 1)}
    messages = [{"type": "http.request", "body": orjson.dumps(body)}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await gateway({**scope, "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}, receive, send)
    assert sent[0]["status"] == 200, sent


WALKS = {"between batch and gradient": (batch_to_gradient, 10), "between request and capture": (request_to_capture, 9)}


def described(file: Path) -> str:
    """The file's path and what it does, by the first sentence of its docstring."""
    sentence = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split()).partition(". ")[0]
    return f"  {file.relative_to(PACKAGE)}: {sentence.rstrip('.')}"


def report() -> str:
    """Both walks with their bars, and what they cross."""
    lines: list[str] = []
    for name, (walk, bar) in WALKS.items():
        files = walk()
        lines += [f"files {name}: {len(files)}, bar {bar}", *map(described, files), ""]
    return "\n".join(lines)
