"""Follows a batch to its gradient, and a request to its capture, and counts the files of clawctl by two measures.

On the way  the files that somebody opens who follows the value: those with a frame on the stack at a hand-over. A hand-over is a
            call in which the value gets its next form (a body, a request, a reply, a row, a line), and each walk names its own. A
            value that a function returns, or that another task or thread takes over, is picked up at the next hand-over.
Called      all files of which a function is called on the walk: also helpers, settings, metrics, and every rule for secrets.

Each walk runs once with the tiny model `crafts`, with a profiler in all threads of the process. An engine counts by the file behind
its seam: what it does inside is its own, and the models run in another process.
"""

import ast
import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import orjson

PACKAGE = Path(__file__).resolve().parent.parent / "clawctl"
_MODEL = "crafts"
_KEY = "claw-walk"


class Walk:
    """Records files of clawctl from the first of the hand-overs until the last, in the order of their first calls."""

    def __init__(self, *hand_overs: Callable[..., Any]) -> None:
        self._ahead = [function.__code__ for function in hand_overs]
        self._walking = False
        self.on_the_way: dict[Path, None] = {}
        self.called: dict[Path, None] = {}

    def __enter__(self) -> "Walk":
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @property
    def missed(self) -> list[str]:
        """The hand-overs that were not reached in their order."""
        return [code.co_qualname for code in self._ahead]

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._ahead:
            return
        is_hand_over = frame.f_code is self._ahead[0]
        self._walking |= is_hand_over
        if not self._walking:
            return
        if is_hand_over:
            del self._ahead[0]
            self.on_the_way |= dict.fromkeys(_files_on_the_stack(frame))
        self.called |= dict.fromkeys(_file_of(frame.f_code))


def _file_of(code: CodeType) -> list[Path]:
    """The file of a function of clawctl; none for any other, and for a module that is imported."""
    return [Path(code.co_filename)] if code.co_filename.startswith(f"{PACKAGE}/") and code.co_name != "<module>" else []


def _files_on_the_stack(frame: FrameType | None) -> list[Path]:
    """The files of clawctl on the stack, from the outermost frame to this one."""
    files: list[Path] = []
    while frame is not None:
        files += _file_of(frame.f_code)
        frame = frame.f_back
    return files[::-1]


def batch_to_gradient() -> Walk:
    """From `LocalTrainer._step` to PyTorch's backward pass."""
    import torch

    from clawctl.config import Recipe
    from clawctl.train.sample import Batch, Sample
    from clawctl.trainers.local.batches import make_microbatch, share_out
    from clawctl.trainers.local.head import token_logprobs
    from clawctl.trainers.local.losses import policy_loss
    from clawctl.trainers.local.objective import Objective
    from clawctl.trainers.local.ranks import Ranks
    from clawctl.trainers.local.scores import turn_branches
    from clawctl.trainers.local.trainer import LocalTrainer
    from clawctl.trainers.local.trees import build_trie

    torch.set_num_threads(1)
    trainer = LocalTrainer(Recipe.model_validate({"model": {"path": _MODEL}}), Ranks(0, 1, torch.device("cpu")))
    trainer.resume(0, None, None)
    ids = list(range(3, 35))
    turns = [Sample(str(n), "s", "k", ids, ids[n : n + 8], [-1.0] * 8, 1.0, 0, (-1.0) ** n, None) for n in range(4)]
    hand_overs = (
        LocalTrainer._step,  # the batch
        turn_branches,  # sequences of tokens
        share_out,  # which turns are computed together
        make_microbatch,  # tensors
        build_trie,  # each distinct prefix once
        token_logprobs,  # logprobs, from the model's hidden states
        Objective.loss,  # the terms of the method
        policy_loss,  # a scalar
        torch.Tensor.backward,
    )
    with Walk(*hand_overs) as walk:
        trainer.step(Batch(1, turns))
    return walk


def request_to_capture() -> Walk:
    """From `Gateway._generate` to the line of the capture."""
    with tempfile.TemporaryDirectory(prefix="clawctl-walk-") as folder:
        return asyncio.run(_request(Path(folder)))


async def _request(folder: Path) -> Walk:
    from clawctl.config import Recipe
    from clawctl.engines import ENGINES
    from clawctl.engines.embedded.engine import Embedded, EmbeddedReply
    from clawctl.privacy.redaction import Redactor
    from clawctl.run.directory import open_run
    from clawctl.run.lines import LineWriter
    from clawctl.run.model_files import IdReader
    from clawctl.run.policies import ensure_base_policy
    from clawctl.serve.answer import Answer
    from clawctl.serve.app import Gateway
    from clawctl.serve.capture import Capture
    from clawctl.serve.dialects import chat
    from clawctl.serve.intake import Intake
    from clawctl.serve.versions import Versions

    recipe, run = Recipe.model_validate({"model": {"path": _MODEL}}), open_run(folder / "run")
    ensure_base_policy(run, recipe.model.path)
    hand_overs = (
        Gateway._generate,
        Intake.request,  # a body
        chat.read,  # a request, independent of its API
        Versions.begin,  # which version answers it
        Embedded.begin,  # a reply
        EmbeddedReply.__aiter__,  # pieces of text
        Answer._exchange,  # a row
        Capture.write,
        Redactor.exchange,  # the row without secrets, in another thread
        LineWriter.append,  # a line
    )
    with Walk(*hand_overs) as walk:  # before threads start
        versions = Versions(run, ENGINES.load("transformers", "serve.engine")(run, recipe))
        capture = Capture(run.captures, recipe.privacy, IdReader(recipe.model_path))
        gateway, ready = Gateway(run, recipe, _KEY, versions, capture), asyncio.Event()
        keeping = asyncio.ensure_future(versions.live.keep(ready.set))
        await ready.wait()
        await _post(gateway, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0})
    keeping.cancel()
    gateway.stop()
    versions.stop()
    capture.close()
    return walk


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


WALKS = {"from a batch to its gradient": batch_to_gradient, "from a request to its capture": request_to_capture}


def measured() -> dict[str, dict[str, int]]:
    """The numbers of files of each walk, as house.toml holds them."""
    return {name: {"on the way": len(walk.on_the_way), "called": len(walk.called)} for name, walk in _walked().items()}


def _walked() -> dict[str, Walk]:
    walks = {name: walk() for name, walk in WALKS.items()}
    assert not any(walk.missed for walk in walks.values()), {name: walk.missed for name, walk in walks.items()}
    return walks


def described(file: Path) -> str:
    """The file's path and what it does, by the first sentence of its docstring."""
    sentence = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split()).partition(". ")[0]
    return f"  {file.relative_to(PACKAGE)}: {sentence.rstrip('.')}"


def report(bars: dict[str, int]) -> str:
    """Both walks with their bars, the files on the way, and the others that are called."""
    lines: list[str] = []
    for name, walk in _walked().items():
        others = [file for file in walk.called if file not in walk.on_the_way]
        lines += [f"{name}: {len(walk.on_the_way)} files on the way, bar {bars[name]}", *map(described, walk.on_the_way)]
        lines += [f"{len(others)} more that are called:", *map(described, others), ""]
    return "\n".join(lines)
