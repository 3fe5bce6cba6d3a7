"""An answer that a client sends back reformatted enters the next prompt as it was sampled, or unchanged if that is not certain."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from served import SPECIAL, Server
from transformers import AutoTokenizer

from clawctl.engines.requests import GenerationRequest
from clawctl.serve.dialects import chat
from clawctl.serve.prompt import UNCERTAIN, render
from clawctl.serve.recent_answers import RecentAnswers, digest, prompt_digest

END = SPECIAL.index("<|im_end|>")
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SAID = 'Let me see. \n<tool_call>\n{"name": "look",  "arguments": {"at":"x",   "n": 1.0}}\n</tool_call>'
CALL = {"id": "callA1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x",   "n": 1.0}'}}
GIVEN = {"role": "assistant", "content": "Let me see. \n", "tool_calls": [CALL]}
BACK = {
    "role": "assistant",
    "content": "Let me see.",
    "tool_calls": [{**CALL, "function": {"name": "look", "arguments": '{"n":1.0,"at":"x"}'}}],
}
ASKED = [{"role": "user", "content": "look please"}]
RESULT = {"role": "tool", "tool_call_id": "callA1", "content": "thanks a lot"}


@pytest.fixture
def tokenizer(model_path: Path) -> Any:
    return AutoTokenizer.from_pretrained(model_path)


def ask(*messages: dict[str, Any], **body: Any) -> GenerationRequest:
    return chat.read({"messages": list(messages), "tools": [LOOK], **body}, "tiny")


def ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def remember(
    recent: RecentAnswers, tokenizer: Any, before: GenerationRequest, said: str = SAID, name: str = "A" * 24, **message: Any
) -> list[int]:
    """Prompt and answer, as they went through the engine."""
    prompt = render(tokenizer, before, True).ids
    sampled = [*ids(tokenizer, said[:7]), *ids(tokenizer, said[7:]), END]  # cut as no tokenizer would
    recent.store("default", name, {**GIVEN, **message}, prompt, sampled)
    return prompt + sampled


def test_a_prompt_begins_with_the_prompt_and_the_answer_before_it_over_two_turns(tokenizer: Any) -> None:
    recent = RecentAnswers()
    before = remember(recent, tokenizer, ask(*ASKED))
    plain, child = ask(*ASKED, BACK, RESULT), recent.with_answers("default", ask(*ASKED, BACK, RESULT))
    assert render(tokenizer, plain, True).ids[: len(before)] != before
    rendered = render(tokenizer, child, True)
    assert rendered.ids[: len(before)] == before
    assert rendered.ids[len(before) :] == ids(tokenizer, "\n<|im_start|>tool\nthanks a lot<|im_end|>\n<|im_start|>assistant\n")
    assert rendered.spliced == 1
    said = {"content": "hello  there", "tool_calls": None}
    again = remember(recent, tokenizer, child, "hello  there", "B" * 24, **said)
    back = {"role": "assistant", "content": " hello  there\n"}
    grandchild = ask(*ASKED, BACK, RESULT, back, {"role": "user", "content": "thanks"})
    rendered = render(tokenizer, recent.with_answers("default", grandchild), True)
    assert rendered.ids[: len(again)] == again
    assert rendered.spliced == 2


def test_without_the_option_nothing_is_spliced_and_the_reason_is_recorded(tokenizer: Any) -> None:
    recent = RecentAnswers()
    remember(recent, tokenizer, ask(*ASKED))
    child = recent.with_answers("default", ask(*ASKED, BACK, RESULT))
    assert render(tokenizer, child) == render(tokenizer, ask(*ASKED, BACK, RESULT))
    assert render(tokenizer, child).spliced is None


def test_answers_are_spliced_for_their_own_key_only_and_never_after_an_edit(tokenizer: Any) -> None:
    recent = RecentAnswers()
    remember(recent, tokenizer, ask(*ASKED))
    assert recent.with_answers("other", ask(*ASKED, BACK, RESULT)).answers is None
    assert recent.with_answers("default", ask(*ASKED, {**BACK, "content": "Let me look."}, RESULT)).answers is None
    assert digest({"role": "assistant", "content": " "}) is None


def test_a_handle_distinguishes_answers_with_the_same_text(tokenizer: Any) -> None:
    recent = RecentAnswers()
    first, second = ({"tool_calls": [{**CALL, "id": f"call{name * 24}0"}]} for name in "AB")
    remember(recent, tokenizer, ask(*ASKED), name="A" * 24, **first)
    longer = remember(recent, tokenizer, ask(*ASKED), "Well. " + SAID, "B" * 24, **second)
    rendered = render(tokenizer, recent.with_answers("default", ask(*ASKED, {**BACK, **second}, RESULT)), True)
    assert rendered.ids[: len(longer)] == longer


def test_of_equal_answers_only_the_one_to_this_prompt_is_spliced(tokenizer: Any) -> None:
    recent, other = RecentAnswers(), [{"role": "user", "content": "another question"}]
    here = remember(recent, tokenizer, ask(*ASKED), name="A" * 24)
    remember(recent, tokenizer, ask(*other), "Well. " + SAID, "B" * 24)
    rendered = render(tokenizer, recent.with_answers("default", ask(*ASKED, BACK, RESULT)), True)
    assert rendered.ids[: len(here)] == here
    third = ask({"role": "user", "content": "a third one"}, BACK, RESULT)
    prompt = render(tokenizer, recent.with_answers("default", third), True)
    assert (prompt.ids, prompt.spliced, prompt.unspliced) == (render(tokenizer, third, True).ids, 0, UNCERTAIN)


LOOP = "{%- for m in messages %}"
WANTS_CALLS = "{% if m.role == 'tool' and not loop.previtem.tool_calls %}{{ raise_exception('no call') }}{% endif %}"


@pytest.mark.parametrize(
    "change",
    [
        ("<|im_start|>' + m.role", "<|im_start|>' + m.role|upper"),  # history looks unlike the prompt to answer
        ("(m.content or '')", "(m.content or '')|length|string"),  # an answer's place does not show
        ("{{ '<|im_end|>\\n' }}", "{{ '\\n' }}"),  # answers do not end with what was sampled
        (LOOP, "{{ messages|length if messages[1] and messages[1].tool_calls }}" + LOOP),
        (LOOP, LOOP + WANTS_CALLS),
    ],
)
def test_where_the_template_does_not_show_the_place_nothing_is_done(tokenizer: Any, change: tuple[str, str]) -> None:
    assert change[0] in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(*change)
    recent = RecentAnswers()
    remember(recent, tokenizer, ask(*ASKED))
    rendered = render(tokenizer, recent.with_answers("default", ask(*ASKED, BACK, RESULT)), True)
    assert rendered == replace(render(tokenizer, ask(*ASKED, BACK, RESULT)), spliced=0, unspliced=UNCERTAIN)


def test_reasoning_that_the_template_begins_itself_is_put_back_with_it(tokenizer: Any) -> None:
    begun = "<|im_start|>assistant\\n<think>\\n"
    tokenizer.chat_template = tokenizer.chat_template.replace("{{ '<|im_start|>assistant\\n' }}", f"{{{{ '{begun}' }}}}")
    recent = RecentAnswers()
    before = remember(recent, tokenizer, ask(*ASKED), "hm\n</think>\n\n" + SAID)
    rendered = render(tokenizer, recent.with_answers("default", ask(*ASKED, BACK, RESULT)), True)
    assert rendered.thinking
    assert rendered.ids[: len(before)] == before


def test_memory_is_bounded_by_tokens_the_oldest_goes_first(tokenizer: Any) -> None:
    recent = RecentAnswers(max_tokens=70)  # two answers of 2 tokens, and 32 tokens of overhead for each
    for name, text in (("A", "one"), ("B", "two"), ("C", "three")):
        recent.store("default", name * 24, {"role": "assistant", "content": text}, [1], [1, 2])
    answered = recent.with_answers("default", ask(*[{"role": "assistant", "content": text} for text in ("one", "two", "three")]))
    assert answered.answers is not None
    assert sorted(answered.answers) == [1, 2]


def test_a_bounded_number_of_equal_answers_is_compared(tokenizer: Any) -> None:
    recent, said = RecentAnswers(), {"role": "assistant", "content": "ok"}
    for number in range(1100):
        recent.store("default", f"{number:024}", said, [number], [1, 2])
    answered = recent.with_answers("default", ask(said))
    assert answered.answers is not None
    assert len(answered.answers[0]) == 1024
    assert answered.answers[0][-1].prompt == prompt_digest([1099])
    assert recent.with_answers("default", ask({**said, "tool_calls": [{**CALL, "id": f"call{75:024}0"}]})).answers is None


def test_a_server_that_splices_records_it_and_its_turns_chain(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, splice=True) as server:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
        for text in ("and then?", "thanks"):
            answer = server.client.chat.completions.create(model="tiny", messages=messages, max_tokens=12)  # type: ignore[arg-type]
            said = answer.choices[0].message.content
            messages += [{"role": "assistant", "content": f" {said}\n"}, {"role": "user", "content": text}]
        server.client.chat.completions.create(model="tiny", messages=messages, max_tokens=4)  # type: ignore[arg-type]
        first, second, third = server.captured()
        assert (first["spliced"], second["spliced"], third["spliced"]) == (0, 1, 2)
        for parent, child in ((first, second), (second, third)):
            through = parent["prompt_ids"] + parent["completion_ids"]
            assert child["prompt_ids"][: len(through)] == through
        assert orjson.dumps(first["adapted"]) == b"null"
        assert server.stop() == 0
