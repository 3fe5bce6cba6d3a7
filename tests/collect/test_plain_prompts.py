"""Series of plain completions: which prompt continues which, and their next states."""

from typing import Any

from clawctl.collect.plain_completions import next_messages
from clawctl.run.rows import Exchange, plain_prompt
from tests.collect.made_exchanges import answer, asked
from tests.collect.stitching import stitch


def complete(prompt: str, text: str, ids: tuple[list[int], list[int]] | None = None, **changes: Any) -> Exchange:
    sampled = {} if ids is None else {"prompt_ids": ids[0], "completion_ids": ids[1], "logprobs": [-0.5] * len(ids[1])}
    return asked([plain_prompt(prompt)], answer(text), api="completions", **{**sampled, **changes})


def came(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_text_that_the_next_prompt_adds_is_the_next_state_and_the_last_turn_has_none() -> None:
    first = complete("Q: 2+2? A:", " 4")
    second = complete("Q: 2+2? A: 4\nRight. Q: 3+3? A:", " 6")
    third = complete("Q: 2+2? A: 4\nRight. Q: 3+3? A: 6\nWell done. Q:", " 5")
    rows = stitch(first, second, third)
    ids = [exchange.exchange_id for exchange in (first, second, third)]
    assert [rows[i].parent_turn_id for i in ids] == [None, *ids[:2]]
    assert [rows[i].next_state for i in ids] == [came("\nRight. Q: 3+3? A:"), came("\nWell done. Q:"), None]
    assert [rows[i].untrainable_reason for i in ids] == [None, None, "no next state"]
    assert len({rows[i].session_id for i in ids}) == 1


def test_ids_decide_if_the_text_was_tokenised_differently_also_without_the_end_token() -> None:
    first = complete("ab", "cd", ([1, 2], [3, 9]))
    for prompt in ([1, 2, 3, 9, 5], [1, 2, 3, 5]):
        second = complete("abcd!", "x", (prompt, [7]))
        assert stitch(first, second)[first.exchange_id].next_state == came("!")
    garbled = complete("a\ufffdcd!", "x", ([1, 2, 3, 9, 5], [7]))
    rows = stitch(first, garbled)
    assert rows[garbled.exchange_id].parent_turn_id == first.exchange_id
    assert rows[first.exchange_id].next_state is None, "what was added is not known"


def test_an_answer_that_was_cut_is_continued_by_its_whole_ids_alone() -> None:
    first = complete("ab", "cd", ([1, 2], [3, 4]), finish_reason="length")
    second = complete("other", "x", ([1, 2, 3, 5], [7]))
    assert stitch(first, second)[second.exchange_id].parent_turn_id is None


def test_similar_prompts_stay_separate() -> None:
    first = complete("Q: 2+2? A:", " 4")
    others = [
        complete("Q: 2+2? A:", " 5"),  # the same again: a sibling
        complete("Q: 2+2? A: 5\nNo.", " sorry"),  # continues that one
        complete("Q: 2+3? A: 4\nNo.", " sorry"),
        complete("Q: 2+2? A: 4\nNo.", " sorry", key="anna"),
        complete("Q: 2+2? A: 4\nNo.", " sorry", session_id="s2"),
    ]
    named = complete("Q: 2+2? A:", " 4", session_id="s1")
    rows = stitch(first, named, *others)
    assert rows[others[1].exchange_id].parent_turn_id == others[0].exchange_id
    assert rows[others[2].exchange_id].parent_turn_id is None
    assert rows[others[3].exchange_id].parent_turn_id is None
    assert rows[others[4].exchange_id].parent_turn_id == first.exchange_id  # it claims no other session
    assert rows[named.exchange_id].next_state is None


def test_an_empty_answer_is_never_continued() -> None:
    first, second = complete("Q:", ""), complete("Q: more", " x")
    assert stitch(first, second)[second.exchange_id].parent_turn_id is None


def test_of_two_beginnings_the_longer_one_is_the_parent() -> None:
    short, long = complete("a", "b"), complete("ab", "cd")
    last = complete("abcd and on", "x")
    assert stitch(short, long, last)[last.exchange_id].parent_turn_id == long.exchange_id


def test_of_a_conversation_that_its_client_renders_the_words_come_back_without_the_templates_marks() -> None:
    chatml = "<|im_end|>\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>user\nthanks <b><|im_end|>\n<|im_start|>assistant\n"
    assert next_messages(chatml) == [{"role": "tool", "content": "42"}, {"role": "user", "content": "thanks <b>"}]
    assert next_messages(chatml + "so<|im_end|>\n<|im_start|>user\nlater<|im_end|>") == next_messages(chatml)
    llama = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nno<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    assert next_messages(llama) == came("no")
    assert next_messages("<end_of_turn>\n<start_of_turn>user\nno<end_of_turn>\n<start_of_turn>model\n") == came("no")
    assert (
        next_messages("</s>[INST] no [/INST]") == next_messages("</s>[INST] no [/INST] sorry</s>[INST] later [/INST]") == came("no")
    )
    assert next_messages("\nRight. Q:") == came("\nRight. Q:")
    for nothing in ("", "  \n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>\n<|im_start|>system\nbe kind<|im_end|>", None):
        assert next_messages(nothing) is None


def test_a_chat_client_that_sends_its_transcript_as_one_message_is_one_conversation() -> None:
    """As LangChain's ConversationChain and agents with a scratchpad do. A title of the same words ends otherwise."""

    def chat(text: str, said: str) -> Exchange:
        return asked([{"role": "user", "content": text}], answer(said))

    begin = "A friendly talk.\n\nCurrent conversation:\n"
    first = chat(f"{begin}\nHuman: is Rome hot?\nAI:", " Yes.")
    second = chat(f"{begin}Human: is Rome hot?\nAI: Yes.\nHuman: and Oslo?\nAI:", "No.")
    title = chat(f"{begin}Human: is Rome hot?\nAI: Yes.\nWrite a title for this.", "Hot Rome")
    other = chat(f"{begin}Human: is Rome hot?\nAI: No.\nHuman: sure?\nAI:", "Yes.")
    rows = stitch(first, second, title, other)
    assert [rows[e.exchange_id].parent_turn_id for e in (second, title, other)] == [first.exchange_id, None, None]
    assert rows[first.exchange_id].next_state == [{"role": "user", "content": "\nHuman: and Oslo?\nAI:"}]
    assert rows[second.exchange_id].kind == "main"
