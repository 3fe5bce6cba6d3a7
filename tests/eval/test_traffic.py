"""Complaints of real users: a version that does worse than its predecessor is rolled back, and shared sessions decide first."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from clawctl.config import Recipe
from clawctl.eval.traffic import Traffic, pair
from clawctl.eval.worker import Follower
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, open_run
from clawctl.run.feedback import FeedbackFile
from clawctl.run.lineage import read_lineage, refusals_in_a_row, why_dead
from clawctl.run.policies import ensure_base_policy, live_version, move_live, publish_policy, read_moves
from clawctl.run.rows import Feedback, Policy, Turn, Verdict
from clawctl.run.shards import write_turns, write_verdicts
from clawctl.run.sharing import begin_share, read_share
from tests.eval.answering_server import announce, answering
from tests.eval.sums import MARGINS, SUMS, good
from tests.eval.test_eval_worker import versions_that

RECIPE = Recipe.model_validate(
    {"eval": {"suites": [SUMS], "problems": 4}, "gate": {"limits": MARGINS}, "collect": {"session_timeout_s": 60}}
)
SHARED = RECIPE.model_copy(update={"gate": RECIPE.gate.model_copy(update={"share": 0.5})})  # type: ignore[union-attr]
NOW = time.time()
PLAIN = Turn(
    "t", "s", None, 0, "main", "serve", None, None, "anna", NOW, [{"role": "user", "content": "hi"}], None,
    {"role": "assistant", "content": "hello"}, [{"role": "user", "content": "no"}], [1], [2], [-0.5], 0, 0, 1.0, 1.0, 0, "stop",
    None, None, True, None,
)  # fmt: skip


def run_with(folder: Path, *versions: int) -> RunDir:
    run = open_run(folder / "run")
    ensure_base_policy(run, "crafts")
    for version in versions:
        policy = Policy(version, version - 1, version, "combine", "full", "crafts", [], None, {}, 1.0)
        publish_policy(run, policy, lambda folder: None)
    return run


def talk(
    run: RunDir, stem: str, version: int, rewards: list[float | None], at: float, key: str = "anna", judged: bool = True
) -> None:
    """A conversation of one turn for each reward, ten seconds apart each."""
    turns = [
        replace(PLAIN, turn_id=f"{stem}{n}", session_id=f"{stem}{n}", user=key, created_at=at + 10 * n, policy_version=version,
                policy_version_end=version)
        for n in range(len(rewards))
    ]  # fmt: skip
    write_turns(run.turn_shard(stem), turns)
    verdicts = [Verdict(turn.turn_id, reward, [], None, [], "judge", "", 0.1) for turn, reward in zip(turns, rewards, strict=True)]
    if judged:
        write_verdicts(run.verdict_shard(stem), verdicts)


def record(run: RunDir, version: int) -> dict[str, Any]:
    content: dict[str, Any] = read_sealed(run.eval_record(version).read_bytes())
    return content


def step(run: RunDir, recipe: Recipe = RECIPE) -> None:
    Follower(run, recipe, threading.Event(), as_json=False).step()


def test_a_version_that_users_complain_of_more_is_rolled_back_and_training_goes_back(tmp_path: Path) -> None:
    run = run_with(tmp_path, 1)
    talk(run, "before", 0, [1.0] * 30, NOW - 4000)
    move_live(run, 1, by="eval")
    talk(run, "after", 1, [1.0] * 2 + [-1.0] * 28, time.time() + 0.1)
    later = Follower(run, RECIPE, threading.Event(), as_json=False)
    later.watching.traffic = Later(run, time.time() + 4000)
    assert later.step()
    assert live_version(run) == 0
    watch = record(run, 1)["watch"]
    assert (watch["against"], watch["losses"], watch["ties"], watch["verdict"]) == (0, 28, 2, "worse")
    assert "0 conversations went better, 28 worse, 2 alike" in read_moves(run)[-1]["by"]
    lineage = read_lineage(run)
    assert lineage.tip == 0, "what did not stay live is not built on"
    assert "eval, because 0 conversations went better" in why_dead(run, lineage)[1]
    assert refusals_in_a_row(run, lineage) == [1]


class Later(Traffic):
    """Reads the traffic as of another time."""

    def __init__(self, run: RunDir, now: float) -> None:
        super().__init__(run)
        self.now = now

    def conversations(self, rest_s: float, now: float) -> Any:
        return super().conversations(rest_s, self.now)


def test_a_version_that_a_person_chose_is_not_rolled_back(tmp_path: Path) -> None:
    run = run_with(tmp_path, 1)
    talk(run, "before", 0, [1.0] * 30, NOW - 4000)
    move_live(run, 1, by="promote by anna on host")
    talk(run, "after", 1, [-1.0] * 30, time.time() + 0.1)
    with answering(versions_that({0: good, 1: good}, RECIPE)) as server:
        announce(run, server.url)
        follower = Follower(run, RECIPE, threading.Event(), as_json=False)
        follower.watching.traffic = Later(run, time.time() + 4000)
        follower.step()
    assert live_version(run) == 1


def test_a_conversation_counts_when_it_is_idle_and_judged(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    talk(run, "rested", 0, [-1.0, 1.0], NOW - 4000)
    talk(run, "running", 0, [1.0], NOW - 5)
    talk(run, "unjudged", 0, [1.0], NOW - 4000, judged=False)
    talk(run, "neutral", 0, [0.0, None], NOW - 4000)
    conversations = Traffic(run).conversations(60, NOW)
    assert {conversation.session: conversation.complaints for conversation in conversations} == {
        "rested0": 1.0,
        "rested1": 0.0,
        "neutral0": 0.0,
    }


def test_a_rating_outranks_the_judge_however_late_it_comes(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    talk(run, "a", 0, [1.0], NOW - 4000)
    traffic = Traffic(run)
    assert [conversation.complaints for conversation in traffic.conversations(60, NOW)] == [0.0]
    FeedbackFile(run.feedback).append(Feedback("f", NOW, "anna", "a0", -1.0, None))
    assert [conversation.complaints for conversation in traffic.conversations(60, NOW)] == [1.0]


def test_conversations_are_paired_within_their_key(tmp_path: Path) -> None:
    run = run_with(tmp_path, 1)
    talk(run, "a", 0, [1.0, 1.0], NOW - 4000, key="anna")
    talk(run, "b", 0, [-1.0], NOW - 4000, key="ben")
    talk(run, "c", 1, [-1.0] * 3, NOW - 3000, key="anna")
    talks = Traffic(run).conversations(60, NOW)
    pairs = pair([talk for talk in talks if talk.version == 1], [talk for talk in talks if talk.version == 0])
    assert [(row.key, row.candidate, row.reference) for row in pairs] == [("anna", 0.0, 1.0)] * 2


def test_a_candidate_answers_a_share_first_and_is_refused_where_users_complain(tmp_path: Path) -> None:
    with answering(versions_that({0: good, 1: good}, SHARED)) as server:
        run = run_with(tmp_path, 1)
        announce(run, server.url)
        step(run, SHARED)
        shared = read_share(run)
        assert shared is not None
        assert (shared.version, shared.share, live_version(run)) == (1, 0.5, 0)
        before = len(server.asked)
        talk(run, "live", 0, [1.0] * 20, time.time())
        talk(run, "candidate", 1, [-1.0] * 20, time.time())
        follower = Follower(run, SHARED, threading.Event(), as_json=False)
        follower.watching.traffic = Later(run, time.time() + 4000)
        follower.step()
        assert len(server.asked) == before, "nothing is measured again"
    assert (live_version(run), read_share(run)) == (0, None)
    assert record(run, 1)["decision"]["promote"] is False
    assert "users complained more: 0 conversations went better, 20 worse, 0 alike" in record(run, 1)["decision"]["reason"]
    assert record(run, 1)["share"]["measured"]["promote"] is True


def test_without_evidence_the_measurement_decides_when_the_time_is_over(tmp_path: Path) -> None:
    with answering(versions_that({0: good, 1: good}, SHARED)) as server:
        run = run_with(tmp_path, 1)
        announce(run, server.url)
        step(run, SHARED)
        step(run, SHARED)
        assert (live_version(run), read_share(run) is not None) == (0, True)
        assert SHARED.gate is not None
        step(run, SHARED.model_copy(update={"gate": SHARED.gate.model_copy(update={"share_wait_s": 1e-6})}))
    assert (live_version(run), read_share(run)) == (1, None)
    assert record(run, 1)["decision"]["promote"] is True


def test_a_share_of_a_candidate_that_is_gone_ends(tmp_path: Path) -> None:
    with answering(versions_that({0: good, 1: good}, SHARED)) as server:
        run = run_with(tmp_path, 1)
        announce(run, server.url)
        begin_share(run, 7, 0.5)
        step(run, SHARED)
        shared = read_share(run)
    assert shared is not None
    assert shared.version == 1
