"""Trainers on other machines, against SkyRL's Tinker server on this one.

`step_change_error`: the same turns, the same first adapter, one step by the service and one by the local trainer; the norm of the
difference between the two changes of the adapter, divided by that of the local change. `trained_twice`: the trainer is killed at
each of its calls in turn, before and after the answer, then left to finish; turns in two steps are counted, and the last adapter is
compared with that of an undisturbed run. `satisfaction@8`: the people of `scripts/wishes`, trained by the service.
The part `fireworks` is `backends_fireworks.py`. `processes`: one step by a server whose weights are sharded over two processes,
which find each other as they would on two machines.

The server needs an environment of its own, which `scripts/venv-tinker` makes in `.venv-tinker`. So does Fireworks' SDK:
`scripts/venv-fireworks` and `.venv-fireworks`.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import yaml

from clawctl.config import Recipe, load_recipe
from clawctl.engines.vllm.child import free_port
from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import ensure_base_policy, list_versions
from clawctl.run.rows import Turn, Verdict
from clawctl.run.shards import write_turns, write_verdicts
from clawctl.train.ledger import read_ledger
from scripts.benchmarks.circle import ROOT, WORLD, measure, people, running, write_recipe
from scripts.benchmarks.table import Row, make_parser, report
from scripts.benchmarks.wishes_circle import MODEL

KILLS, QUICK_KILLS = 30, 4
PROCESSES = 2
TURNS = 24  # of the killed run: six steps
LORA = {"rank": 8, "alpha": 32.0}  # what scripts/tinker_server.py has room for
LR = 7.5e-4  # of adapters: ten times that of all weights
_TOPK = 4
_IDS = 50, 1500  # of the model's vocabulary; for other ids SkyRL answers NaN, which its HTTP server then refuses to send
_START_S = 300.0
_FREE_S = 15.0


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-tinker", help="environment of the server (default .venv-tinker)")
    parser.add_argument("--fireworks-venv", type=Path, default=ROOT / ".venv-fireworks", help="that of the SDK")
    parser.add_argument("--only", choices=["step", "kills", "people", "fireworks", "processes"], help="one part of it")
    parser.add_argument("--kills", type=int, help=f"kills (default {KILLS})")
    options = parser.parse_args()
    subprocess.run([str(ROOT / "scripts" / "venv-tinker"), str(options.venv)], check=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as name:
        folder = Path(name)
        model = float32_copy(MODEL, folder / "wishes")
        if options.only in (None, "processes"):
            rows += processes_rows(options.venv, model, folder / "processes")
        if options.only == "processes":
            report("backends", rows, options.json)
            return
        with server(options.venv, model, folder) as url:
            target = Target(url)
            if options.only in (None, "kills"):
                kills = options.kills or (QUICK_KILLS if options.quick else KILLS)
                rows += kill_rows(model, target, folder, [1 + call % 18 for call in range(1, kills + 1)])
            if options.only in (None, "step"):  # after the kills: their forks need a process without the SDK's threads
                rows += step_rows(model, target, folder)
            if options.only in (None, "people"):
                rows += people_rows(model, target, folder, options)
            if options.only in (None, "fireworks"):
                rows += fireworks_rows(model, url, folder, options)
    report("backends", rows, options.json)


# ---- the server ----------------------------------------------------------------------------------------------------------


def float32_copy(source: Path, target: Path) -> Path:
    """The same model with float32 weights: with bfloat16 SkyRL rounds logprobs to 1/16."""
    import orjson
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    weights = {name: value.float() for name, value in load_file(source / "model.safetensors").items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = orjson.loads((target / "config.json").read_bytes())
    (target / "config.json").write_bytes(orjson.dumps({**config, "torch_dtype": "float32", "dtype": "float32"}))
    return target


@contextmanager
def server(venv: Path, model: Path, folder: Path, processes: int = 1) -> Iterator[str]:
    """SkyRL's server for `model`; its address."""
    state, port = folder / "server", free_port()
    state.mkdir()
    command = [
        str(venv / "bin" / "python"),
        str(ROOT / "scripts" / "tinker_server.py"),
        str(model),
        str(state),
        str(port),
        str(processes),
    ]
    url = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start: {(folder / 'server.log').read_text()[-2000:]}")
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v1/get_server_capabilities", timeout=2).is_success
    except httpx.HTTPError:
        return False


@dataclass(frozen=True)
class Target:
    """The service of a benchmark."""

    url: str
    kind: str = "tinker"
    api_key: str = "tml-local"
    base_model: str | None = None

    def backend(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None} | {"loss": "mean"}


def service_recipe(model: Path, target: Target, folder: Path, **train: Any) -> Recipe:
    settings = {"backend": target.backend(), "send_conversations": True, "lora": LORA, "lr": 1e-3, "threads": 1, **train}
    path = folder / "service.yaml"
    path.write_text(yaml.safe_dump({"model": {"path": str(model)}, "train": settings, "gate": None}))
    return load_recipe(path, {})


# ---- one step ------------------------------------------------------------------------------------------------------------


def step_rows(model: Path, target: Target, folder: Path) -> list[Row]:
    methods = ["binary", "opd", "combine", *([] if target.kind == "fireworks" else ["opd_topk", "hybrid"])]
    errors = {method: step_change(model, target, folder, method) for method in methods}
    rows = [Row(target.kind, "step_change_error", max(error for error, _, _ in errors.values()), "relative")]
    for method, (error, ours, _) in errors.items():
        rows.append(Row(f"{target.kind} {method}", "step_change_error", error, "relative"))
        rows.append(Row(f"local {method}, merge none", "step_change_error", ours, "relative"))
    return [*rows, Row(target.kind, "logprob_error", max(error for _, _, error in errors.values()), "nat")]


def step_change(model: Path, target: Target, folder: Path, method: str) -> tuple[float, float, float]:
    """The relative error of a step's change, that of the local trainer with `merge: none`, which rounds in another way, and the
    largest difference between logprobs before the step."""
    from safetensors.torch import load

    from clawctl.extensions.tinker.adapter import WEIGHTS, files_of
    from clawctl.extensions.tinker.sequences import sequence_of
    from clawctl.extensions.tinker.trainer import ServiceTrainer
    from clawctl.train.sample import Batch
    from clawctl.trainers import TRAINERS

    settings = {"topk": _TOPK} if method in ("opd_topk", "hybrid") else {}
    recipe = service_recipe(model, target, folder, method=method, turn_bound=None, clip_grad=1e9, **settings)  # SkyRL does not clip
    lora = recipe.train.lora
    assert lora is not None
    with ExitStack() as stack:
        if recipe.train.method.kind not in ("opd_topk", "hybrid"):
            opened = stack.enter_context(TRAINERS.load(target.kind, "train.backend").open(recipe, lambda: None, None))
        else:
            opened = ServiceTrainer(recipe, _naming_service(recipe))
        assert isinstance(opened, ServiceTrainer)
        service = opened
        service.resume(0, None, None)
        first = folder / f"first-{method}"
        first.mkdir()
        for name, content in files_of(service.client.download("first"), lora, recipe.model_path).items():
            (first / name).write_bytes(content)
        samples = made_samples(method)
        policy = service.client.logprobs([sequence_of(sample) for sample in samples])
        draw = random.Random(1)  # the sampler was another version: ratios are not 1
        stale = [[min(0.0, value + draw.uniform(-0.1, 0.1)) for value in values] for values in policy]
        batch = Batch(1, [replace(s, logprobs=values) for s, values in zip(samples, stale, strict=True)], parent=0)
        ours, change = local_change(recipe, first, batch)
        merge = {"train": recipe.train.changed(merge="none")}
        _, other = local_change(recipe.model_copy(update=merge), first, batch)
        theirs = service.step(batch)
        assert theirs.row is not None, theirs.problem
        after = load(files_of(service.client.download("after"), lora, recipe.model_path)[WEIGHTS])
    before = load((first / WEIGHTS).read_bytes())
    gaps = [abs(ours.turns[name].policy_T - theirs.turns[name].policy_T).max() for name in ours.turns]
    made = {name: after[name] - before[name] for name in before}
    return relative(made, change), relative(other, change), float(max(gaps))


def _naming_service(recipe: Recipe) -> Any:
    """SkyRL's server does not name the likeliest tokens, so they are computed here, with the base model: a new adapter changes
    nothing. All logprobs and gradients are the server's."""
    import torch
    from transformers import AutoModelForCausalLM

    from clawctl.extensions.tinker.sdk import RemoteAdapter, Service

    causal: Any = AutoModelForCausalLM.from_pretrained(recipe.model_path, dtype=torch.float32).eval()

    class Naming(RemoteAdapter):
        @torch.no_grad()
        def likeliest(self, sequences: Sequence[Any], k: int) -> list[list[list[int]]]:
            logits = [causal(input_ids=torch.tensor([sequence.ids])).logits[0, sequence.start - 1 : -1] for sequence in sequences]
            return [row.topk(k).indices.tolist() for row in logits]

    class NamingService(Service):
        def create(self, recipe: Recipe, **more: Any) -> RemoteAdapter:
            return Naming(self, super().create(recipe, **more).training)

    return NamingService(recipe)


def local_change(recipe: Recipe, first: Path, batch: Any) -> tuple[Any, dict[str, Any]]:
    """The result of a step of the local trainer, and the change of each matrix."""
    import torch

    from clawctl.trainers.local.ranks import Ranks
    from clawctl.trainers.local.trainer import LocalTrainer

    local = LocalTrainer(recipe, Ranks(0, 1, torch.device("cpu")))
    local.resume(0, None, first)
    before = {name: value.detach().clone() for name, value in local.training.policy.trained()}
    result = local.step(batch)
    assert result.row is not None, result.problem
    return result, {n.replace(".default", ""): v.detach() - before[n] for n, v in local.training.policy.trained()}


def relative(actual: dict[str, Any], wanted: dict[str, Any]) -> float:
    """The norm of the difference over that of `wanted`."""
    error = sum(float((actual[name] - wanted[name]).square().sum()) for name in wanted)
    return float((error / sum(float(value.square().sum()) for value in wanted.values())) ** 0.5)


def made_samples(method: str) -> list[Any]:
    """Turns of random tokens, with rewards and hints as the method needs them."""
    from clawctl.train.sample import Sample

    draw = random.Random(0)

    def some(count: int) -> list[int]:
        return [draw.randrange(*_IDS) for _ in range(count)]

    samples = []
    for number in range(8):
        completion = some(6 + number)
        taught = method.startswith("opd")
        reward = None if taught else (1.0, -1.0)[number % 2]
        hinted = some(20) if method != "binary" and (taught or number % 3) else None
        samples.append(
            Sample(f"t{number}", "s", "k", some(10 + number), completion, [0.0] * len(completion), 1.0, 0, reward, hinted)
        )
    return samples


def processes_rows(venv: Path, model: Path, folder: Path) -> list[Row]:
    folder.mkdir()
    with server(venv, model, folder, PROCESSES) as url:
        began = time.monotonic()
        error, _, gap = step_change(model, Target(url), folder, "combine")
        seconds = time.monotonic() - began
    case = f"tinker, {PROCESSES} processes"
    return [
        Row(case, "step_change_error", error, "relative"),
        Row(case, "logprob_error", gap, "nat"),
        Row(case, "first_step_s", seconds, "s"),
    ]


# ---- kills ---------------------------------------------------------------------------------------------------------------


def kill_rows(model: Path, target: Target, folder: Path, kills: Sequence[int]) -> list[Row]:
    """`kills`: at which border of a call each trainer ends itself."""
    import torch

    import_module("tinker" if target.kind == "tinker" else "fireworks.training.sdk")  # once, not in each child
    import_module("clawctl.extensions.tinker.trainer")
    import_module("transformers")
    torch.set_num_threads(1)
    recipe = service_recipe(model, target, folder, method="binary", batch_turns=4, batch_min_turns=4, keep_checkpoints=2)
    turns = made_turns(model, TURNS)
    whole, killed = (open_run(folder / name) for name in ("whole", "killed"))
    for run in (whole, killed):
        write_turns(run.trajectories / "a.parquet", turns)
        write_verdicts(run.verdicts / "a.parquet", [_verdict(turn, number) for number, turn in enumerate(turns)])
        ensure_base_policy(run, recipe.model.path)
    train_in_a_child(whole, recipe, None)
    done = 0
    for kill_at in kills:
        done += train_in_a_child(killed, recipe, kill_at)
    train_in_a_child(killed, recipe, None)
    twice = trained_twice(killed)
    last = list_versions(killed)[-1]
    return [
        Row(target.kind, "trained_twice", twice, "turns"),
        Row(target.kind, "kills", done, "count"),
        Row(target.kind, "untrained_after_kills", TURNS - len(read_ledger(killed)), "turns"),
        Row(target.kind, "weights_after_kills_error", adapters_differ(whole, killed, last), "relative"),
    ]


def train_in_a_child(run: RunDir, recipe: Recipe, kill_at: int | None, tries: int = 6) -> bool:
    """Train until no batch is full, in a process that kills itself at its `kill_at`-th border of a call. True if it did."""
    child = os.fork()
    if child == 0:
        try:
            _train(run, recipe, kill_at)
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  # a child must not go on as its parent
            print(f"training ended: {error!r}", flush=True)
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        if tries == 0:
            raise SystemExit("the trainer failed without being killed")
        time.sleep(_FREE_S)  # a killed trainer's model is there until its session ends, and the server has room for few
        return train_in_a_child(run, recipe, kill_at, tries - 1)
    return os.WIFSIGNALED(status)


def _train(run: RunDir, recipe: Recipe, kill_at: int | None) -> None:
    from clawctl.extensions.tinker.fireworks import FireworksService
    from clawctl.extensions.tinker.sdk import Service
    from clawctl.extensions.tinker.trainer import ServiceTrainer
    from clawctl.train.loop import run_training

    kind: type[Service] = FireworksService if recipe.train.backend.kind == "fireworks" else Service
    passed = 0

    class Mortal(kind):  # type: ignore[misc, valid-type]
        @contextmanager
        def calls(self, what: str) -> Iterator[None]:
            border()
            with super().calls(what):
                yield
            border()

    def border() -> None:
        nonlocal passed
        passed += 1
        if passed == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    run_training(run, recipe, ServiceTrainer(recipe, Mortal(recipe)), threading.Event(), once=True)


def made_turns(model: Path, count: int) -> list[Turn]:
    """Turns of random tokens with the logprobs that the model gives them, as version 0 sampled them."""
    import torch
    from transformers import AutoModelForCausalLM

    causal: Any = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32).eval()
    draw, turns = random.Random(2), []
    for number in range(count):
        ids = [draw.randrange(*_IDS) for _ in range(24)]
        with torch.no_grad():
            logprobs = causal(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        sampled = logprobs.gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1).tolist()
        turns.append(
            Turn(
                turn_id=f"t{number:02d}",
                session_id=f"s{number}",
                parent_turn_id=None,
                turn_index=0,
                kind="main",
                source="serve",
                task_id="homework-1",
                group_id=None,
                user="default",
                created_at=time.time(),
                messages=[{"role": "user", "content": f"question {number}"}],
                tools=None,
                response={"role": "assistant", "content": f"answer {number}"},
                next_state=[{"role": "user", "content": "no"}],
                prompt_ids=ids[:12],
                completion_ids=ids[12:],
                logprobs=sampled[11:],
                policy_version=0,
                policy_version_end=0,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                finish_reason="stop",
                outcome_reward=None,
                feedback=None,
                trainable=True,
                untrainable_reason=None,
            )
        )
    return turns


def _verdict(turn: Turn, index: int) -> Verdict:
    reward = 1.0 if index % 2 else -1.0
    return Verdict(turn.turn_id, reward, [int(reward)], None, [], "made@0 prompt 1", None, 0.1)


def trained_twice(run: RunDir) -> int:
    """Turns that more than one published version names."""
    from collections import Counter

    from clawctl.run.policies import read_policy

    named = Counter(turn for version in list_versions(run) if version for turn in read_policy(run, version).turns)
    return sum(count > 1 for count in named.values())


def adapters_differ(left: RunDir, right: RunDir, version: int) -> float:
    """The norm of the difference of a version's adapters in two runs, over that of the first."""
    from safetensors.torch import load_file

    a, b = (load_file(run.version_folder(version) / "adapter_model.safetensors") for run in (left, right))
    return float((sum((a[n] - b[n]).square().sum() for n in a) / sum(value.square().sum() for value in a.values())) ** 0.5)


# ---- Fireworks -----------------------------------------------------------------------------------------------------------


def fireworks_rows(model: Path, url: str, folder: Path, options: argparse.Namespace) -> list[Row]:
    """The rows of `backends_fireworks.py`, which runs in the environment of the SDK."""
    subprocess.run([str(ROOT / "scripts" / "venv-fireworks"), str(options.fireworks_venv)], check=True)
    rows, python = folder / "fireworks.json", options.fireworks_venv / "bin" / "python"
    command = [str(python), "-m", "scripts.benchmarks.backends_fireworks", str(model), url, "--json", str(rows)]
    kills = [] if options.kills is None else ["--kills", str(options.kills)]
    subprocess.run([*command, *kills], check=True, cwd=ROOT)
    return [Row(**row) for row in json.loads(rows.read_text())["rows"]]


# ---- people --------------------------------------------------------------------------------------------------------------


def people_rows(model: Path, target: Target, folder: Path, options: argparse.Namespace) -> list[Row]:
    backend = target.backend() | {"price": {"prefill": 0.07, "train": 0.22}}
    train = {"backend": backend, "send_conversations": True, "lora": LORA, "lr": LR, "max_steps": 8}
    train |= {"batch_turns": 4, "batch_wait_s": 3, "batch_min_turns": 1} if options.quick else {}
    changes = {
        "model": {"path": str(model)},
        "train": train,
        "eval": {"suites": [WORLD], "seed": 10, "problems": 12 if options.quick else 36},
        "up": {"stages": ["serve", "collect", "judge", "train"]},
        "gate": None,
    }
    run_folder = folder / "people"
    run_folder.mkdir()
    recipe, run = write_recipe(run_folder, changes), run_folder / "run"
    with running(run, recipe):
        people(run, 10, 10, until_version=8, timeout_s=3600, think_s=0.3)
        measured = {version: measure(run, recipe, version)["suites"][WORLD] for version in (0, 8)}
    rows = [
        Row("tinker", f"satisfaction@{version}", numbers["satisfaction"]["mean"], "share") for version, numbers in measured.items()
    ]
    return [*rows, Row("tinker", "correctness@8", measured[8]["correctness"]["mean"], "share")]


if __name__ == "__main__":
    main()
