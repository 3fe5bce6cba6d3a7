"""The model of `scripts/bench scale`: the cost of a turn in each stage, and the turns per second of a number of boxes.

A box is a machine with one GPU. Boxes are divided among engine, judge model and trainer in proportion to the cost of a turn there.
By design, a run has one process each for gateway, collect and the trainer's intake, so more boxes do not make them faster.
"""

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constant:
    value: float
    unit: str
    source: str  # the command that measures it, or its origin


MEASURED: Mapping[str, Constant] = {
    "gateway_us_per_request": Constant(1_000, "µs", "scripts/bench serve --case vllm-cpu"),
    "gateway_us_per_token": Constant(19, "µs", "scripts/bench serve --case null-upstream (streamed, with redaction)"),
    "redaction_us_per_kb": Constant(490, "µs", "scripts/bench redaction"),
    "collect_turns_per_s": Constant(1_861, "turns a core-second", "scripts/bench collect"),
    "pipeline_turns_per_s": Constant(1_838, "turns a second", "scripts/bench chaos --case million"),
    "open_turn_kb": Constant(32, "KB", "scripts/bench collect"),
    "captured_bytes_per_token": Constant(194, "bytes", "scripts/bench collect"),
    "published_bytes_per_token": Constant(28, "bytes", "scripts/bench collect"),
    "judge_us_per_call": Constant(519, "µs", "scripts/bench judge"),
    "judge_calls_per_turn": Constant(2.08, "calls", "clawctl calibrate docs/labelled-turns.jsonl, an earlier model"),
}
ASSUMED: Mapping[str, Constant] = {  # constants of a box, not measured
    "decode_tokens_per_s": Constant(5_000, "tokens a second", "a 4 B model in bfloat16 on a card of 80 GB, 64 streams or more"),
    "prefill_tokens_per_s": Constant(40_000, "tokens a second", "the same card"),
    "trained_tokens_per_s": Constant(16_000, "tokens a second", "6 × 4e9 operations a token at 40 % of 990 TFLOP/s"),
    "disk_bytes_per_s": Constant(1e9, "bytes a second", "a shared filesystem"),
    "box_cost_per_hour": Constant(2.5, "US dollars", "a rented card of 80 GB"),
}
CARD_24GB: Mapping[str, Constant] = {  # assumed for a 4 B model with an adapter on a card of 24 GB, with 165 TFLOP/s and 1 TB/s
    "decode_tokens_per_s": Constant(1_000, "tokens a second", "16 streams; half of what reading 8 GB of weights a pass allows"),
    "prefill_tokens_per_s": Constant(10_000, "tokens a second", "2 × 4e9 operations a token at 48 % of 165 TFLOP/s"),
    "trained_tokens_per_s": Constant(1_700, "tokens a second", "6 × 4e9 operations a token at 25 %, as an H200 was measured"),
    "publish_s": Constant(3, "s", "an adapter of 33 M weights is written, checked and loaded"),
}

CARDS = ("engine", "judge model", "trainer")  # the stages that boxes are divided among


@dataclass(frozen=True, slots=True)
class Workload:
    """An active conversation."""

    seconds_between_turns: float = 60.0
    new_prompt_tokens: int = 300  # the rest of the prompt is in the engine's cache
    context_tokens: int = 2_000
    sampled_tokens: int = 200
    judge_prompt_tokens: int = 1_500
    judge_sampled_tokens: int = 20


@dataclass(frozen=True, slots=True)
class StageCost:
    stage: str
    seconds: float  # time of one server for one turn
    servers: int


def stages(boxes: int, work: Workload = Workload()) -> list[StageCost]:
    """Return the stages of one run on `boxes` boxes."""
    m = {name: constant.value for name, constant in (*MEASURED.items(), *ASSUMED.items())}
    new_kb = (work.new_prompt_tokens + work.sampled_tokens) * 4 / 1000
    gateway = m["gateway_us_per_request"] + m["gateway_us_per_token"] * work.sampled_tokens + m["redaction_us_per_kb"] * new_kb
    calls = m["judge_calls_per_turn"]
    own_calls = m["gateway_us_per_request"] + m["gateway_us_per_token"] * work.judge_sampled_tokens  # calls to the run's own server
    engine = work.new_prompt_tokens / m["prefill_tokens_per_s"] + work.sampled_tokens / m["decode_tokens_per_s"]
    judge = calls * (work.judge_prompt_tokens / m["prefill_tokens_per_s"] + work.judge_sampled_tokens / m["decode_tokens_per_s"])
    # The policy reads the whole context: turns of a conversation share it only within one step, which rarely has two of them here.
    # Its teacher has no backward pass, which is two thirds of the work.
    train = (1 + 1 / 3) * work.context_tokens / m["trained_tokens_per_s"]
    stored = (m["captured_bytes_per_token"] * work.context_tokens / 10) + m["published_bytes_per_token"] * work.context_tokens
    collect = work.context_tokens / 2_000 / m["collect_turns_per_s"]
    cards = engine + judge + train
    return [
        StageCost("gateway", (gateway + (calls * own_calls if boxes < 3 else 0)) / 1e6, 1),  # from 3 boxes: another judge.endpoint
        StageCost("engine", engine, 0) if boxes < 3 else StageCost("engine", engine, max(1, round(boxes * engine / cards))),
        StageCost("collect", collect, 1),
        StageCost("judge", calls * m["judge_us_per_call"] / 1e6, 16),
        StageCost("judge model", judge, 0) if boxes < 3 else StageCost("judge model", judge, max(1, round(boxes * judge / cards))),
        StageCost("trainer", train, 0) if boxes < 3 else StageCost("trainer", train, max(1, round(boxes * train / cards))),
        StageCost("intake", 1 / m["pipeline_turns_per_s"], 1),
        StageCost("disk", stored / m["disk_bytes_per_s"], 1),
    ]


def on_one_card(costs: Sequence[StageCost]) -> list[StageCost]:
    """Merge the stages that share a card (0 servers) into one."""
    shared = [cost for cost in costs if not cost.servers]
    rest = [cost for cost in costs if cost.servers]
    return [*rest, StageCost("card", sum(cost.seconds for cost in shared), 1)] if shared else rest


def capacity(costs: Sequence[StageCost]) -> tuple[float, str]:
    """Return the turns per second at which the first stage saturates, and that stage."""
    return min((cost.servers / cost.seconds, cost.stage) for cost in on_one_card(costs))


def runs_needed(costs: Sequence[StageCost]) -> int:
    """Return the number of runs that keep all cards busy. Each run has its own gateway, collect and trainer."""
    cards = min(cost.servers / cost.seconds for cost in costs if cost.stage in CARDS and cost.servers) if costs[1].servers else 0
    single = min(cost.servers / cost.seconds for cost in costs if cost.stage not in CARDS and cost.servers)
    return max(1, math.ceil(cards / single))


def simulate(costs: Sequence[StageCost], turns_per_s: float, turns: int, seed: int) -> dict[str, float]:
    """Simulate random arrivals that pass through the stages in order, each with a queue and exponential service times.

    Returns the mean waiting time of the last tenth of the turns in each stage, in seconds. In an overloaded stage, it grows without
    limit.
    """
    dice, now, arrivals = random.Random(seed), 0.0, []
    for _ in range(turns):
        now += dice.expovariate(turns_per_s)
        arrivals.append(now)
    waits = {}
    for cost in on_one_card(costs):
        free, leaving, waited = [0.0] * cost.servers, [], []
        for arrival in arrivals:
            begins = max(arrival, heapq.heappop(free))
            ends = begins + dice.expovariate(1 / cost.seconds)
            heapq.heappush(free, ends)
            waited.append(begins - arrival)
            leaving.append(ends)
        tail = waited[-max(1, turns // 10) :]
        waits[cost.stage] = sum(tail) / len(tail)
        arrivals = sorted(leaving)
    return waits


def collect_memory_gb(conversations: float, turns_each: int = 10) -> float:
    """Return the resident memory of collect in GB.

    The last turn of each conversation of the last hour (`collect.session_timeout_s`) waits for its next state. With ten turns per
    conversation and one turn per minute, each active conversation accounts for six conversations per hour.
    """
    return conversations * (60 / turns_each) * MEASURED["open_turn_kb"].value / 1e6


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person says once, and how it is practised: recipes/qwen3-4b-lora-24gb.yaml and the defaults of `practice`."""

    turns_per_day: float = 40.0
    complaints: float = 0.15  # share of turns that a person reacts to
    steps: int = 8  # SmolLM2 needed six to eight
    batch_turns: int = 16
    prompt_tokens: int = 2_500  # of a practised request: `practice.history_chars` and its system prompt
    answer_tokens: int = 64
    idle_s: float = 60.0
    measured_answers: int = 48  # after every second step, with and without the note


def practice_minutes(wish: Wish) -> float:
    """Minutes from being told to a policy that needs no reminder, if nobody asks anything meanwhile."""
    m = {name: constant.value for name, constant in CARD_24GB.items()}
    tokens = wish.batch_turns * (wish.prompt_tokens + wish.answer_tokens)
    sampled = wish.batch_turns * (wish.prompt_tokens / m["prefill_tokens_per_s"] + wish.answer_tokens / m["decode_tokens_per_s"])
    trained = (1 + 1 / 3) * tokens / m["trained_tokens_per_s"]  # the teacher has no backward pass
    measured = wish.measured_answers * wish.answer_tokens / m["decode_tokens_per_s"] / 2
    return (wish.idle_s + wish.steps * (sampled + trained + m["publish_s"] + measured)) / 60


def reaction_days(wish: Wish, share: float = 1.0) -> float:
    """Days until as many steps were made from live turns alone, of which this share says what is wanted."""
    return wish.steps * wish.batch_turns / (wish.turns_per_day * share)
