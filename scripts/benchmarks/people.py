"""What a policy for each person costs, beside one policy for all: throughput, a cold adapter, disk, leaks, and training.

    scripts/bench people                    SmolLM2, 8 people who ask at the same time
    scripts/bench people --people 16
    scripts/bench people --case facts       also: serve, train (`people_training`), wishes (`people_wishes`, an hour)
    scripts/bench people --case toy-wishes  eight people and three seeds (`people_toy`): minutes
    scripts/bench people --quick            a tiny model

`serve`: each person has an adapter of random weights in the embedded engine. `throughput_ratio_one_adapter` divides the tokens per
second of answers by everybody's own adapter by those of as many answers by one adapter. `others_change_max` is the largest change
of the others' logprobs of given ids after one person's policy got a new version.

`facts`: each person's adapter was trained to answer one question, the same for all, with a code of its own. All ask at the same
time, so their rows share the passes of the engine. `leaked_facts` counts the answers that contain the code of another person.
"""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import orjson

from clawctl.config import Recipe
from clawctl.run.directory import RunDir, open_run
from clawctl.run.keys import add_key
from clawctl.run.policies import begin_policy, ensure_base_policy, move_live, publish_policy
from clawctl.run.rows import Policy
from scripts.benchmarks import people_toy, people_training, people_wishes, streams
from scripts.benchmarks.box import family, memory_mb
from scripts.benchmarks.table import Row, make_parser, names_among, report

CASES = ("serve", "facts", "train", "wishes", "toy-wishes")
_TOKENS, _ROUNDS = 48, 3  # of an answer, and of a comparison
_CHAT = "/v1/chat/completions"
_QUESTION, _LOSS, _STEPS = "What is the code of the cellar?", 0.02, 60


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--people", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=16, help="most steps of practice for a wish")
    parser.add_argument("--updates", type=int, default=8, help="steps of each policy in the case toy-wishes")
    parser.add_argument("--first-seed", type=int, default=10, help="of the three seeds of the case toy-wishes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="of the case serve")
    parser.add_argument("--case", type=names_among(CASES), default="serve,facts,train", help="cases to run")
    options = parser.parse_args()
    cases, model, rows = options.case, "crafts" if options.quick else "smollm2", list[Row]()
    if "serve" in cases:
        with tempfile.TemporaryDirectory(prefix="clawctl-people-") as folder:
            rows += measure(Path(folder), model, options.people, options.rank, options.rounds)
    if "facts" in cases:
        with tempfile.TemporaryDirectory(prefix="clawctl-people-") as folder:
            rows += measure_facts(Path(folder), model, options.people, options.rank)
    if "train" in cases:
        for trained in dict.fromkeys(("crafts", model)):
            rows += people_training.measure(trained, options.people, options.rank)
    if "wishes" in cases:
        with tempfile.TemporaryDirectory(prefix="clawctl-people-") as folder:
            rows += people_wishes.measure(Path(folder), options.people, options.steps)
    if "toy-wishes" in cases:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        with tempfile.TemporaryDirectory(prefix="clawctl-people-") as folder:
            rows += people_toy.measure(Path(folder), options.people, options.updates, seeds)
    report("people", rows, options.json)


def settings_of(model: str, people: int, rank: int) -> dict[str, Any]:
    return {
        "model": {"path": model, "name": "policy"},
        "serve": {"port": 0, "api_key": streams.KEY, "max_tokens": _TOKENS, "limits": {"concurrent_per_key": people}},
        "policies": {"per": "key", "loaded": people},
        "train": {"lora": {"rank": rank}},
    }


def make_people(run: RunDir, recipe: Recipe, people: int, weights: Any) -> dict[str, str]:
    """The keys of people who each have a policy with one of the adapters, after the shared one."""
    ensure_base_policy(run, recipe.model.path)
    publish(run, 1, recipe, next(weights))
    move_live(run, 1)
    names = [f"person{i}" for i in range(people)]
    keys = {name: add_key(run, name, begin_policy(run, name)) for name in names}
    for name in names:
        publish(run.of(name), 1, recipe, next(weights))
        move_live(run.of(name), 1)
    return keys


def measure(folder: Path, model: str, people: int, rank: int, rounds: int = _ROUNDS) -> list[Row]:
    settings = settings_of(model, people, rank)
    recipe, run = Recipe.model_validate(settings), open_run(folder / "run")
    weights = adapters(recipe, people + 2)
    keys = make_people(run, recipe, people, weights)
    names = list(keys)
    size = sum(file.stat().st_size for file in run.of(names[0]).version_folder(1).iterdir())
    with streams.clawctl(folder, settings) as (url, served):
        server = orjson.loads((served / "serve.json").read_bytes())["pid"]
        answer_s(url, streams.KEY)
        before_mb = sum(map(memory_mb, family(server)))
        cold = [answer_s(url, key) for key in keys.values()]
        loaded_mb = sum(map(memory_mb, family(server))) - before_mb
        warm = [answer_s(url, key) for key in keys.values()]
        shared, personal = list[tuple[float, float]](), list[tuple[float, float]]()
        for _ in range(rounds):  # alternately, because the machine changes
            shared.append(tokens_per_s(url, [streams.KEY] * people, server))
            personal.append(tokens_per_s(url, list(keys.values()), server))
        before = [score(url, f"policy@{name}@1") for name in names[1:]]
        publish(run.of(names[0]), 2, recipe, next(weights))
        move_live(run.of(names[0]), 2)
        old, new = (score(url, f"policy@{names[0]}@{version}") for version in (1, 2))
        after = [score(url, f"policy@{name}@1") for name in names[1:]]
    assert difference(old, new) > 0, "the new version changes nothing, so nothing could leak"
    case = f"{people} people"
    (personal_s, personal_cpu), (shared_s, shared_cpu) = map(medians, (personal, shared))
    return [
        Row(case, "throughput_ratio_one_adapter", personal_s / shared_s, "ratio"),
        Row(case, "processor_ratio_one_adapter", personal_cpu / shared_cpu, "ratio"),
        Row(case, "tokens_per_s", personal_s, "tokens/s"),
        Row(case, "tokens_per_processor_s", personal_cpu, "tokens/s"),
        Row(case, "others_change_max", max(map(difference, before, after), default=0.0), "nats"),
        Row(case, "mb_per_person", size / 1e6, "MB"),
        Row(case, "memory_mb_per_person", loaded_mb / people, "MB"),
        Row(case, "cold_first_token_added_ms", 1000 * (statistics.median(cold) - statistics.median(warm)), "ms"),
    ]


def measure_facts(folder: Path, model: str, people: int, rank: int) -> list[Row]:
    settings = settings_of(model, people, rank)
    recipe, run = Recipe.model_validate(settings), open_run(folder / "run")
    codes = [str(code) for code in random.Random(0).sample(range(1000, 10000), people + 1)]  # the shared policy's comes first
    keys = make_people(run, recipe, people, taught(recipe, codes))
    code_of = {streams.KEY: codes[0], **dict(zip(keys.values(), codes[1:], strict=True))}
    with streams.clawctl(folder, settings) as (url, _):

        def answer(key: str) -> str:
            body = {"model": "policy", "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 24, "temperature": 0}
            sent = httpx.post(url + _CHAT, json=body, headers=named(key), timeout=600)
            return str(sent.raise_for_status().json()["choices"][0]["message"]["content"])

        with ThreadPoolExecutor(len(code_of)) as threads:
            answers = [pair for _ in range(_ROUNDS) for pair in zip(code_of.values(), threads.map(answer, code_of), strict=True)]
    leaked = sum(any(code in text for code in codes if code != secret) for secret, text in answers)
    case = f"{people} people facts"
    return [
        Row(case, "leaked_facts", leaked, f"of {len(answers)}"),
        Row(case, "own_facts", sum(secret in text for secret, text in answers) / len(answers), "share"),
    ]


def taught(recipe: Recipe, codes: Sequence[str]) -> Any:
    """Yield models with an adapter that was trained on the answer with one of the codes."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(recipe.model_path)
    messages = [{"role": "user", "content": _QUESTION}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    for module, code in zip(adapters(recipe, len(codes)), codes, strict=True):
        said = [*tokenizer(f"It is {code}.", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        ids, labels = torch.tensor([[*prompt, *said]]), torch.tensor([[-100] * len(prompt) + said])
        optimizer = torch.optim.AdamW([weight for weight in module.parameters() if weight.requires_grad], lr=3e-3)
        for _ in range(_STEPS):
            loss = module(input_ids=ids, labels=labels).loss
            if float(loss.detach()) < _LOSS:
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield module


def adapters(recipe: Recipe, count: int) -> Any:
    """Yield models with adapters of different random weights."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    lora = recipe.train.lora
    assert lora is not None
    config = LoraConfig(r=lora.rank, lora_alpha=int(lora.alpha), target_modules=lora.targets, task_type="CAUSAL_LM")
    module = get_peft_model(AutoModelForCausalLM.from_pretrained(recipe.model_path, dtype=torch.float32), config)
    for seed in range(count):
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, weight in module.named_parameters():
                if "lora_" in name:
                    weight.normal_(0, 0.01)
        yield module


def publish(run: RunDir, version: int, recipe: Recipe, module: Any) -> None:
    policy = Policy(version, version - 1, version, "combine", "adapter", recipe.model.path, [], None, {}, time.time())
    publish_policy(run, policy, lambda folder: module.save_pretrained(folder))


def body(number: int, tokens: int = _TOKENS) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Tell me about the number {number}."}]
    return {"model": "policy", "messages": messages, "max_tokens": tokens}


def tokens_per_s(url: str, keys: list[str], server: int) -> tuple[float, float]:
    """Tokens per second, and per second of the server's processor time, of one answer for each key, all at the same time."""

    def answer(number: int, key: str) -> int:
        sent = httpx.post(url + _CHAT, json=body(number), headers=named(key), timeout=600)
        return int(sent.raise_for_status().json()["usage"]["completion_tokens"])

    began, used = time.perf_counter(), processor_s(server)
    with ThreadPoolExecutor(len(keys)) as threads:
        tokens = sum(threads.map(answer, range(len(keys)), keys))
    return tokens / (time.perf_counter() - began), tokens / (processor_s(server) - used)


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(first for first, _ in pairs), statistics.median(second for _, second in pairs)


def processor_s(server: int) -> float:
    """Of a process and its descendants."""
    times = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] for pid in family(server)]
    return sum(int(ticks) for pair in times for ticks in pair) / os.sysconf("SC_CLK_TCK")


def answer_s(url: str, key: str) -> float:
    """Seconds until an answer of one token."""
    began = time.perf_counter()
    httpx.post(url + _CHAT, json=body(0, 1), headers=named(key), timeout=120).raise_for_status()
    return time.perf_counter() - began


def named(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def score(url: str, model: str) -> list[float]:
    given = {"model": model, "ids": list(range(40, 80))}
    answer = httpx.post(f"{url}/v1/score", content=orjson.dumps(given), headers=named(streams.KEY), timeout=60)
    return list(answer.raise_for_status().json()["logprobs"])


def difference(ours: list[float], theirs: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    main()
