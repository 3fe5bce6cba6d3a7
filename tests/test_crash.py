"""SIGKILL any worker in the middle of its work: no acknowledged turn is lost, none is trained twice."""

import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

import httpx
import pytest

from clawctl.config import load_recipe
from clawctl.endpoint import own_endpoint
from clawctl.homework.people import Person
from clawctl.homework.problems import make_tasks
from clawctl.policies import list_versions
from clawctl.run_dir import RunDir
from tests.circle import captured, circle, demo_recipe, ledger_of, stage, turns_of, verdicts_of, wait_for

KILLED = ("collect", "judge", "train", "serve", "collect", "train")


class Talker(threading.Thread):
    """One person with a session after another, who remembers the id of every answer that arrived whole."""

    def __init__(self, run: RunDir, recipe: Path, seed: int, stop: threading.Event) -> None:
        super().__init__()
        self.run_dir, self.recipe, self.seed, self.stopped = run, load_recipe(recipe), seed, stop
        self.answered: list[str] = []

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            number += 1
            try:
                self.one_session(100 * self.seed + number)
            except httpx.HTTPError:
                time.sleep(0.2)  # the server was killed: its unfinished answers are nobody's, its finished ones must be kept

    def one_session(self, seed: int) -> None:
        person = Person("student", seed=seed)
        task = make_tasks("student", 1, seed)[0]
        messages = [{"role": "user", "content": person.open(task)}]
        for turn in range(3):
            endpoint = own_endpoint(self.run_dir, self.recipe)
            headers = {"Authorization": f"Bearer {endpoint.api_key}"}
            body = {"model": endpoint.model, "messages": messages, "max_tokens": 64}
            answer = httpx.post(f"{endpoint.url}/chat/completions", json=body, headers=headers, timeout=30)
            answer.raise_for_status()
            found = answer.json()
            self.answered.append(found["id"].removeprefix("chatcmpl"))
            reply = found["choices"][0]["message"]["content"]
            reaction = person.react(task, reply, turn)
            if reaction.text is None:
                return
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": reaction.text}]


@pytest.mark.timeout(240)
def test_workers_killed_mid_work_lose_no_turn_and_train_none_twice(tmp_path: Path) -> None:
    changes = {
        "train": {"batch_turns": 6, "max_steps": None},
        "collect": {"session_timeout_s": 3.0},
        "up": {"stages": ["serve", "collect", "judge", "train"], "backoff_s": 0.1},
        "gate": None,
    }
    recipe, rng, stop = demo_recipe(tmp_path, **changes), Random(0), threading.Event()
    with circle(tmp_path, recipe) as (run, family):
        talkers = [Talker(run, recipe, seed, stop) for seed in range(6)]
        for talker in talkers:
            talker.start()
        try:
            for name in KILLED:
                before = max(list_versions(run))
                victim = wait_for(lambda name=name: stage(family, name), 60, f"{name} runs", tmp_path)
                time.sleep(rng.uniform(0.2, 1.5))
                victim.kill()
                wait_for(lambda before=before: max(list_versions(run)) > before, 60, "another version after the kill", tmp_path)
        finally:
            stop.set()
            for talker in talkers:
                talker.join()
        answered = [exchange for talker in talkers for exchange in talker.answered]
        everything = set(captured(run))
        wait_for(lambda: {turn.turn_id for turn in turns_of(run)} >= everything, 60, "every exchange is a turn", tmp_path)
        wait_for(lambda: len(verdicts_of(run)) == len(turns_of(run)), 60, "every turn has a verdict", tmp_path)
    assert len(answered) > 20
    assert set(answered) <= everything
    assert set(Counter(turn.turn_id for turn in turns_of(run)).values()) == {1}
    assert set(Counter(verdict.turn_id for verdict in verdicts_of(run)).values()) == {1}
    assert set(Counter(ledger_of(run)).values()) == {1}
    assert list(run.quarantine.iterdir()) == []
