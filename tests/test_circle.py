"""The whole circle: real model, real HTTP, real processes."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from clawctl.run.directory import RunDir
from clawctl.run.policies import list_versions, live_version, read_policy
from scripts.benchmarks.circle import WORLD, write_recipe
from scripts.benchmarks.wishes_circle import MODEL
from tests import forked
from tests.circle import captured, circle, ledger_of, turns_of, verdicts_of, wait_for

STEPS = 2


def talk(run: RunDir, *options: str) -> dict[str, object]:
    command = [sys.executable, "-m", "scripts.wishes.chat", "--run", str(run.root), "--people", "8", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def inspect(run: RunDir, what: str) -> object:
    return json.loads(forked.run("inspect", what, "--run", run.root, "--json").stdout)


def test_a_complaint_goes_all_the_way_round_and_every_number_of_it_is_exact(tmp_path: Path) -> None:
    changes = {
        "train": {"batch_turns": 8, "batch_wait_s": 600, "max_steps": STEPS},  # a slow machine trains no part of a batch
        "eval": {"suites": [WORLD], "problems": 8},
        "gate": [{"suite": WORLD, "metric": "correctness", "max_drop": 1.0}],
        "collect": {"session_timeout_s": 20.0},
    }
    with circle(tmp_path, write_recipe(tmp_path, changes)) as (run, family):
        summary = talk(run, "--stop-at-version", str(STEPS))
        assert summary["refused"] == 0
        talk(run, "--sessions", "8")  # a request is answered by the trained version
        wait_for(lambda: (run.eval / f"{STEPS}.json").exists(), "the last version is measured", tmp_path)
        wait_for(lambda: stitched(run), "a session without headers ends by its timeout and is stitched", tmp_path)
        assert isinstance(family, psutil.Process)
    check_rows(run)
    check_training(run)
    check_logprobs(run)
    assert all(inspect(run, what) for what in ("sessions", "turns", "policies", "health"))


def stitched(run: RunDir) -> bool:
    """Some trainable turn of a client that sends no session header follows another turn."""
    exchanges = captured(run)
    turns = [turn for turn in turns_of(run) if exchanges[turn.turn_id]["hints"].get("session_id") is None]
    return any(turn.trainable and turn.parent_turn_id for turn in turns)


def check_rows(run: RunDir) -> None:
    """A published turn equals its capture, to the token; every published and judged turn has a verdict."""
    exchanges, turns = captured(run), turns_of(run)
    assert turns
    assert len({turn.turn_id for turn in turns}) == len(turns)
    for turn in turns:
        exchange = exchanges[turn.turn_id]
        assert (turn.prompt_ids, turn.completion_ids) == (exchange["prompt_ids"], exchange["completion_ids"])
        assert turn.logprobs == pytest.approx(exchange["logprobs"], rel=1e-6)
    judged = {verdict.turn_id: verdict for verdict in verdicts_of(run)}
    assert set(judged) <= {turn.turn_id for turn in turns}
    assert {verdict.reward for verdict in judged.values()} >= {1.0, -1.0}
    assert any(verdict.hint for verdict in judged.values())
    assert any(exchange["policy_version"] == STEPS for exchange in exchanges.values())


def check_training(run: RunDir) -> None:
    """Each trained turn was trained once, had a verdict worth training, and stands in its policy; LIVE is what the gate let in."""
    trained = ledger_of(run)
    assert len(trained) == len(set(trained)) == 8 * STEPS
    usable = {verdict.turn_id for verdict in verdicts_of(run) if verdict.reward in (1.0, -1.0) or verdict.hint}
    assert set(trained) <= usable
    assert list_versions(run) == [0, *range(1, STEPS + 1)]
    assert [turn for version in range(1, STEPS + 1) for turn in read_policy(run, version).turns] == trained
    assert live_version(run) == STEPS
    decided = json.loads((run.eval / f"{STEPS}.json").read_bytes())
    assert decided["decision"]["promote"] is True
    assert decided["suites"][WORLD]["correctness"]["n"] == 8


def check_logprobs(run: RunDir) -> None:
    """What the engine wrote down is what the weights of the claimed version say, and it was sampled at the temperature it names."""
    for version in range(STEPS + 1):
        folder = MODEL if version == 0 else run.version_folder(version)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        mine = [turn for turn in turns_of(run) if turn.policy_version == turn.policy_version_end == version and turn.trainable][:4]
        for turn in mine:
            ids = torch.tensor([[*(turn.prompt_ids or []), *(turn.completion_ids or [])]])
            with torch.no_grad():
                logits = model(ids).logits[0, len(turn.prompt_ids or []) - 1 : -1] / turn.temperature
            expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(turn.completion_ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(turn.logprobs), expected, atol=1e-3, rtol=0)
