"""Turns with images: the trainer's logprobs equal the engine's, and it learns from them."""

import asyncio
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from clawctl.config import Recipe
from clawctl.engines.embedded.decoder import Decoder
from clawctl.engines.embedded.frames import Sampling, TokenPiece
from clawctl.engines.embedded.weights import load_weights
from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import ensure_base_policy, publish_policy
from clawctl.run.rows import Policy, Turn
from clawctl.run.shards import read_turns
from clawctl.serve.canary import CanaryFailure, check_canary
from clawctl.train.feed import Feed
from clawctl.train.sample import Batch
from clawctl.train.turn_queue import TurnQueue
from clawctl.trainers import Model
from clawctl.trainers.local.batches import Merge, make_microbatch
from clawctl.trainers.local.estimate import forecast
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.scores import turn_branches
from clawctl.trainers.local.step import train_step
from clawctl.trainers.local.training import Training
from clawctl.trainers.texts import TokenizerTexts
from clawctl.vision import SentImage
from clawctl.vision.reader import ImageReader, expand
from clawctl.vision.tower import model_class, prepare
from tests.train.tiny import HINT, make_recipe, publish_shard, resume
from tests.vision.tiny import picture

ALONE = Ranks(0, 1, torch.device("cpu"))
LORA = {"lora": {"rank": 4, "alpha": 8}}


class Served:
    """The embedded engine, and turns sampled from it."""

    def __init__(self, engine: Decoder, tokenizer: Any, reader: ImageReader) -> None:
        self.engine, self.tokenizer, self.reader = engine, tokenizer, reader

    def turn(self, name: str, *files: bytes, words: str = "please click", parent: Turn | None = None) -> Turn:
        """A turn that shows pictures: behind a parent's prompt and answer, if there is one."""
        before = [] if parent is None else parent.messages
        parts = [{"type": "image_url", "image_url": {"url": f"image:{sha256(file).hexdigest()}"}} for file in files]
        messages = [*before, {"role": "user", "content": [*parts, {"type": "text", "text": words}]}]
        marked = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        marked = [-1 if token == self.reader.placeholder else token for token in marked]
        earlier_files = {} if parent is None else self.files
        self.files = {**earlier_files, **{sha256(file).hexdigest(): file for file in files}}
        ids, images = expand(marked, -1, self.reader.placeholder, [self._measured(url) for url in _names(messages)])
        tokens = asyncio.run(self._sample(ids, images))
        return Turn(
            turn_id=name, session_id=f"s-{name[0]}", parent_turn_id=parent and parent.turn_id, turn_index=0, kind="main",
            source="serve", task_id=None, group_id=None, user="default", created_at=time.time(), messages=messages, tools=None,
            response={"role": "assistant", "content": "x"}, next_state=[{"role": "user", "content": "no"}], prompt_ids=ids,
            completion_ids=[token.id for token in tokens], logprobs=[token.logprob for token in tokens], policy_version=0,
            policy_version_end=0, temperature=0.8, top_p=1.0, top_k=0, finish_reason="length", outcome_reward=None, feedback=None,
            trainable=True, untrainable_reason=None, images=[image.placed for image in images] or None,
        )  # fmt: skip

    def _measured(self, name: str) -> tuple[bytes, int]:
        return self.files[name], self.reader.picture(self.files[name]).tokens

    async def _sample(self, ids: list[int], images: list[SentImage]) -> list[Any]:
        pieces: asyncio.Queue[TokenPiece] = asyncio.Queue()
        seen = self.engine.prepare_images(ids, images) if images else None
        self.engine.generate(ids, Sampling(0.8, 1.0, 0, 10), pieces.put_nowait, seen=seen)
        tokens: list[Any] = []
        while True:
            piece = await pieces.get()
            tokens += piece.tokens
            if piece.ended:
                assert piece.error is None
                return tokens


def _names(messages: list[dict[str, Any]]) -> list[str]:
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return [part["image_url"]["url"].removeprefix("image:") for part in parts if part["type"] == "image_url"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, vision_path: Path, reader: ImageReader) -> Iterator[Served]:
    from transformers import AutoTokenizer

    run = open_run(tmp_path_factory.mktemp("served") / "run")
    ensure_base_policy(run, str(vision_path))
    engine = Decoder(run, serving(vision_path), 0)
    yield Served(engine, AutoTokenizer.from_pretrained(vision_path), reader)
    engine.stop()


def serving(vision_path: Path) -> Recipe:
    serve = {"port": 0, "threads": 1, "kv_cache_tokens": 8192, "max_batch_tokens": 64}
    return Recipe.model_validate({"model": {"path": str(vision_path), "dtype": "float32"}, "serve": serve})


@pytest.fixture(scope="module")
def turns(served: Served) -> tuple[list[Turn], dict[str, bytes]]:
    """A session of three turns that shows its first picture again each time, another with a picture of the same size, and text."""
    red, blue, green = picture(1), picture(2), picture(3, width=48, height=40)
    first = served.turn("a1", red)
    second = served.turn("a2", blue, green, parent=first, words="hello")
    files = dict(served.files)
    other = served.turn("b1", blue)
    text = served.turn("c1")
    return [first, second, other, text], {**files, **served.files}


def publish(run: RunDir, turns: tuple[list[Turn], dict[str, bytes]], vision_path: Path) -> None:
    rows, files = turns
    ensure_base_policy(run, str(vision_path))
    for name, content in files.items():
        (run.images / name).write_bytes(content)
    hints = [HINT, None, None, None]
    publish_shard(run, "a", [(turn, 1.0 if index % 2 else -1.0, hints[index]) for index, turn in enumerate(rows)])


def feed_of(run: RunDir, training: Training) -> Feed:
    policy = training.policy
    assert policy.images is not None
    texts = TokenizerTexts(policy.tokenizer, policy.vocabulary, policy.context)
    return Feed(TurnQueue(run, training.config, Model(texts, adapter=True, exact=True, images=policy.images.reader), {}))


def texts_of(served: Served) -> TokenizerTexts:
    return TokenizerTexts(served.tokenizer, served.engine.vocabulary, 4096)


def take(feed: Feed) -> Batch:
    batch = feed.next_batch(0)
    assert batch is not None
    return batch


def begin(run: RunDir, vision_path: Path, **train: Any) -> Training:
    return resume(run, make_recipe(vision_path, **train), ALONE)


def weights(policy: PolicyModel) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in policy.module.named_parameters()}


@pytest.mark.parametrize("train", [LORA, {"gradient_checkpointing": True}])
def test_the_trainer_finds_the_logprobs_that_were_served_and_a_step_moves_weights(
    run: RunDir, vision_path: Path, turns: tuple[list[Turn], dict[str, bytes]], train: dict[str, Any]
) -> None:
    """In tries; with a hint, and with turns whose gradients are measured."""
    publish(run, turns, vision_path)
    training = begin(run, vision_path, method="combine", turn_bound=1.0, **train)
    assert training.policy.merge == "tree"
    batch, before = take(feed_of(run, training)), weights(training.policy)
    assert sorted(len(sample.images) for sample in batch.samples) == [0, 1, 1, 3]
    assert any(sample.teacher_prompt_ids for sample in batch.samples)
    result = train_step(training, batch)
    assert result.row is not None, result.problem
    assert result.row["mismatch_max"] < 1e-4
    moved = {name for name, weight in weights(training.policy).items() if not torch.equal(weight, before[name])}
    assert moved
    assert any(".visual." in name for name in moved) == (train is not LORA)  # an adapter is on the language model alone


def test_loss_and_gradient_do_not_depend_on_how_sequences_with_images_are_merged(
    run: RunDir, vision_path: Path, turns: tuple[list[Turn], dict[str, bytes]]
) -> None:
    publish(run, turns, vision_path)
    training = begin(run, vision_path, turn_bound=None, clip_grad=1e9, lr=1e-12, warmup_steps=0)
    batch, results = take(feed_of(run, training)), []
    merges: tuple[tuple[Merge, int], ...] = (("none", 1), ("prefix", 10_000), ("tree", 10_000), ("tree", 1))
    for merge, tokens in merges:
        training.policy.merge = merge
        training.config = training.config.changed(tokens_per_microbatch=tokens)
        result = train_step(training, batch)
        assert result.row is not None
        results.append((result.row["loss"], result.row["grad_norm"], result.row["mismatch_max"]))
    for loss, norm, mismatch in results:
        assert (loss, norm) == (pytest.approx(results[0][0], rel=1e-4), pytest.approx(results[0][1], rel=1e-4))
        assert mismatch < 1e-4


def test_another_picture_of_the_same_size_gives_other_logprobs(
    run: RunDir, vision_path: Path, turns: tuple[list[Turn], dict[str, bytes]]
) -> None:
    """The ids of the two are equal, so a trainer that dropped the pixels would not notice."""
    publish(run, turns, vision_path)
    training = begin(run, vision_path)
    batch, policy = take(feed_of(run, training)), training.policy
    assert policy.images is not None
    pictured = next(sample for sample in batch.samples if sample.turn_id == "b1")
    (image,) = pictured.images
    changed = replace(pictured, images=({**image, "sha256": sha256(picture(1)).hexdigest()},))
    results = []
    for sample in (pictured, changed):
        (expanded,) = policy.images.with_image_ids(replace(batch, samples=[sample])).samples
        with torch.no_grad():
            results.append(policy.logprobs(make_microbatch(turn_branches([expanded]), "none", ALONE.device)))
    assert float((results[0] - results[1]).abs().max()) > 0.01


@pytest.mark.parametrize(
    ("damage", "reason", "count"),
    [("missing", "an image is missing", 2), ("changed", "an image is damaged", 2),
     ("moved", "an image is not at its recorded position", 1),
     ("smaller", "an image has another size for this model", 3), ("text", "images, which this trainer does not read", 3)],
)  # fmt: skip
def test_a_turn_with_another_image_than_served_is_refused_with_the_reason_and_the_others_are_trained(
    run: RunDir, vision_path: Path, served: Served, turns: tuple[list[Turn], dict[str, bytes]], damage: str, reason: str, count: int
) -> None:
    rows, files = turns
    red = run.images / sha256(picture(1)).hexdigest()  # in a1 and a2
    if damage == "moved":
        assert rows[0].images is not None
        rows = [replace(rows[0], images=[{**rows[0].images[0], "start": 1}]), *rows[1:]]
    publish(run, (rows, files), vision_path)
    if damage == "missing":
        red.unlink()
    elif damage == "changed":
        red.write_bytes(b"another")
    reader = None if damage == "text" else replace(served.reader, max_pixels=256) if damage == "smaller" else served.reader
    model = Model(texts_of(served), adapter=True, exact=True, images=reader)
    feed = Feed(TurnQueue(run, make_recipe(vision_path, batch_turns=1).train, model, {}))
    take(feed)
    assert feed.queue.refused[reason] == count
    assert len(feed.queue.waiting) == 4 - count


def test_an_image_that_is_deleted_while_its_turn_waits_refuses_that_turn_alone(
    run: RunDir, vision_path: Path, served: Served, turns: tuple[list[Turn], dict[str, bytes]]
) -> None:
    publish(run, turns, vision_path)
    model = Model(texts_of(served), adapter=True, exact=True, images=served.reader)
    feed = Feed(TurnQueue(run, make_recipe(vision_path, batch_turns=1).train, model, {}))
    take(feed)
    for name in turns[1]:
        (run.images / name).unlink()
    assert [sample.turn_id for sample in take(feed).samples] == ["c1"]
    assert feed.queue.refused["an image is missing"] + len(feed.queue.waiting) == 4


def test_the_canary_of_a_version_has_an_image_and_an_engine_without_its_pixels_fails(
    run: RunDir, vision_path: Path, turns: tuple[list[Turn], dict[str, bytes]], reader: ImageReader
) -> None:
    publish(run, turns, vision_path)
    training = begin(run, vision_path, lora={"rank": 4, "alpha": 8, "targets": "all-linear"}, lr=1e-2)
    assert train_step(training, take(feed_of(run, training))).row is not None
    policy = training.policy
    canary = policy.canary()
    assert reader.picture(b64decode(canary["image"]["content"])).tokens == canary["image"]["prompt_ids"].count(reader.placeholder)

    def fill(folder: Path) -> None:
        policy.save(folder, policy.published())

    def publish_version(version: int, canary: dict[str, Any]) -> None:
        publish_policy(run, Policy(version, 0, version, "combine", "adapter", str(vision_path), [], canary, {}, 0.0), fill)

    publish_version(1, canary)
    loaded = load_weights(run, serving(vision_path), 1)
    prepare(loaded.model)
    check_canary(run, 1, loaded.score, 1e-4, partial(loaded.score_image, reader))
    adapter = orjson.loads((run.version_folder(1) / "adapter_config.json").read_bytes())
    assert "visual" in adapter["exclude_modules"]
    other = {**canary["image"], "content": b64encode(picture(9, 64, 48)).decode()}
    publish_version(2, {**canary, "image": other})
    with pytest.raises(CanaryFailure, match="differs by"):
        Decoder(run, serving(vision_path), 2)


def test_the_memory_of_a_vision_model_is_estimated_before_it_is_loaded(vision_path: Path) -> None:
    result = forecast(make_recipe(vision_path, device_memory_gb=8.0, peak_tflops=1.0, **LORA), ALONE)
    loaded = sum(weight.numel() for weight in model_class(str(vision_path)).from_pretrained(vision_path).parameters())
    assert result.parameters == loaded
    assert result.fits


def test_a_turn_keeps_its_images_on_disk(run: RunDir, turns: tuple[list[Turn], dict[str, bytes]], vision_path: Path) -> None:
    publish(run, turns, vision_path)
    read = {turn.turn_id: turn for turn in read_turns(run.trajectories / "a.parquet")}
    assert [read[turn.turn_id].images for turn in turns[0]] == [turn.images for turn in turns[0]]
