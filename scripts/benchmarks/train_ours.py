"""One contestant in a separate process: clawctl's trainer does steps on given turns.   JOB.json on stdin, result on stdout."""

import json
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from clawctl.config import Recipe
from clawctl.train.measures import Measures
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.batches import make_microbatch, share_out
from clawctl.trainers.local.costs import Cost, cost_of
from clawctl.trainers.local.layers import KNOWN
from clawctl.trainers.local.objective import objective_of
from clawctl.trainers.local.ranks import Ranks, layers_of
from clawctl.trainers.local.scores import turn_branches
from clawctl.trainers.local.step import add_gradients, train_step
from clawctl.trainers.local.trainer import load_training
from clawctl.trainers.local.training import Training
from clawctl.trainers.local.trees import Trie, build_trie
from scripts.benchmarks.train_trl import grown_bytes, matmul_flops, watch_memory


def make_training(job: dict[str, Any], device: torch.device) -> Training:
    settings = {key: job[key] for key in ("dtype", "merge", "tokens_per_microbatch", "lora") if key in job}
    method = "opd" if "note" in job else "binary"
    recipe = Recipe.model_validate({"model": {"path": job["model"]}, "train": {"method": method, "lr": 1e-6, **settings}})
    return load_training(recipe, Ranks(0, 1, device))


def make_samples(training: Training, turns: list[Any]) -> list[Sample]:
    """Make samples with the policy's own logprobs, as if just sampled, and alternating rewards."""
    plain = [
        Sample(str(i), "a", "", prompt, said, [0.0] * len(said), 1.0, 0, 1.0 if i % 2 else -1.0, None)
        for i, (prompt, said) in enumerate(turns)
    ]
    branches, policy = turn_branches(plain), training.policy
    logprobs: dict[int, list[float]] = {}
    for group in share_out(branches, policy.merge, 8192).groups:
        batch = make_microbatch([branches[index] for index in group], policy.merge, policy.device)
        with torch.no_grad():
            pieces = policy.logprobs(batch).split(batch.lengths)
        logprobs.update({index: piece.tolist() for index, piece in zip(group, pieces, strict=True)})
    return [
        Sample(s.turn_id, "a", "", s.prompt_ids, s.completion_ids, logprobs[i], 1.0, 0, s.reward, None) for i, s in enumerate(plain)
    ]


def useful_flops(training: Training, samples: list[Sample]) -> float:
    """Operations of a step if shared tokens count once: the minimum for any trainer."""
    cost = cost_of(training.policy.causal)
    tree = build_trie(turn_branches(samples))
    scored = sum(len(sample.completion_ids) for sample in samples)
    return cost.forward_backward(len(tree.ids_T), int((tree.positions_T + 1).sum()), scored)


def operations_ratio(training: Training, samples: list[Sample]) -> float:
    """Matrix operations of a step with one sequence per turn, divided by those of the tree on the CPU, without padding."""
    cost = cost_of(training.policy.causal)
    branches = turn_branches(samples)
    lengths = [(len(branch.ids), len(branch.ids) - branch.scored) for branch in branches]
    alone = sum(cost.forward_backward(tokens, tokens * (tokens + 1) // 2, scored) for tokens, scored in lengths)
    return alone / (useful_flops(training, samples) - last_layer_flops(training, cost, build_trie(branches)))


def last_layer_flops(training: Training, cost: Cost, tree: Trie) -> float:
    """Operations that a tree's last layer skips: attention of unscored tokens, and their MLP if the layer type is known.

    All weights are trained.
    """
    layers = layers_of(training.policy.causal)
    last: Any = layers[-1]
    mlp = [m.weight.numel() for m in last.mlp.modules() if isinstance(m, torch.nn.Linear)] if type(last).__name__ in KNOWN else []
    rest = np.ones(len(tree.ids_T), dtype=bool)
    rest[np.concatenate(tree.before_scored)] = False
    layer = Cost(0, sum(mlp), 0, False, cost.attention // len(layers))
    return layer.forward_backward(int(rest.sum()), int((tree.positions_T[rest] + 1).sum()), 0)


def run_job(job: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Measure the seconds of each step after the first, and the growth of memory above the loaded model."""
    peak = matmul_flops(job["dtype"], device)
    training = make_training(job, device)
    samples = make_samples(training, job["turns"])
    if "note" in job:  # ids that no prompt has, in front of the last message
        note = list(range(3, 3 + job["note"]))
        samples = [replace(s, reward=None, teacher_prompt_ids=[*s.prompt_ids[:-100], *note, *s.prompt_ids[-100:]]) for s in samples]
    seconds: list[float] = []
    row: dict[str, Any] = {}
    before = watch_memory(device)
    for step in range(1, job["repeats"] + 2):
        begin = time.perf_counter()
        outcome = train_step(training, Batch(step, samples))
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        assert outcome.row is not None, outcome.problem
        row = outcome.row
    return {
        "seconds": seconds[1:],
        "grown_bytes": grown_bytes(before, device),
        "matmul_flops": peak,
        "flops": useful_flops(training, samples),
        "operations_ratio": operations_ratio(training, samples),
        "saving": row["tree_saving"],
        "tokens": row["computed_tokens"],
    }


def relative_error(job: dict[str, Any], device: torch.device) -> dict[str, float]:
    """How far the gradient of the tree is from that of one sequence a turn: the norm of the difference, divided by the norm."""
    gradients = []
    for merge in ("none", "tree"):
        training = make_training({**job, "merge": merge}, device)
        batch = Batch(1, make_samples(training, job["turns"]))
        add_gradients(training, objective_of(training.config, batch), Measures())
        gradients.append(torch.cat([weight.grad.flatten() for _, weight in training.policy.trained() if weight.grad is not None]))
    return {"relative_error": float((gradients[1] - gradients[0]).norm() / gradients[0].norm())}


def main() -> None:
    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    device = torch.device(job.get("device", "cpu"))
    print(json.dumps(relative_error(job, device) if "gradients" in job else run_job(job, device)))


if __name__ == "__main__":
    main()
