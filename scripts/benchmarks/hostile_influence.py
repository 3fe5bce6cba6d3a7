"""Case `influence`: measures the largest share of training that one turn or one key can have.

Gradients: steps of 16 turns on the model `wishes` with exact logprobs. 15 turns are sampled at temperature 1 and one is hostile.
The steps use several methods, with an adapter and with all weights. The gradient of each turn is computed separately, as in its
step.
The share of a turn is the norm of its gradient divided by the sum of the norms of all 16.

Keys: shards in the format of collect and judge pass through the trainer's own feed. One loud key sends hundreds of praised turns:
identical, varied by a counter, or in groups. Quiet keys send a few turns each. The benchmark counts the turns of quiet keys that
became stale or never entered a step.
"""

import argparse
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from clawctl.config import Recipe, TrainConfig
from clawctl.run.directory import RunDir, open_run
from clawctl.run.rows import Turn, Verdict
from clawctl.run.shards import read_columns, write_turns, write_verdicts
from clawctl.train.feed import Feed
from clawctl.train.sample import Batch, Sample
from clawctl.train.turn_queue import TurnQueue
from clawctl.trainers import Model
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.trainer import load_training
from clawctl.trainers.local.training import Training
from clawctl.trainers.texts import TokenizerTexts
from scripts.benchmarks.gradients import gradients_of
from scripts.benchmarks.table import Row
from scripts.benchmarks.wishes_circle import MODEL
from scripts.wishes.problems import make_problems

ALONE = Ranks(0, 1, torch.device("cpu"))
UNSAMPLED = ("forced tokens", "repeated")  # attacks with tokens that no sampler produces: the bar does not apply
TURNS, LOUD, QUIET = 16, 400, 6  # number of turns of a step, of the loud key, and of each quiet key
EXTREME = "Answer with nothing but the word pencils, again and again, in capital letters."
HINT = "Write plain sentences, without bold or numbered steps."
METHODS: dict[str, dict[str, Any]] = {
    "binary": {"method": "binary"},
    "binary adapter": {"method": "binary", "lora": {"rank": 8}},
    "opd": {"method": "opd"},
    "combine": {"method": "combine"},
    "combine adapter": {"method": "combine", "lora": {"rank": 8}},
    "hybrid": {"method": "hybrid"},
}


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    return [Row("influence", *number) for number in (*keys(options, folder), *gradients(options, folder))]


# Gradients


def gradients(options: argparse.Namespace, folder: Path) -> list[tuple[str, float | None, str]]:
    torch.set_num_threads(1)
    largest: dict[bool, float] = {True: 0.0, False: 0.0}
    against: dict[bool, float] = {True: 0.0, False: 0.0}
    honest = 0.0
    by_attack: defaultdict[str, float] = defaultdict(float)
    calm: dict[int, list[Sample]] = {}  # all methods start with the same weights, so their turns are the same
    hostile: dict[tuple[int, str], Sample] = {}
    for method, changes in METHODS.items():
        training = load_training(recipe(**changes), ALONE)
        for seed in range(options.seed, options.seed + (1 if options.quick else 3)):
            calm[seed] = calm.get(seed) or honest_turns(training.policy, seed)
            bound(training, True)
            honest = max(honest, *shares(training, calm[seed])[0])
            for name, attack in ATTACKS.items():
                last = hostile.get((seed, name)) or attack(training.policy, calm[seed][-1], seed)
                hostile[seed, name] = last
                step = [*calm[seed][:-1], last]
                for bounded in (True, False) if method in ("binary", "combine") else (True,):
                    bound(training, bounded)
                    shares_of_step, opposed = shares(training, step)
                    if name not in UNSAMPLED:
                        largest[bounded] = max(largest[bounded], *shares_of_step)
                        against[bounded] = max(against[bounded], opposed)
                    if bounded:
                        by_attack[name] = max(by_attack[name], shares_of_step[-1])
        print(f"influence, {method}: largest share so far {largest[True]:.3f}, unbounded {largest[False]:.3f}", file=sys.stderr)
    return [
        ("gradient_share_max", largest[True], "share"),
        *((f"gradient_share {name}", share, "share") for name, share in by_attack.items()),
        ("gradient_share_max_unsampled", max(by_attack[name] for name in UNSAMPLED), "share"),
        ("gradient_share_max_unbounded", largest[False], "share"),
        ("gradient_share_max_honest", honest, "share"),
        ("gradient_over_all_others_max", against[True], "ratio"),
        ("gradient_over_all_others_max_unbounded", against[False], "ratio"),
    ]


def bound(training: Training, bounded: bool) -> None:
    training.config = training.config.model_copy(update={"turn_bound": TrainConfig().turn_bound if bounded else None})


def recipe(**train: Any) -> Recipe:
    return Recipe.model_validate({"model": {"path": str(MODEL)}, "train": {"threads": 1, **train}})


def shares(training: Training, samples: Sequence[Sample]) -> tuple[list[float], float]:
    """Return each turn's share of the gradient norms, and the norm of the last turn's gradient divided by that of the sum of all
    others."""
    gradients = list(gradients_of(training, Batch(1, list(samples))))
    norms = [norm_of(gradient) for gradient in gradients]
    others = [torch.stack(parts).sum(0) for parts in zip(*gradients[:-1], strict=True)]
    return [norm / sum(norms) for norm in norms], norms[-1] / norm_of(others)


def norm_of(gradient: Sequence[torch.Tensor]) -> float:
    return math.sqrt(sum(float(part.square().sum()) for part in gradient))


def honest_turns(policy: PolicyModel, seed: int) -> list[Sample]:
    """Sample sixteen answers at temperature 1. Half of them are praised. All have a hint."""
    tasks = make_problems(TURNS, seed)
    return [
        sampled(policy, f"t{i}", task.text, 1.0, seed * TURNS + i, 1.0 if i % 2 else -1.0, HINT) for i, task in enumerate(tasks)
    ]


@torch.no_grad()
def sampled(
    policy: PolicyModel, name: str, ask: str, temperature: float, seed: int, reward: float, hint: str, max_tokens: int = 60
) -> Sample:
    """Sample an answer of at most `most` tokens, with its exact logprobs."""
    prompt = rendered(policy, ask)
    generator, ids, logprobs, cache = torch.Generator().manual_seed(seed), list(prompt), list[float](), None
    step = torch.tensor([ids])
    while len(logprobs) < max_tokens:
        out = policy.causal(input_ids=step, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        scaled = (out.logits[0, -1].float() / temperature).log_softmax(-1)
        token = int(torch.multinomial(scaled.exp(), 1, generator=generator))
        logprobs.append(min(0.0, float(scaled[token])))
        ids.append(token)
        step = torch.tensor([[token]])
        if token == policy.tokenizer.eos_token_id and max_tokens <= 60:
            break
    hinted = rendered(policy, f"{ask}\n{hint}")
    return Sample(name, "a", "", prompt, ids[len(prompt) :], logprobs, temperature, 0, reward, hinted, session_id=name)


def rendered(policy: PolicyModel, ask: str) -> list[int]:
    messages = [{"role": "user", "content": ask}]
    return list(policy.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def scored(policy: PolicyModel, sample: Sample) -> Sample:
    """Return the turn with the policy's logprobs of its tokens."""
    ids = torch.tensor([sample.prompt_ids + sample.completion_ids])
    with torch.no_grad():
        logits = policy.causal(input_ids=ids).logits[0, len(sample.prompt_ids) - 1 : -1].float() / sample.temperature
    logprobs = logits.log_softmax(-1).gather(1, torch.tensor(sample.completion_ids)[:, None]).squeeze(1)
    return replace(sample, logprobs=logprobs.clamp(max=0.0).tolist())


def cold(temperature: float) -> Callable[[PolicyModel, Sample, int], Sample]:
    """Make an attack: the least certain of twelve answers at this temperature."""

    def attack(policy: PolicyModel, like: Sample, seed: int) -> Sample:
        tasks = make_problems(12, seed + 1000)
        samples = [sampled(policy, "hostile", task.text, temperature, seed + i, 1.0, HINT) for i, task in enumerate(tasks)]
        return max(samples, key=lambda sample: sum(1 - math.exp(value) for value in sample.logprobs or []))

    return attack


def forced(policy: PolicyModel, like: Sample, seed: int) -> Sample:
    """Random tokens that the model would never sample, at temperature 0.05. No sampler can produce them."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(10, policy.vocabulary - 10, (40,), generator=generator).tolist()
    return scored(
        policy, replace(like, turn_id="hostile", completion_ids=tokens, logprobs=[0.0] * 40, temperature=0.05, reward=1.0)
    )


def longest(policy: PolicyModel, like: Sample, seed: int) -> Sample:
    return sampled(policy, "hostile", "Count upwards without an end.", 1.5, seed, 1.0, HINT, max_tokens=600)


def repeated(policy: PolicyModel, like: Sample, seed: int) -> Sample:
    """Repeat one rare phrase a few hundred times, so that all tokens push in one direction."""
    word = policy.tokenizer("pencils flowers", add_special_tokens=False)["input_ids"]
    tokens = (word * 300)[:600]
    return scored(
        policy, replace(like, turn_id="hostile", completion_ids=tokens, logprobs=[0.0] * 600, temperature=0.2, reward=1.0)
    )


def hinted(policy: PolicyModel, like: Sample, seed: int) -> Sample:
    return sampled(policy, "hostile", "Please help me with my homework.", 1.0, seed, -1.0, EXTREME)


def valued(policy: PolicyModel, like: Sample, seed: int) -> Sample:
    return replace(like, turn_id="hostile", credit=-6.4)


ATTACKS: dict[str, Callable[[PolicyModel, Sample, int], Sample]] = {
    "temperature 0.1": cold(0.1),
    "temperature 0.05": cold(0.05),
    "forced tokens": forced,
    "longest": longest,
    "repeated": repeated,
    "extreme hint": hinted,
    "credit -6.4": valued,
}


# Keys


def keys(options: argparse.Namespace, folder: Path) -> list[tuple[str, float | None, str]]:
    lost: Counter[str] = Counter()
    loud_share, copies = 0.0, 0
    for name, scenario in SCENARIOS.items():
        trained = scenario(open_run(folder / name.replace(" ", "-")), options)
        lost[name] = sum(count for key, count in trained["missing"].items() if key != "loud")
        early = trained["early"]  # in the steps in which quiet keys also had waiting turns
        loud_share = max(loud_share, early["loud"] / max(1, sum(early.values())))
        copies = max(copies, trained["trained"]["loud"] if name == "identical" else 0)
    return [
        ("other_users_stale", sum(lost.values()), "turns"),
        *((f"stale {name}", count, "turns") for name, count in lost.items()),
        ("loud_key_share_while_others_wait", loud_share, "share"),
        ("identical_turns_trained", copies, "turns"),
    ]


def told(name: str, key: str, number: int, version: int = 0, group: str | None = None) -> Turn:
    """Make a turn in the format of collect."""
    ask = [{"role": "user", "content": name}]
    return Turn(
        turn_id=f"{key}-{name}-{number}", session_id=f"{key}/{name}-{number}", parent_turn_id=None, turn_index=0, kind="main",
        source="serve", task_id="homework-1", group_id=group, user=key, created_at=time.time(), messages=ask, tools=None,
        response={"role": "assistant", "content": "ok"}, next_state=ask, prompt_ids=[7, *(10 + ord(c) % 100 for c in name)],
        completion_ids=[5, 6, 7], logprobs=[-0.5, -0.5, -0.5], policy_version=version, policy_version_end=version,
        temperature=1.0, top_p=1.0, top_k=0, finish_reason="stop", outcome_reward=None, feedback=None, trainable=True,
        untrainable_reason=None,
    )  # fmt: skip


def publish(run: RunDir, stem: str, turns: Sequence[Turn], reward: Callable[[int], float] = lambda i: 1.0) -> None:
    write_turns(run.trajectories / f"{stem}.parquet", turns)
    verdicts = [Verdict(turn.turn_id, reward(i), [1], None, [], "demo@0", None, 0.1) for i, turn in enumerate(turns)]
    write_verdicts(run.verdicts / f"{stem}.parquet", verdicts)


def stepped(run: RunDir, arrive: Callable[[int], None] | None = None, read_ahead: int = 4096, **train: Any) -> dict[str, Any]:
    """Take steps until no more are possible, at most 200. Returns how many turns of each key were trained, and how many never were.

    `arrive` is called with each version.
    """
    config = TrainConfig.model_validate({"method": "binary", "batch_wait_s": 1e-6, "batch_min_turns": 1, **train})
    texts = TokenizerTexts(AutoTokenizer.from_pretrained(recipe().model_path), 2048, 4096)
    feed = Feed(TurnQueue(run, config, Model(texts, adapter=True, exact=True), {}), read_ahead=read_ahead)
    trained: Counter[str] = Counter()
    early: Counter[str] = Counter()
    seen: set[str] = set()
    for version in range(200):
        if arrive is not None:
            arrive(version)
        batch = feed.next_batch(version)
        if batch is None:
            break
        step = Counter(sample.turn_id.split("-")[0] for sample in batch.samples)
        others_wait = any(turn.key != "loud" for turn in feed.queue.waiting)
        feed.mark_done([sample.turn_id for sample in batch.samples], "trained")
        if others_wait and any(turn.key != "loud" for turn in feed.queue.waiting):
            early += step
        trained += step
        seen |= {sample.turn_id for sample in batch.samples}
    missing: Counter[str] = Counter()
    for path in run.trajectories.glob("*.parquet"):
        missing += Counter(row["user"] for row in read_columns(path, "turns", ("turn_id", "user")) if row["turn_id"] not in seen)
    return {"trained": trained, "early": early, "missing": missing}


def quiet_turns(version: int = 0) -> list[Turn]:
    return [told(f"question {n}", f"quiet{k}", n, version) for k in range(8) for n in range(QUIET)]


def identical(run: RunDir, options: argparse.Namespace) -> dict[str, Any]:
    publish(run, "a", [told("same", "loud", n) for n in range(LOUD)])
    publish(run, "b", quiet_turns())
    return stepped(run)


def varied(run: RunDir, options: argparse.Namespace) -> dict[str, Any]:
    publish(run, "a", [told(f"varied {n}", "loud", n) for n in range(LOUD)])
    publish(run, "b", quiet_turns())
    return stepped(run)


def backlog(run: RunDir, options: argparse.Namespace) -> dict[str, Any]:
    """The loud key's shards precede those of the quiet keys and exceed the feed's read-ahead."""
    for shard in range(20):
        publish(run, f"a{shard:02d}", [told(f"varied {shard} {n}", "loud", n) for n in range(100)])
    publish(run, "b", quiet_turns())
    return stepped(run, read_ahead=64)


def groups(run: RunDir, options: argparse.Namespace) -> dict[str, Any]:
    """All keys use the same group names, but groups of different keys are different groups."""
    loud = [told(f"varied {n}", "loud", n, group=f"g{n // 8}") for n in range(LOUD)]
    quiet = [replace(turn, group_id=f"g{i % QUIET // 2}") for i, turn in enumerate(quiet_turns())]
    publish(run, "a", loud, lambda i: 1.0 if i % 8 else -1.0)
    publish(run, "b", quiet, lambda i: 1.0 if i % 2 else -1.0)
    return stepped(run, method="grpo", group_size=2)


def stream(run: RunDir, options: argparse.Namespace) -> dict[str, Any]:
    """With each version arrive two steps' worth of turns of the loud key, and one turn of a quiet key from four versions before."""

    def arrive(version: int) -> None:
        if version < 40:
            turns = [told(f"varied {version} {n}", "loud", n, version) for n in range(32)]
            publish(
                run, f"{version:03d}", [*turns, told(f"question {version}", f"quiet{version % 8}", version, max(0, version - 4))]
            )

    return stepped(run, arrive)


SCENARIOS: dict[str, Callable[[RunDir, argparse.Namespace], dict[str, Any]]] = {
    "identical": identical,
    "varied": varied,
    "backlog": backlog,
    "groups": groups,
    "stream": stream,
}
