"""Full weights at an upstream: every pause ends, and unknown weights are not served as a version."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from leasing import on_a_loop, use

from clawctl.config import Recipe
from clawctl.engines import Capabilities, NotYet, Sampled, Unanswered
from clawctl.engines.requests import Refusal
from clawctl.engines.upstream.adapters import Target
from clawctl.engines.upstream.targets import Targets
from clawctl.engines.upstream.tokens import Tokens
from clawctl.engines.upstream.wire import Chunk, ChunkChoice, Entry, Logprobs
from clawctl.errors import ClawError
from clawctl.run.directory import open_run
from clawctl.run.policies import ensure_base_policy, publish_policy
from clawctl.run.rows import Policy
from tests.waiting import until

WEIGHTS = Capabilities(ids=True, logprobs=True, processed=True, adapters=False, weights=True)


class Pausing:
    """A control that samples only while it is not paused, hears `resume` only from its `deaf`-th time on, and cannot read what is
    `torn`."""

    def __init__(self, deaf: int = 0) -> None:
        self.deaf, self.resumed, self.paused = deaf, 0, False
        self.weights: list[str] = []
        self.torn: set[int] = set()
        self.says = -1.0

    def pause(self) -> float:
        self.paused = True
        return 0.0

    def reload(self, path: str, version: int) -> None:
        assert self.paused
        if version in self.torn:
            raise ClawError(f"the weights of {version} cannot be read", "")
        self.weights.append(f"{version}")

    def resume(self) -> None:
        self.resumed += 1
        if self.resumed <= self.deaf:
            raise Unanswered("the engine does not answer /resume", "")
        self.paused = False

    def score(self, name: str, ids: list[int]) -> list[float]:
        assert not self.paused
        return [self.says] * (len(ids) - 1)

    def load_adapter(self, name: str, folder: Path) -> None:
        self.weights.append(name)

    def unload_adapter(self, name: str) -> None:
        raise NotImplementedError


def pausing(tmp_path: Path, control: Any) -> Targets:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "m")
    canary = {"prompt_ids": [[1, 2]], "logprobs": [[None, -1.0]]}
    for version in (1, 2):
        publish_policy(run, Policy(version, 0, version, None, "full", "m", [], canary, {}, 0.0), lambda folder: None)
    targets = Targets(run, Recipe.model_validate({"model": {"path": "m", "name": "tiny"}}), control)
    targets.reset("tiny", WEIGHTS)
    return targets


def test_resume_is_retried_and_requests_in_the_meantime_are_refused_with_the_reason(tmp_path: Path) -> None:
    control = Pausing(deaf=2)
    targets = pausing(tmp_path, control)

    async def main() -> None:
        going = asyncio.create_task(asyncio.to_thread(targets.swap, 1))
        await asyncio.to_thread(until, lambda: targets.stuck is not None)
        assert targets.stuck == "the engine was paused for a swap and does not resume: the engine does not answer /resume"
        with pytest.raises(Refusal, match="does not resume") as refused:
            await use(targets, 0)
        assert (refused.value.status, refused.value.code) == (503, "engine_paused")
        await going
        assert (targets.stuck, targets.live, control.paused, control.weights) == (None, 1, False, ["1"])
        assert await use(targets, 1) == "tiny"

    on_a_loop(targets, main)


def test_a_child_engine_that_never_resumes_is_ended_and_the_old_version_stays_live(tmp_path: Path) -> None:
    control, ended = Pausing(deaf=1000), []
    targets = pausing(tmp_path, control)

    async def main() -> None:
        targets.start(asyncio.get_running_loop(), lambda: ended.append(True))
        with pytest.raises(Unanswered, match="it is restarted"):
            await asyncio.to_thread(targets.swap, 1)
        assert (ended, targets.live, targets.stuck) == ([True], 0, None)

    on_a_loop(targets, main)


def test_a_swap_waits_until_unanswered_questions_are_answered(tmp_path: Path) -> None:
    targets = pausing(tmp_path, Pausing(deaf=0))
    targets.reset("tiny", Capabilities(ids=True, logprobs=True, processed=True, adapters=None, weights=None))

    async def main() -> None:
        with pytest.raises(NotYet, match="not confirmed yet"):
            await asyncio.to_thread(targets.swap, 1)
        targets.can(WEIGHTS)
        await asyncio.to_thread(targets.swap, 1)
        assert targets.live == 1

    on_a_loop(targets, main)


# ---- weights that nobody knows ------------------------------------------------------------------------------------------------


def sampled_by(target: Target) -> Sampled:
    """One token that comes just now, and its end."""
    sampled = Sampled(1.0, 1.0, 0)
    tokens = Tokens(sampled, target.clock, expect_ids=True)
    tokens.add_chunks([Chunk(prompt_token_ids=[1], choices=[ChunkChoice(token_ids=[2], logprobs=Logprobs([Entry(logprob=-1.0)]))])])
    tokens.finish()
    return sampled


def torn_and_taken_back(control: Pausing) -> None:
    """Version 2 cannot be read, and 1 not again."""
    control.torn = {1, 2}


def refused_and_not_taken_back(control: Pausing) -> None:
    """The canary of version 2 fails, and 1 cannot be read again."""
    control.torn, control.says = {1}, -5.0


TROUBLES = pytest.mark.parametrize("trouble", [torn_and_taken_back, refused_and_not_taken_back])
DOUBT = "the loaded weights are not known: a swap failed, and version 1 could not be reloaded"


@TROUBLES
def test_a_child_engine_with_unknown_weights_is_ended_and_serves_no_request(
    tmp_path: Path, trouble: Callable[[Pausing], None]
) -> None:
    control, ended = Pausing(), []
    targets = pausing(tmp_path, control)

    async def main() -> None:
        targets.start(asyncio.get_running_loop(), lambda: ended.append(True))
        await asyncio.to_thread(targets.swap, 1)
        trouble(control)
        with pytest.raises(ClawError, match=f"{DOUBT}; the engine is restarted"):
            await asyncio.to_thread(targets.swap, 2)
        assert (ended, control.paused, targets.live) == ([True], True, 1)  # paused: it samples nothing before it ends
        assert targets.stuck == f"{DOUBT}; the engine is restarted"
        for version in (None, 0, 1):
            with pytest.raises(Refusal, match="the loaded weights are not known") as refused:
                async with targets.lease(version):
                    pass
            assert (refused.value.status, refused.value.code) == (503, "engine_paused")
        targets.reset("tiny", WEIGHTS)  # it has restarted
        assert (targets.stuck, targets.doubt, await use(targets, 0)) == (None, None, "tiny")

    on_a_loop(targets, main)


@TROUBLES
def test_answers_of_an_external_engine_with_unknown_weights_are_not_trained(
    tmp_path: Path, trouble: Callable[[Pausing], None]
) -> None:
    control = Pausing()
    targets = pausing(tmp_path, control)

    async def main() -> None:
        await asyncio.to_thread(targets.swap, 1)
        async with targets.lease(None) as target:
            assert sampled_by(target).untrainable is None
            trouble(control)
            with pytest.raises(ClawError, match="new turns are not trained until a version goes live"):
                await asyncio.to_thread(targets.swap, 2)
            assert (targets.doubt, targets.stuck, targets.live, control.paused) == (DOUBT, None, 1, False)
            assert sampled_by(target).untrainable == DOUBT
        control.torn, control.says = set(), -1.0
        await asyncio.to_thread(targets.swap, 1)
        async with targets.lease(None) as target:
            sampled = sampled_by(target)
        assert (targets.doubt, sampled.untrainable, sampled.version, control.weights[-1]) == (None, None, 1, "1")

    on_a_loop(targets, main)


def test_a_folder_that_went_away_is_no_way_back(tmp_path: Path) -> None:
    control, ended = Pausing(), []
    targets = pausing(tmp_path, control)

    async def main() -> None:
        targets.start(asyncio.get_running_loop(), lambda: ended.append(True))
        await asyncio.to_thread(targets.swap, 1)
        shutil.rmtree(tmp_path / "run" / "policies" / "1")
        control.says = -5.0
        with pytest.raises(ClawError, match=r"its canary differs by 4\.000 .*there is no policy 1.*the engine is restarted"):
            await asyncio.to_thread(targets.swap, 2)
        assert ended == [True]

    on_a_loop(targets, main)


def test_answers_that_end_during_the_canary_check_are_not_trained(tmp_path: Path) -> None:
    samples = []

    class Asking(Pausing):
        def score(self, name: str, ids: list[int]) -> list[float]:
            samples.append(sampled_by(target))
            return super().score(name, ids)

    targets = pausing(tmp_path, Asking())

    async def main() -> None:
        nonlocal target
        async with targets.lease(None) as target:
            await asyncio.to_thread(targets.swap, 1)
            assert [sample.untrainable for sample in samples] == ["sampled before the version passed its canary check"]
            assert sampled_by(target).untrainable is None

    target: Target
    on_a_loop(targets, main)


def test_an_adapter_is_not_served_on_other_weights_and_answers_that_spanned_the_swap_are_not_trained(tmp_path: Path) -> None:
    targets = pausing(tmp_path, Pausing())
    targets.reset("tiny", Capabilities(ids=True, logprobs=True, processed=True, adapters=True, weights=True))
    publish_policy(open_run(tmp_path / "run"), Policy(3, 0, 3, None, "adapter", "m", [], None, {}, 0.0), lambda folder: None)

    async def main() -> None:
        async with targets.lease(3) as target:
            assert sampled_by(target).untrainable is None
            await asyncio.to_thread(targets.swap, 1)
            assert sampled_by(target).untrainable == "sampled by an adapter above version 1"
        with pytest.raises(Refusal, match="serves one version at a time, currently 1"):
            await use(targets, 3)
        await asyncio.to_thread(targets.swap, 0)
        async with targets.lease(3) as target:
            assert sampled_by(target).untrainable is None

    on_a_loop(targets, main)
