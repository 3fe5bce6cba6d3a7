"""The embedded engine reports the model's own ids, logprobs and versions, before, during and after a swap."""

import asyncio
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding import sample
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from clawctl.config import Recipe
from clawctl.engines.embedded.cache import KvCache
from clawctl.engines.embedded.decoder import Decoder
from clawctl.engines.embedded.frames import Sampling, Token, TokenPiece
from clawctl.engines.embedded.weights import load_weights
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import ensure_base_policy, publish_policy
from clawctl.run.rows import Policy
from clawctl.serve.canary import CanaryFailure
from tests.serve.served import logprobs_of, perturbed, recipe_data

PROMPT = list(range(3, 103))


@pytest.fixture
def run(tmp_path: Path, model_path: Path) -> RunDir:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, str(model_path))
    for version in (1, 2):
        policy = Policy(version, version - 1, version, None, "full", str(model_path), [], None, {}, 0.0)
        publish_policy(run, policy, perturbed(model_path, version).save_pretrained)
    return run


@pytest.fixture
def engine(run: RunDir, model_path: Path) -> Iterator[Decoder]:
    engine = Decoder(run, Recipe.model_validate(recipe_data(model_path)), 0)
    yield engine
    engine.stop()


def test_versions_that_are_loaded_at_the_same_time_are_each_loaded_right(run: RunDir, model_path: Path) -> None:
    recipe = Recipe.model_validate(recipe_data(model_path))
    for _ in range(3):
        with ThreadPoolExecutor(2) as threads:
            loaded = list(threads.map(lambda version: load_weights(run, recipe, version), (1, 2)))
        for weights in loaded:
            expected = logprobs_of(model_of(run, model_path, weights.version), PROMPT[:1], PROMPT[1:])
            assert weights.score(PROMPT) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("content", [b"", b"\x10\x20 no weights"])
def test_a_file_that_is_no_checkpoint_is_a_problem_with_a_cure(tmp_path: Path, model_path: Path, content: bytes) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_path, folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, str(folder))
    with pytest.raises(ClawError, match="is damaged, or not one that PyTorch wrote"):
        load_weights(run, Recipe.model_validate(recipe_data(folder)), 0)


def test_an_engine_whose_canary_is_off_is_not_made(run: RunDir, model_path: Path) -> None:
    canary = {"prompt_ids": [PROMPT[:4]], "logprobs": [[None, -0.001, -0.001, -0.001]]}
    policy = Policy(3, 2, 3, None, "full", str(model_path), [], canary, {}, 0.0)
    publish_policy(run, policy, perturbed(model_path, 3).save_pretrained)
    with pytest.raises(CanaryFailure, match="differs by"):
        Decoder(run, Recipe.model_validate(recipe_data(model_path)), 3)


def model_of(run: RunDir, model_path: Path, version: int) -> Any:
    path = run.version_folder(version) if version else model_path
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def assert_exact(model: Any, prompt: list[int], tokens: list[Token], temperature: float = 1.0) -> None:
    expected = logprobs_of(model, prompt, [token.id for token in tokens], temperature)
    assert [token.logprob for token in tokens] == pytest.approx(expected, abs=1e-4)


def test_logprobs_are_those_of_a_plain_forward_pass(engine: Decoder, run: RunDir, model_path: Path) -> None:
    async def main() -> None:
        # Short and long ones at once, one longer than an engine step: all ways through the attention.
        prompts = [PROMPT[:5], PROMPT, PROMPT[:33], PROMPT * 3, PROMPT[:1]]
        answers = await asyncio.gather(*(sample(engine, prompt) for prompt in prompts))
        for prompt, tokens in zip(prompts, answers, strict=True):
            assert_exact(model_of(run, model_path, 0), prompt, tokens)
        again = await sample(engine, PROMPT * 3, temperature=0.5)  # its beginning lies in the cache by now
        assert_exact(model_of(run, model_path, 0), PROMPT * 3, again, temperature=0.5)

    asyncio.run(main())


@pytest.mark.parametrize("kv_tokens", [8192, 1400, 600])  # enough for all, for some that grow, for few
def test_a_request_that_outgrows_its_row_keeps_its_own_keys(run: RunDir, model_path: Path, kv_tokens: int) -> None:
    """Its row in the old block goes to another request, and where memory is short the newest request waits and begins again."""
    engine = Decoder(run, Recipe.model_validate(recipe_data(model_path, kv_cache_tokens=kv_tokens)), 0)

    async def main() -> None:
        prompts = [PROMPT[: 99 - 2 * i] for i in range(8)]  # in rows of 128 tokens, which they fill at different times
        answers = await asyncio.gather(*(sample(engine, prompt, 60) for prompt in prompts))
        assert sum(len(prompt) + len(tokens) > 130 for prompt, tokens in zip(prompts, answers, strict=True)) > 1
        for prompt, tokens in zip(prompts, answers, strict=True):
            assert_exact(model_of(run, model_path, 0), prompt, tokens)

    try:
        asyncio.run(main())
    finally:
        engine.stop()


def test_versions_share_one_cache(run: RunDir, model_path: Path) -> None:
    """There is room for two requests of one version, or one of each. What ended answers leave behind is no obstacle."""
    recipe, cache = Recipe.model_validate(recipe_data(model_path)), KvCache(320)
    engines = [Decoder(run, recipe, version, cache) for version in (0, 1)]

    async def main() -> None:
        await sample(engines[0], PROMPT)  # its keys are kept
        answers = await asyncio.gather(*(sample(engine, PROMPT, 60) for engine in engines * 2))  # each grows to 256 tokens
        for version, tokens in zip((0, 1) * 2, answers, strict=True):
            assert_exact(model_of(run, model_path, version), PROMPT, tokens)

    try:
        asyncio.run(main())
    finally:
        for engine in engines:
            engine.stop()
    assert cache.take(320)  # all of it was given back


def test_without_patches_logprobs_are_the_same(run: RunDir, model_path: Path) -> None:
    engine = Decoder(run, Recipe.model_validate(recipe_data(model_path, patches=False)), 0)

    async def main() -> None:
        for prompt in (PROMPT[:5], PROMPT):
            assert_exact(model_of(run, model_path, 0), prompt, await sample(engine, prompt, top_k=0))

    try:
        asyncio.run(main())
    finally:
        engine.stop()


def test_weights_in_bfloat16_are_computed_in_float32(run: RunDir, model_path: Path) -> None:
    data = recipe_data(model_path)
    data["model"]["dtype"] = "bfloat16"
    engine = Decoder(run, Recipe.model_validate(data), 0)
    rounded = model_of(run, model_path, 0)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.bfloat16())

    async def main() -> None:
        prompts = [PROMPT[:5], PROMPT, PROMPT * 3]
        for prompt, tokens in zip(prompts, await asyncio.gather(*(sample(engine, prompt) for prompt in prompts)), strict=True):
            assert_exact(rounded, prompt, tokens)

    try:
        asyncio.run(main())
    finally:
        engine.stop()


def test_an_answer_ends_with_the_end_token_or_at_its_limit(engine: Decoder) -> None:
    async def main() -> None:
        answers = await asyncio.gather(*(sample(engine, PROMPT, 120) for _ in range(2)))
        for tokens in answers:
            ends = [i for i, token in enumerate(tokens) if token.id in engine.eos_ids]
            assert ends == [len(tokens) - 1] if ends else len(tokens) == 120

    asyncio.run(main())


def test_temperature_0_takes_the_likeliest_and_top_k_keeps_to_the_k_likeliest(
    engine: Decoder, run: RunDir, model_path: Path
) -> None:
    async def main() -> None:
        greedy, tiniest, few, nucleus = await asyncio.gather(
            sample(engine, PROMPT, temperature=0.0),
            sample(engine, PROMPT, temperature=1e-300),  # in float32 it is 0, and a division by it gives NaN
            sample(engine, PROMPT, top_k=2),
            sample(engine, PROMPT, top_p=0.01),
        )
        ids = torch.tensor([PROMPT + [token.id for token in greedy]])
        logits = model_of(run, model_path, 0)(input_ids=ids).logits[0, len(PROMPT) - 1 : -1]
        assert [token.id for token in greedy] == logits.argmax(-1).tolist()
        ids = torch.tensor([PROMPT + [token.id for token in few]])
        likeliest = model_of(run, model_path, 0)(input_ids=ids).logits[0, len(PROMPT) - 1 : -1].topk(2).indices
        assert all(token.id in row for token, row in zip(few, likeliest.tolist(), strict=True))
        assert [token.id for token in tiniest] == [token.id for token in greedy]
        assert [token.id for token in nucleus] == [token.id for token in greedy][: len(nucleus)]

    asyncio.run(main())


def test_a_swap_keeps_running_requests_and_tags_each_token_with_its_version(engine: Decoder, run: RunDir, model_path: Path) -> None:
    models = [model_of(run, model_path, version) for version in (0, 1)]

    async def answer_across_a_swap(old: int, new: int) -> bool:
        """Whether an answer crossed the swap. A busy machine may be late with it."""
        begun = asyncio.Event()
        requests = [asyncio.create_task(sample(engine, PROMPT[: 20 + i], 200, begun=begun)) for i in range(8)]
        await begun.wait()
        await asyncio.to_thread(engine.replace, engine.stage(new))
        answers = await asyncio.gather(*requests)
        for i, tokens in enumerate(answers):
            before = [token for token in tokens if token.version == old]
            assert [token.version for token in tokens] == [old] * len(before) + [new] * (len(tokens) - len(before))
            # Tokens after the swap see keys that old weights made: neither model alone computes them, the tag says it.
            assert_exact(models[old], PROMPT[: 20 + i], before)
        fresh = await sample(engine, PROMPT)
        assert {token.version for token in fresh} == {new}
        assert_exact(models[new], PROMPT, fresh)
        return any(tokens[0].version == old and tokens[-1].version == new for tokens in answers)

    async def main() -> None:
        for i in range(20):
            if await answer_across_a_swap(i % 2, (i + 1) % 2):
                return
        pytest.fail("no answer was under way during any of 20 swaps")

    asyncio.run(main())


def test_nothing_that_old_weights_computed_is_shared_after_a_swap(engine: Decoder, run: RunDir, model_path: Path) -> None:
    async def main() -> None:
        await sample(engine, PROMPT)  # its pages are kept for others
        running = asyncio.create_task(sample(engine, PROMPT[:70], 300, temperature=0.7))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(engine.replace, engine.stage(2))
        crossed = await running
        new = model_of(run, model_path, 2)
        for prompt in (PROMPT, PROMPT[:70] + [token.id for token in crossed]):
            assert_exact(new, prompt, await sample(engine, prompt))
        await asyncio.to_thread(engine.replace, engine.stage(0))  # and back
        assert_exact(model_of(run, model_path, 0), PROMPT, await sample(engine, PROMPT))

    asyncio.run(main())


def test_an_adapter_serves_merged_into_the_base(engine: Decoder, run: RunDir, model_path: Path) -> None:
    base = model_of(run, model_path, 0)
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    publish_policy(run, Policy(3, 0, 3, None, "adapter", str(model_path), [], None, {}, 0.0), adapted.save_pretrained)

    async def main() -> None:
        await asyncio.to_thread(engine.replace, engine.stage(3))
        assert_exact(adapted.eval(), PROMPT, await sample(engine, PROMPT))

    asyncio.run(main())


def test_a_cancelled_request_releases_its_resources(engine: Decoder) -> None:
    async def main() -> None:
        pieces: asyncio.Queue[TokenPiece] = asyncio.Queue()
        endless = Sampling(1.0, 1.0, 0, 1000, logit_bias=dict.fromkeys(engine.eos_ids, -100.0))
        running = engine.generate(PROMPT, endless, pieces.put_nowait)
        got: list[Token] = []
        while len(got) < 5:
            got += (await pieces.get()).tokens
        running.cancel()
        await sample(engine, PROMPT[:10], 4)  # a step later …
        assert engine.batches.idle
        delivered = pieces.qsize()  # of the step that was under way
        await sample(engine, PROMPT[:10], 4)
        assert pieces.qsize() == delivered
        assert 5 <= len(got) + delivered < 1000

    asyncio.run(main())


def test_a_client_that_is_gone_while_its_prompt_is_read_frees_the_engine_at_once(run: RunDir, model_path: Path) -> None:
    step = 4  # tokens, of 3,000
    engine = Decoder(run, Recipe.model_validate(recipe_data(model_path, max_batch_tokens=step)), 0)

    async def main() -> None:
        pieces = list[TokenPiece]()
        running = engine.generate(PROMPT * 30, Sampling(1.0, 1.0, 0, 24), pieces.append)
        request = running.request
        assert request is not None
        while request.cached == 0:
            await asyncio.sleep(0)
        running.cancel()
        read = request.cached
        while not engine.batches.idle:
            await asyncio.sleep(0.001)
        assert request.cached <= read + step < len(request.ids), "only the step that was being computed is finished"
        assert not pieces

    try:
        asyncio.run(main())
    finally:
        engine.stop()


def test_many_requests_in_a_small_cache_all_finish_exactly(run: RunDir, model_path: Path) -> None:
    recipe = Recipe.model_validate(recipe_data(model_path, kv_cache_tokens=384))
    engine = Decoder(run, recipe, 0)

    async def main() -> None:
        prompts = [PROMPT[i : i + 60] for i in range(6)]
        answers = await asyncio.gather(*(sample(engine, prompt, 60) for prompt in prompts))
        for prompt, tokens in zip(prompts, answers, strict=True):
            assert_exact(model_of(run, model_path, 0), prompt, tokens)

    try:
        asyncio.run(main())
    finally:
        engine.stop()


def test_requests_of_several_adapters_share_steps_and_each_gets_its_own(run: RunDir, model_path: Path) -> None:
    """Among them answers of several adapters with one beginning, of the base, and of a version that changes on the way."""
    models = [model_of(run, model_path, 0).eval()]
    for version, targets in ((3, ["q_proj", "up_proj"]), (4, ["k_proj", "down_proj"]), (5, ["q_proj", "o_proj", "gate_proj"])):
        torch.manual_seed(version)
        config = LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
        models.append(get_peft_model(model_of(run, model_path, 0), config).eval())
        policy = Policy(version, 0, version, None, "adapter", str(model_path), [], None, {}, 0.0)
        publish_policy(run, policy, models[-1].save_pretrained)
    recipe = Recipe.model_validate(recipe_data(model_path))
    live = Decoder(run, recipe, 0)
    people = [Decoder(run, recipe, version, beside=live) for version in (3, 4)]
    assert all(person.batches is live.batches for person in people)

    async def main() -> None:
        for _ in range(2):  # the second time each beginning lies in the cache
            requests = [(decoder, prompt) for prompt in (PROMPT, PROMPT[:9], PROMPT * 2) for decoder in (live, *people)]
            answers = await asyncio.gather(*(sample(decoder, prompt) for decoder, prompt in requests))
            for (decoder, prompt), tokens in zip(requests, answers, strict=True):
                assert_exact(models[[live, *people].index(decoder)], prompt, tokens)
                assert {token.version for token in tokens} == {decoder.version}
        swapping = asyncio.gather(sample(people[0], PROMPT, 40), asyncio.to_thread(live.replace, live.stage(5)))
        assert_exact(models[1], PROMPT, (await swapping)[0])
        assert_exact(models[3], PROMPT, await sample(live, PROMPT))
        await asyncio.to_thread(people[1].stop)
        tokens, others = await asyncio.gather(sample(people[0], PROMPT), sample(live, PROMPT))
        assert_exact(models[1], PROMPT, tokens)
        assert_exact(models[3], PROMPT, others)
        with pytest.raises(ValueError, match="not an adapter of the base model"):
            await asyncio.to_thread(live.replace, live.stage(1))

    try:
        asyncio.run(main())
    finally:
        people[0].stop()
        live.stop()
