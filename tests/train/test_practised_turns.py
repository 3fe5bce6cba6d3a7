"""Turns of practice: what the policy reads, what its teacher reads, and what does not count as a person's reaction."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from clawctl.config import Recipe, TrainConfig
from clawctl.inspect.better import rates
from clawctl.inspect.rows import read_rows
from clawctl.inspect.wanted import first_answers
from clawctl.run.directory import RunDir
from clawctl.run.finished_shards import FinishedShards
from clawctl.run.hint_places import PLACES, with_hint
from clawctl.run.reward import PRACTICE
from clawctl.run.rows import Turn, Verdict
from clawctl.run.shards import UNKNOWN, write_turns, write_verdicts
from clawctl.train.admission import Admission, TurnRefused
from tests.train.feeding import feed_counts, ids_of, make_feed
from tests.train.tiny import HINT, Sampler, publish_shard, texts_of

METHOD: dict[str, Any] = {"method": "opd_topk", "teacher": "base", "lora": {"rank": 4}}


def prompt_of(sampler: Sampler, messages: list[Any]) -> list[int]:
    return list(sampler.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def practised(sampler: Sampler, name: str, kind: str, place: Any = "line", **changes: Any) -> Turn:
    """A turn as collect publishes it. "told" was asked with the hint in the prompt."""
    turn = sampler.turn(name, seed=len(name), next_state=None, task_id=f"{kind}-1", group_id=f"g-{name}")
    if kind == "told":
        messages = with_hint(turn.messages, HINT, place)
        turn = replace(turn, messages=messages, prompt_ids=prompt_of(sampler, messages))
    hint, where = ("" if kind == "elsewhere" else HINT), (place if kind == "told" else None)
    return replace(turn, **{"episode": {"hint": hint, "hint_place": where, "status": "done", "reward": None}, **changes})


def verdict(turn: Turn) -> Verdict:
    """As the judge stage writes it."""
    hint = (turn.episode or {})["hint"] or None
    return Verdict(turn.turn_id, None, [], hint, [hint] if hint else [], PRACTICE, "practice", None)


def publish(run: RunDir, stem: str, turns: list[Turn]) -> None:
    write_turns(run.trajectories / f"{stem}.parquet", turns)
    write_verdicts(run.verdicts / f"{stem}.parquet", [verdict(turn) for turn in turns])


@pytest.fixture
def admit(sampler: Sampler) -> Callable[..., Any]:
    def admitted(turn: Turn, version: int = 3, place: Any = "line", **config: Any) -> Any:
        settings = TrainConfig.model_validate({**METHOD, **config})
        admission = Admission(settings, texts_of(sampler), UNKNOWN, hint_place=lambda: place)
        return admission.sample("a", turn, verdict(turn), UNKNOWN, version)

    return admitted


# ---- samples -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_an_answer_of_the_told_teacher_is_trained_on_the_prompt_without_the_hint(
    sampler: Sampler, admit: Callable[..., Any], place: Any
) -> None:
    turn = practised(sampler, "x", "told", place)
    sample = admit(turn)
    assert sample.teacher_prompt_ids == turn.prompt_ids
    assert sample.prompt_ids == prompt_of(sampler, sampler.turn("x").messages) != turn.prompt_ids
    assert (sample.logprobs, sample.imported, sample.policy_version, sample.policy_version_end) == (None, True, 3, None)
    assert (sample.reward, sample.worth, sample.completion_ids) == (None, "practice", turn.completion_ids)


@pytest.mark.parametrize("place", PLACES)
def test_an_answer_of_the_policy_is_trained_as_sampled_and_its_teacher_reads_the_hint_at_the_recipes_place(
    sampler: Sampler, admit: Callable[..., Any], place: Any
) -> None:
    turn = practised(sampler, "x", "alone", policy_version=2, policy_version_end=2)
    sample = admit(turn, place=place)
    assert sample.prompt_ids == turn.prompt_ids
    assert sample.teacher_prompt_ids == prompt_of(sampler, with_hint(turn.messages, HINT, place))
    assert (sample.logprobs, sample.imported) == (turn.logprobs, False)
    assert (sample.policy_version, sample.policy_version_end, sample.reward) == (2, 2, None)


def test_an_answer_to_a_request_that_no_hint_concerns_has_the_same_prompt_for_policy_and_teacher(
    sampler: Sampler, admit: Callable[..., Any]
) -> None:
    turn = practised(sampler, "x", "elsewhere")
    sample = admit(turn)
    assert sample.prompt_ids == sample.teacher_prompt_ids == turn.prompt_ids
    assert (sample.logprobs, sample.imported, sample.reward) == (None, True, None)


def test_earlier_answers_of_a_conversation_stay_as_they_were_sampled(sampler: Sampler, admit: Callable[..., Any]) -> None:
    """Only the end of the recorded prompt is replaced."""
    first = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "please"}]
    turn = practised(sampler, "x", "alone")
    plain, hinted = [*first, turn.messages[-1]], with_hint([*first, turn.messages[-1]], HINT, "line")
    begin = [7, 8, 9]  # ids that no rendering gives
    common = prompt_of(sampler, first)
    recorded = [*begin, *prompt_of(sampler, hinted)]
    told_turn = practised(sampler, "x", "told", messages=hinted, prompt_ids=recorded)
    assert len(common) > 1
    assert admit(told_turn).prompt_ids == [*begin, *prompt_of(sampler, plain)]


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": [{"role": "user", "content": "please"}]},  # the hint is not there
        {"prompt_ids": [3, 4, 5]},  # the messages were rendered differently
        {"messages": []},
    ],
)
def test_a_turn_whose_prompt_does_not_show_the_hint_is_refused(
    sampler: Sampler, admit: Callable[..., Any], changes: dict[str, Any]
) -> None:
    with pytest.raises(TurnRefused, match="teacher prompt does not match"):
        admit(practised(sampler, "x", "told", **changes))


def test_a_hint_at_another_place_than_recorded_is_refused(sampler: Sampler, admit: Callable[..., Any]) -> None:
    turn = practised(sampler, "x", "told", "above")
    with pytest.raises(TurnRefused, match="teacher prompt does not match"):
        admit(replace(turn, episode={**(turn.episode or {}), "hint_place": "line"}))


@pytest.mark.parametrize("kind", ["told", "alone", "elsewhere"])
def test_a_method_without_a_teacher_trains_no_practice(sampler: Sampler, admit: Callable[..., Any], kind: str) -> None:
    with pytest.raises(TurnRefused, match="practice"):
        admit(practised(sampler, "x", kind), method="binary", teacher="self")


# ---- answers to notes ----------------------------------------------------------------------------------------------------


def noted(sampler: Sampler, place: Any = "line", **changes: Any) -> Turn:
    """A turn that a person's request began, answered with a note in the prompt."""
    turn = sampler.turn("x", seed=1)
    prompt = prompt_of(sampler, with_hint(turn.messages, HINT, place))
    return replace(turn, **{"prompt_ids": prompt, "notes": {"ids": ["a"], "text": HINT, "place": place}, **changes})


def judged(turn: Turn, hint: str | None = None, reward: float | None = None) -> Verdict:
    return Verdict(turn.turn_id, reward, [], hint, [hint] if hint else [], "judge", None, None)


def admitted(sampler: Sampler, turn: Turn, given: Verdict, **config: Any) -> Any:
    admission = Admission(TrainConfig.model_validate({**METHOD, **config}), texts_of(sampler), UNKNOWN, hint_place=lambda: "line")
    return admission.sample("a", turn, given, UNKNOWN, 3)


@pytest.mark.parametrize("place", PLACES)
def test_an_answer_to_a_note_teaches_the_policy_without_the_note(sampler: Sampler, place: Any) -> None:
    turn = noted(sampler, place)
    sample = admitted(sampler, turn, judged(turn))
    assert sample.teacher_prompt_ids == turn.prompt_ids
    assert sample.prompt_ids == prompt_of(sampler, turn.messages) != turn.prompt_ids
    assert (sample.logprobs, sample.imported, sample.reward) == (None, True, None)


def test_a_hint_on_an_answer_to_a_note_stands_below_the_note(sampler: Sampler) -> None:
    turn, hint = noted(sampler), "say thanks"
    sample = admitted(sampler, turn, judged(turn, hint, -1.0))
    assert sample.prompt_ids == turn.prompt_ids
    both = with_hint(with_hint(turn.messages, HINT, "line"), hint, "line")
    assert sample.teacher_prompt_ids == prompt_of(sampler, both)


def test_a_bad_answer_to_a_note_without_a_hint_is_no_example(sampler: Sampler) -> None:
    turn = noted(sampler)
    with pytest.raises(TurnRefused, match="no hint"):
        admitted(sampler, turn, judged(turn, None, -1.0))


def test_a_reward_counts_for_the_prompt_that_was_answered(sampler: Sampler) -> None:
    turn = noted(sampler)
    sample = admitted(sampler, turn, judged(turn, None, 1.0), method="binary", teacher="self")
    assert (sample.prompt_ids, sample.reward, sample.logprobs) == (turn.prompt_ids, 1.0, turn.logprobs)


def test_the_teacher_also_reads_what_was_learned_and_is_no_longer_in_the_prompt(sampler: Sampler) -> None:
    learned = ["Say thanks.", "Write in English."]
    turn = noted(sampler)
    turn = replace(turn, notes={**turn.notes, "learned": learned})  # type: ignore[typeddict-item]
    sample = admitted(sampler, turn, judged(turn))
    assert sample.prompt_ids == prompt_of(sampler, turn.messages)
    both = with_hint(with_hint(turn.messages, HINT, "line"), "\n".join(learned), "line")
    assert sample.teacher_prompt_ids == prompt_of(sampler, both)
    hinted = admitted(sampler, turn, judged(turn, "say hello", -1.0))
    text = "Earlier: Say thanks.\nEarlier: Write in English.\nsay hello"
    assert hinted.teacher_prompt_ids == prompt_of(sampler, with_hint(with_hint(turn.messages, HINT, "line"), text, "line"))


def test_an_answer_that_needed_no_reminder_keeps_what_was_learned(sampler: Sampler) -> None:
    turn = replace(sampler.turn("x", seed=1), notes={"ids": [], "text": "", "place": "line", "learned": [HINT]})
    sample = admitted(sampler, turn, judged(turn))
    assert sample.prompt_ids == turn.prompt_ids == prompt_of(sampler, turn.messages)
    assert sample.teacher_prompt_ids == prompt_of(sampler, with_hint(turn.messages, HINT, "line"))
    assert (sample.logprobs, sample.imported) == (turn.logprobs, False), "the policy sampled it with this prompt"


def test_notes_take_the_place_of_earlier_hints(sampler: Sampler) -> None:
    admission = Admission(TrainConfig.model_validate(METHOD), texts_of(sampler), UNKNOWN, hint_place=lambda: "line")
    turn = noted(sampler)
    sample = admission.sample("a", turn, judged(turn, "say thanks", -1.0), UNKNOWN, 3, ["say the opposite"])
    assert "opposite" not in sampler.tokenizer.decode(sample.teacher_prompt_ids)


# ---- the person's own reply ----------------------------------------------------------------------------------------------

REPLY = [{"role": "user", "content": "no, that is far too long"}]


def replied(sampler: Sampler, turn: Turn, hint: str = "") -> list[int]:
    again = {**turn.messages[-1], "content": turn.messages[-1]["content"] + (f" {hint}" if hint else "")}
    return prompt_of(sampler, [*turn.messages, turn.response, *REPLY, again])


@pytest.mark.parametrize(("reads", "hint"), [("reply", None), ("reply", "be brief"), ("both", None), ("both", "be brief")])
def test_the_teacher_reads_the_persons_own_reply(sampler: Sampler, reads: str, hint: str | None) -> None:
    turn = replace(sampler.turn("x", seed=1), next_state=REPLY)
    sample = admitted(sampler, turn, judged(turn, hint), hint=reads)
    assert sample.prompt_ids == turn.prompt_ids
    assert sample.teacher_prompt_ids == replied(sampler, turn, hint if reads == "both" and hint else "")


def test_a_turn_without_a_persons_reply_has_its_hint(sampler: Sampler) -> None:
    turn = sampler.turn("x", seed=1)
    tool = [{"role": "tool", "content": "exit code 1", "tool_call_id": "1"}]
    for came_back in (None, tool):
        other = replace(turn, next_state=came_back)
        sample = admitted(sampler, other, judged(other, "be brief"), hint="reply")
        assert sample.teacher_prompt_ids == prompt_of(sampler, with_hint(turn.messages, "be brief", "line"))
        with pytest.raises(TurnRefused, match="no hint"):
            admitted(sampler, other, judged(other, None), hint="reply")


def test_a_reply_to_a_good_answer_teaches_nothing(sampler: Sampler) -> None:
    turn = replace(sampler.turn("x", seed=1), next_state=REPLY)
    with pytest.raises(TurnRefused, match="no hint"):
        admitted(sampler, turn, judged(turn, None, 1.0), hint="reply")


def test_the_reply_is_read_beside_the_reward(sampler: Sampler) -> None:
    turn = replace(sampler.turn("x", seed=1), next_state=REPLY)
    sample = admitted(sampler, turn, judged(turn, None, -1.0), method="combine", hint="reply")
    assert (sample.reward, sample.teacher_prompt_ids) == (-1.0, replied(sampler, turn))


# ---- the feed ------------------------------------------------------------------------------------------------------------


def test_the_teachers_answers_do_not_become_stale_and_the_policys_do(run: RunDir, sampler: Sampler) -> None:
    kinds = ("told", "alone", "elsewhere", "told", "elsewhere")
    turns = [practised(sampler, f"{kind}{n}", kind) for n, kind in enumerate(kinds)]
    publish(run, "a", turns)
    feed = make_feed(run, sampler, **METHOD, hint_place="line", max_staleness=1)
    batch = feed.next_batch(5)
    assert sorted(ids_of(batch)) == ["elsewhere2", "elsewhere4", "told0", "told3"]
    assert {sample.policy_version for sample in batch.samples} == {5}
    assert feed_counts(run)["refused"] == {"stale": 1}


def test_readers_and_merging_agree_with_the_trainer(run: RunDir, sampler: Sampler) -> None:
    """A shard whose turns the trainer still wants is not finished, however old the version that answered."""
    publish(run, "a", [practised(sampler, "told", "told"), practised(sampler, "elsewhere", "elsewhere")])
    recipe = Recipe.model_validate({"train": {**METHOD, "max_staleness": 0}})
    run.recipe.write_text("train: {method: opd_topk, teacher: base, lora: {rank: 4}, max_staleness: 0}\n")
    assert {row.why_not for row in read_rows(run).rows} == {"waiting for the trainer"}
    shards = FinishedShards(run, recipe)
    shards.poll()
    assert not shards.has("a")
    run.recipe.write_text("train: {method: binary}\n")
    assert {row.why_not for row in read_rows(run).rows} == {"practice"}
    without = FinishedShards(run, Recipe.model_validate({"train": {"method": "binary"}}))
    without.poll()
    assert without.has("a")


def test_a_shard_is_kept_for_answers_to_notes_and_for_replies(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "a", [(noted(sampler), None, None)])
    publish_shard(run, "b", [(replace(sampler.turn("y"), next_state=REPLY), None, None)])
    kept = {}
    for name, train in (("judge", METHOD), ("reply", {**METHOD, "hint": "reply"}), ("rewards", {"method": "binary"})):
        recipe = Recipe.model_validate({"train": train})
        run.recipe.write_text(orjson.dumps({"train": train}).decode())
        shards = FinishedShards(run, recipe)
        shards.poll()
        kept[name] = [stem for stem in "ab" if not shards.has(stem)]
        waiting = {row.turn["turn_id"] for row in read_rows(run).rows if row.why_not == "waiting for the trainer"}
        assert waiting == {{"a": "x", "b": "y"}[stem] for stem in kept[name]}
    assert kept == {"judge": ["a"], "reply": ["a", "b"], "rewards": []}


def test_a_practised_hint_is_no_earlier_hint_of_the_person(run: RunDir, sampler: Sampler) -> None:
    practice = replace(practised(sampler, "p", "alone"), created_at=1.0)
    publish(run, "a", [practice])
    complaint = replace(sampler.turn("mine"), created_at=2.0)
    publish_shard(run, "b", [(complaint, -1.0, "no bold")])
    feed = make_feed(run, sampler, **METHOD, earlier_hints=4, batch_turns=2)
    batch = feed.next_batch(0)
    assert batch is not None
    (sample,) = (sample for sample in batch.samples if sample.turn_id == "mine")
    assert "Earlier" not in sampler.tokenizer.decode(sample.teacher_prompt_ids)


def test_practice_is_no_reaction_of_a_person(run: RunDir, sampler: Sampler) -> None:
    """Neither a complaint nor praise, for `inspect` and for the detection of changes."""
    publish(run, "a", [practised(sampler, kind, kind) for kind in ("told", "alone", "elsewhere")])
    joined = read_rows(run)
    assert [row.worth.value for row in joined.rows] == [None] * 3
    assert (first_answers(joined), rates(joined.rows)) == ({}, {})
    feed = make_feed(run, sampler, **METHOD)
    feed.next_batch(0)
    assert feed.queue._changes.since("default") == float("-inf")
