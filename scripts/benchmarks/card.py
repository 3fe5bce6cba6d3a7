"""What decides the first evening on a card, as far as it can be measured without one.

`plan`: the share of the recipes that fit the card in their name, and the largest difference between the plan of memory and an
independent sum over the tensors that serving and training keep: base in bfloat16, float32 or 4 bits, adapter, gradients, and
AdamW's moments. Activations and sharded training are not compared.
`one_gpu`: whether a trainer on one GPU starts in a job of Slurm and in an actor of Ray; both run without their cluster.
`canary`: versions over a base in simulated 4 bits on a small model. A whole one must pass the engine's check, and a broken one
must not. `tinker`: seconds until a dead service ends a call with a message, with and without its address in the recipe.
`memory`: the tests of a step that runs out of memory, by a hook that fails on purpose.
`devices`: a step of each method with all weights, an adapter, and an adapter over a quantised base, on a device that pretends to
be a card and takes no tensor of the CPU. It must be the CPU's step.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from socket import create_server
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from clawctl.architectures import skeleton
from clawctl.config import Recipe, load_recipe
from clawctl.engines.embedded.weights import load_weights
from clawctl.errors import ClawError
from clawctl.extensions.tinker.sdk import Service
from clawctl.launch.plan import gpus_of, plan_memory
from clawctl.memory import box_of
from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import ensure_base_policy, publish_policy
from clawctl.run.rows import Policy
from clawctl.serve.canary import CanaryFailure, check_canary
from clawctl.serve.memory import vllm_options
from clawctl.trainers.local.loading import adapted, load_causal
from clawctl.trainers.local.model import PolicyModel, load_policy
from clawctl.trainers.local.ranks import Ranks
from scripts.benchmarks.table import Row, make_parser, report

ROOT = Path(__file__).parents[2]
VERSIONS, QUICK_VERSIONS = 20, 3
# The levels of nf4 (QLoRA, arXiv 2305.14314, appendix E), and how many weights share a scale.
NF4 = torch.tensor([
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
])  # fmt: skip
BLOCK = 64
KEPT_PARTS = ("weights", "gradients", "optimizer")


def main() -> None:
    parts: dict[str, Callable[[bool], list[Row]]] = {
        "plan": lambda quick: plan_rows(),
        "one_gpu": lambda quick: one_gpu_rows(),
        "canary": lambda quick: canary_rows(QUICK_VERSIONS if quick else VERSIONS),
        "tinker": lambda quick: tinker_rows(),
        "memory": lambda quick: memory_rows(),
        "devices": lambda quick: device_rows(),
    }
    parser = make_parser(__doc__ or "")
    parser.add_argument("--only", choices=parts, help="one part of it")
    options = parser.parse_args()
    chosen = [options.only] if options.only else list(parts)
    report("card", [row for name in chosen for row in parts[name](options.quick)], options.json)


def plan_rows() -> list[Row]:
    paths = [*sorted((ROOT / "recipes").glob("qwen*.yaml")), ROOT / "recipes" / "default.yaml"]
    fitting, differences = 0, []
    for path in paths:
        recipe = load_recipe(path)
        card = "24gb" if path.stem == "default" else path.stem.rpartition("-")[2].rpartition("x")[2]
        plan = plan_memory(recipe, box_of(card, gpus_of(recipe)))
        fitting += not plan.problems
        served = next(share.parts for share in plan.shares if share.stage == "serve" and share.gpu is not None)
        weights = served_bytes(recipe) // (vllm_options(recipe).split if recipe.serve.engine == "vllm" else 1)
        differences.append(abs(served["weights"] / weights - 1))
        if not recipe.train.local.optimizer_offload and len(recipe.train.gpus or [0]) == 1:
            parts = next(share.parts for share in plan.shares if share.stage == "train" and share.gpu is not None)
            planned = sum(parts[name] for name in KEPT_PARTS)
            differences.append(abs(planned / tensor_bytes(recipe) - 1))
    return [
        Row("plan", "recipes_that_fit_their_card", fitting / len(paths), "share"),
        Row("plan", "largest_disagreement", max(differences), "share"),
    ]


def served_bytes(recipe: Recipe) -> int:
    """Bytes of all tensors of the model in the type that the engine computes in."""
    return sum(int(parameter.nbytes) for parameter in skeleton(recipe.model_path).to(torch.bfloat16).parameters())


def tensor_bytes(recipe: Recipe) -> int:
    """Bytes of all tensors that training keeps: the weights, their copy in bfloat16 during a pass, gradients and two moments."""
    lora = recipe.train.lora
    if lora is None:
        made = skeleton(recipe.model_path)  # in float32
        copy = sum(parameter.nbytes for parameter in skeleton(recipe.model_path).to(torch.bfloat16).parameters())
        return int(4 * sum(parameter.nbytes for parameter in made.parameters()) + copy)
    module = adapted(skeleton(recipe.model_path).to(torch.bfloat16), lora, None, 0)
    head, total, counted = module.get_output_embeddings(), 0, set[int]()
    for layer in module.modules():
        for name, parameter in layer.named_parameters(recurse=False):
            if id(parameter) in counted:  # the head may be the embeddings
                continue
            counted.add(id(parameter))
            packed = lora.quantize == "nf4" and isinstance(layer, nn.Linear) and layer is not head and not parameter.requires_grad
            scales = parameter.numel() // BLOCK  # of one byte each, and one of four bytes for 256 of them (QLoRA, section 3)
            total += parameter.numel() // 2 + scales + scales // 64 if packed and name == "weight" else parameter.nbytes
            if parameter.requires_grad:
                total += sum(torch.empty_like(parameter).nbytes for _ in ("gradient", "first moment", "second moment"))
    return total


def one_gpu_rows() -> list[Row]:
    test = "tests/extensions/cluster/test_rendered.py::test_a_trainer_on_one_gpu_starts"
    return [Row("one_gpu", f"{on}_one_gpu_starts", float(passes(f"{test}[{on}]")), "share") for on in ("slurm", "ray")]


def memory_rows() -> list[Row]:
    file = "tests/trainers/local/test_out_of_memory.py"
    whole = passes(f"{file}::test_a_step_that_runs_out_of_memory_is_made_in_smaller_parts")
    alone = passes(f"{file}::test_a_turn_that_does_not_fit_alone_is_refused_with_its_length_and_the_others_are_trained")
    return [
        Row("memory", "steps_lost", 0.0 if whole else None, "steps"),
        Row("memory", "turns_lost", 0.0 if whole and alone else None, "turns"),
        Row("memory", "long_turn_refused_with_reason", float(alone), "share"),
    ]


def device_rows() -> list[Row]:
    said = tested("tests/trainers/local/test_pretended_card.py", "-k", "step_on_a_card").stdout
    passed, failed = (int(count[1]) if (count := re.search(rf"(\d+) {word}", said)) else 0 for word in ("passed", "failed"))
    return [Row("devices", "device_mixups", float(failed) if passed else None, f"of {passed + failed} steps")]


def passes(test: str) -> bool:
    return tested(test).returncode == 0


def tested(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout[-2000:], file=sys.stderr)
    return done


def canary_rows(count: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="clawctl-card-") as folder:
        return versions_rows(open_run(Path(folder) / "run"), count)


def versions_rows(run: RunDir, count: int) -> list[Row]:
    recipe = quantised_recipe()
    ensure_base_policy(run, recipe.model.path)
    refused, caught, before = 0, 0, list[float]()
    for seed in range(count):
        policy = policy_in_4_bits(recipe, seed)
        canary = policy.canary()
        before.append(over_4_bits(policy, canary))
        weights = policy.published()
        publish(run, recipe, 2 * seed + 1, canary, saving(policy, weights))
        refused += is_refused(run, recipe, 2 * seed + 1)
        broken = damaged(weights, seed)
        publish(run, recipe, 2 * seed + 2, canary, saving(policy, broken))
        caught += is_refused(run, recipe, 2 * seed + 2)
    return [
        Row("canary", "canary_nf4_false_refusals", float(refused), f"of {count}"),
        Row("canary", "broken_version_caught", float(caught), f"of {count}"),
        Row("canary", "largest_difference_over_4_bits", max(before), "nats"),
    ]


def saving(policy: PolicyModel, weights: dict[str, torch.Tensor]) -> Callable[[Path], None]:
    return lambda target: policy.save(target, weights)


def quantised_recipe() -> Recipe:
    train = {"lora": {"rank": 8, "alpha": 16}, "dtype": "bfloat16", "threads": 1}
    return Recipe.model_validate({"model": {"path": "crafts", "dtype": "bfloat16"}, "train": train})


def policy_in_4_bits(recipe: Recipe, seed: int) -> PolicyModel:
    """A policy with an adapter that has learned something, and a base whose linear layers are rounded to nf4."""
    assert recipe.train.lora is not None
    policy = load_policy(recipe, Ranks(0, 1, torch.device("cpu")))
    plain = load_causal(recipe.model_path, torch.device("cpu"), torch.bfloat16)
    policy.unquantised = adapted(plain, recipe.train.lora, None, recipe.train.seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for _, weight in policy.trained():
            weight.normal_(0, 0.05)
        for name, module in policy.causal.named_modules():
            if isinstance(module, nn.Linear) and "lora_" not in name and module is not policy.causal.get_output_embeddings():
                module.weight.copy_(in_4_bits(module.weight))
    return policy


def in_4_bits(weight: torch.Tensor) -> torch.Tensor:
    """The weights after rounding to nf4, block by block."""
    blocks = nn.functional.pad(weight.float().flatten(), (0, -weight.numel() % BLOCK)).unflatten(0, (-1, BLOCK))
    scales = blocks.abs().amax(1, keepdim=True).clamp_min(1e-12)
    nearest = ((blocks / scales).unsqueeze(-1) - NF4).abs().argmin(-1)
    rounded: torch.Tensor = (NF4[nearest] * scales).flatten()[: weight.numel()].view_as(weight).to(weight.dtype)
    return rounded


def over_4_bits(policy: PolicyModel, canary: dict[str, Any]) -> float:
    """How far the canary would be off if it were scored over 4 bits."""
    kept, policy.unquantised = policy.unquantised, None
    rounded = policy.canary()
    policy.unquantised = kept
    pairs = zip(chain(*canary["logprobs"]), chain(*rounded["logprobs"]), strict=True)
    return float(max(abs(ours - theirs) for ours, theirs in pairs if ours is not None))


def damaged(weights: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """The adapter after one of four accidents: a sign, a scale, layers that changed places, or a part that is missing."""
    up = [name for name in weights if ".lora_B." in name]
    changed = dict(weights)
    match seed % 4:
        case 0:
            changed |= {name: -weights[name] for name in up}
        case 1:
            changed |= {name: 4 * weights[name] for name in up}
        case 2:
            places = [name for name in up if "q_proj" in name]
            changed |= dict(zip(places, (weights[name] for name in (*places[1:], places[0])), strict=True))
            down = [name for name in up if "down_proj" in name]
            changed |= dict(zip(down, (weights[name] for name in (*down[1:], down[0])), strict=True))
        case _:
            changed |= {name: torch.zeros_like(weights[name]) for name in up[: len(up) // 2]}
    return changed


def publish(run: RunDir, recipe: Recipe, version: int, canary: dict[str, Any], write: Callable[[Path], None]) -> None:
    row = Policy(version, 0, version, "combine", "adapter", recipe.model.path, [], canary, {}, time.time())
    publish_policy(run, row, write)


def is_refused(run: RunDir, recipe: Recipe, version: int) -> bool:
    loaded = load_weights(run, recipe, version)
    try:
        check_canary(run, version, loaded.score, loaded.tolerance)
    except CanaryFailure as failure:
        print(f"version {version}: {failure}")
        return True
    return False


class SilentSdk(Service):
    """A service by an SDK that waits for its answer without an end."""

    def load_sdk(self) -> tuple[Any, tuple[type[Exception], ...]]:
        return SimpleNamespace(ServiceClient=lambda **_: threading.Event().wait()), ()


def tinker_rows() -> list[Row]:
    """With the address in the recipe, and without: then it is the SDK's own."""
    with create_server(("127.0.0.1", 0)) as silent:  # it accepts connections and answers none
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        os.environ["TINKER_BASE_URL"] = url
        return [Row(case, "tinker_dead_service_seconds_to_message", seconds_to_message(backend), "s") for case, backend in (
            ("tinker", {"kind": "tinker", "url": url}), ("tinker without url", {"kind": "tinker"}),
        )]  # fmt: skip


def seconds_to_message(backend: dict[str, str]) -> float:
    began = time.monotonic()
    try:
        SilentSdk(Recipe.model_validate({"model": {"path": "crafts"}, "train": {"backend": backend, "lora": {"rank": 2}}}))
    except ClawError as error:
        print(error)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
