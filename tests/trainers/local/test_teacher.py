"""The position of the hint in the teacher's prompt."""

from dataclasses import replace

from clawctl.run.hint_places import with_hint
from clawctl.run.rows import Turn
from clawctl.trainers.texts import prompt_ids_of
from tests.train.tiny import HINT, Sampler

BLOCK = f"\n\n[user's hint / instruction]\n{HINT}"


def hinted(sampler: Sampler, turn: Turn) -> list[int] | None:
    return prompt_ids_of(sampler.tokenizer, turn, with_hint(turn.messages, HINT))


def test_the_hint_ends_the_last_user_message() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]
    assert [m["content"] for m in with_hint(messages, HINT)] == ["a", "b" + BLOCK, "c"]
    assert [m["content"] for m in messages] == ["a", "b", "c"]


def test_without_a_user_the_hint_ends_the_last_message_and_parts_get_one_more() -> None:
    assert with_hint([{"role": "system", "content": "a"}], HINT) == [{"role": "system", "content": "a" + BLOCK}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    assert with_hint(parts, HINT)[0]["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": BLOCK}]


def test_the_teacher_reads_the_recorded_prompt_with_the_hint_in_it(sampler: Sampler) -> None:
    turn = sampler.turn("one")
    ids = hinted(sampler, turn)
    plain = sampler.tokenizer.decode(turn.prompt_ids)
    assert sampler.tokenizer.decode(ids) == plain.replace("homework one<|im_end|>", f"homework one{BLOCK}<|im_end|>")


def test_the_teacher_of_an_answer_that_continues_a_message_continues_it_as_well(sampler: Sampler) -> None:
    turn = sampler.turn("one")
    begun = {"role": "assistant", "content": "Well, homework "}
    prefilled = sampler.tokenizer(begun["content"], add_special_tokens=False)["input_ids"]
    continued = replace(turn, messages=[*turn.messages, begun], prompt_ids=[*(turn.prompt_ids or []), *prefilled])
    ids = hinted(sampler, continued)
    plain = hinted(sampler, turn)
    assert ids == [*(plain or []), *prefilled]


def test_the_recorded_prompt_before_the_hint_is_unchanged(sampler: Sampler) -> None:
    turn = sampler.turn("one")
    assert turn.prompt_ids
    special = replace(turn, prompt_ids=[7, 7, 7, *turn.prompt_ids])  # ids that no rendering of the messages makes
    ids = hinted(sampler, special)
    assert ids == [7, 7, 7, *(hinted(sampler, turn) or [])]


def test_a_prompt_that_the_messages_do_not_render_to_has_no_teacher(sampler: Sampler) -> None:
    turn = sampler.turn("one")
    assert turn.prompt_ids
    assert hinted(sampler, replace(turn, prompt_ids=[*turn.prompt_ids, 7])) is None
    assert prompt_ids_of(sampler.tokenizer, replace(turn, messages=[]), turn.messages) is None
    assert prompt_ids_of(sampler.tokenizer, turn, []) is None
    assert hinted(sampler, replace(turn, messages=[{"content": "no role"}])) is None
