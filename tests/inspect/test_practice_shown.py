"""Turns of practice, as `inspect` and the page show them."""

import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.testclient import TestClient

from clawctl.inspect.better import show_better
from clawctl.inspect.health import read_health
from clawctl.inspect.web.followed_run import FollowedRun
from clawctl.inspect.web.guard import Key
from clawctl.inspect.web.pages import Pages
from clawctl.inspect.why import show_why
from clawctl.run.directory import RunDir, open_run
from clawctl.run.notes import add_note, change_note
from clawctl.run.policies import Policy, ensure_base_policy, move_live, publish_policy
from clawctl.run.rows import Verdict
from clawctl.run.shards import write_turns, write_verdicts
from tests.inspect.example_run import turn

NOTE = "Answer in one short sentence."
KINDS: dict[str, tuple[str, str | None, str]] = {
    "told": (NOTE, "line", "version 0 answered with the hint in its prompt (line)"),
    "alone": (NOTE, None, "the policy answered without the hint, and the teacher reads it"),
    "elsewhere": ("", None, "version 0 answered a request that no note concerns"),
}


@pytest.fixture
def practised(tmp_path: Path) -> RunDir:
    run = open_run(tmp_path / "run")
    run.recipe.write_text("train: {method: opd_topk}\n")
    ensure_base_policy(run, "crafts")
    turns = []
    for kind, (hint, place, _) in KINDS.items():
        episode: dict[str, Any] = {
            "hint": hint, "hint_place": place, "environment": "practice", "task_id": f"{kind}-0", "attempt": 0, "attempts": 1,
            "attempt_try": 0, "ending": "done", "status": "done", "reward": None, "parts": {}, "truncated": False, "log": None,
            "first_version": 0, "last_version": 0,
        }  # fmt: skip
        turns.append(turn(kind, f"s-{kind}", next_state=None, episode=episode, task_id=f"{kind}-0", group_id=f"g-{kind}"))
    write_turns(run.trajectories / "a.parquet", turns)
    hints = [KINDS[row.turn_id][0] for row in turns]
    write_verdicts(run.verdicts / "a.parquet", [
        Verdict(row.turn_id, None, [], hint or None, [hint] if hint else [], "practice", "practice", None)
        for row, hint in zip(turns, hints, strict=True)
    ])  # fmt: skip
    return run


def test_a_note_that_the_live_version_learned_answers_whether_it_got_better(
    practised: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    note = add_note(practised, "anna", NOTE).note
    for version, parent in ((1, 0), (2, 1), (3, 1)):
        policy = Policy(version, parent, version, "rl", "adapter", "crafts", [], None, {}, time.time())
        publish_policy(practised, policy, lambda folder: None)
    for state, learned, live, answer in (
        ("new", None, 1, "not known: nothing was measured, and there is too little feedback"),
        ("learned", 2, 3, "not known: nothing was measured, and there is too little feedback"),  # 3 was made from 1
        ("learned", 1, 3, f"yes: learned “{NOTE}”"),
        ("learned", 2, 1, "not known: nothing was measured, and there is too little feedback"),
        ("learned", 1, 1, f"yes: learned “{NOTE}”"),
        ("learned", 1, 0, "not yet: the base model is live"),
    ):
        change_note(practised, "anna", note.id, state=state, learned=learned, followed=((1, 0.96),))
        move_live(practised, live, by="train")
        show_better(practised, as_json=True)
        shown: dict[str, Any] = orjson.loads(capsys.readouterr().out)
        assert shown["lines"]["better?"] == answer
        sentence = f"“{NOTE}” learned by version 1, followed without it 0.96 as well as with it"
        assert (shown["lines"]["measured"] == sentence) == answer.startswith("yes")


@pytest.mark.parametrize("kind", KINDS)
def test_why_shows_the_note_the_kind_and_that_nobody_rated_the_answer(
    practised: RunDir, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    hint, _, how = KINDS[kind]
    show_why(practised, kind, False, as_json=True)
    facts: dict[str, Any] = orjson.loads(capsys.readouterr().out)
    assert (facts["worth"], facts["turn"]["why_not_trained"], facts["turn"]["hint"]) == (
        "practice", "waiting for the trainer", hint or None,
    )  # fmt: skip
    show_why(practised, kind, False, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("reward: practice", how, "no person and no judge rated the answer", "in practice", *([NOTE] if hint else [])):
        assert part in shown, part
    for word in ("neutral", "nobody", "not known", "std"):
        assert word not in shown, word


def test_why_shows_the_notes_that_the_model_saw(practised: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    notes: Any = {"ids": ["brief", "ruth"], "text": f"{NOTE}\nMy daughter is Ruth.", "place": "line"}
    write_turns(practised.trajectories / "b.parquet", [turn("noted", "s-noted", notes=notes)])
    show_why(practised, "noted", False, as_json=True)
    assert orjson.loads(capsys.readouterr().out)["notes"] == notes
    show_why(practised, "noted", False, as_json=False)
    assert f"brief, ruth, in the prompt (line): {NOTE} My daughter is Ruth." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_of_a_turn_shows_the_same(practised: RunDir, kind: str) -> None:
    hint, _, how = KINDS[kind]
    key = Key()
    client = TestClient(Pages(practised, FollowedRun(practised), key).app(30080), base_url="http://127.0.0.1:30080")
    assert client.get(f"/login?key={key.key}").status_code in (200, 303)
    text = client.get(f"/turn?id={kind}").text
    assert how in text
    assert (NOTE in text) == bool(hint)


def test_practice_waits_for_the_trainer_and_is_no_untrained_turn(practised: RunDir) -> None:
    health = read_health(practised)
    assert (health["turns"]["waiting_for_trainer"], health["not_trained"]) == (3, {})
    assert health["wanted"] == {"changed": [], "conflicts": []}
