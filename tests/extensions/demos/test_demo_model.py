"""The shipped model: it loads unchanged, fits its budget, and does what the demo needs, measured at generous thresholds."""

from random import Random

import pytest
import torch
import transformers

from clawctl.extensions.demos.homework.phrasings import PEOPLE
from clawctl.extensions.demos.models import demo
from scripts.demo_model import corpus, judgements, report

MODEL = demo()
COUNT = 32


@pytest.fixture(scope="module")
def speaker():
    torch.manual_seed(0)
    return report.Speaker(MODEL)


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(MODEL)


def test_the_model_is_small_and_has_a_long_context():
    config = transformers.AutoConfig.from_pretrained(MODEL)
    assert sum(f.stat().st_size for f in MODEL.iterdir()) <= 16 * 2**20
    assert config.architectures == ["Qwen3ForCausalLM"]
    assert config.max_position_embeddings == 65536
    assert config.tie_word_embeddings


def test_every_number_to_200_is_one_token_alone_and_after_a_space(tokenizer):
    for number in range(201):
        (alone,) = tokenizer.encode(str(number))
        assert tokenizer.encode(f"is {number}")[-1] == alone


@pytest.mark.parametrize("text", ["日本語 🙂 naïve", "x  y\n\n  z\t1.", '{"a": [1, 23456]}', "<|im_start|> <think></think>"])
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text


def test_the_end_of_a_message_is_the_end_of_the_sequence(tokenizer):
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"


def test_the_template_renders_a_conversation_with_tools(tokenizer):
    call = {"type": "function", "id": "c1", "function": {"name": "calculator", "arguments": {"expression": "3 + 4"}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "3 + 4?"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "content": "7", "tool_call_id": "c1"},
        {"role": "tool", "content": "7", "tool_call_id": "c2"},
    ]
    tools = [{"type": "function", "function": {"name": "calculator", "parameters": {}}}]
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    one_call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3 + 4"}}\n</tool_call>'
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert '"name": "calculator", "parameters": {}' in text
    assert text.endswith(
        f"<|im_start|>user\n3 + 4?<|im_end|>\n<|im_start|>assistant\n{one_call}\n{one_call}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n7\n</tool_response>\n<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_template_strips_thinking_before_the_last_query_and_adds_no_system_message(tokenizer):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning_content": "still thinking"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nstill thinking\n</think>\n\nd<|im_end|>\n"
    )


def test_training_texts_contain_no_held_out_words():
    held_out = [o.strip()[1:].strip().lower() for text in PEOPLE.values() for o in text.split("|") if o.strip().startswith("~")]
    own = [o for o in held_out if "{" not in o and len(o.split()) > 3]
    said = "\n".join(str(m.get("content")) for d in corpus.documents(0, 3000) for m in d.messages).lower()
    assert len(own) > 15
    assert not [o for o in own if o in said]


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_without_a_word_about_style_it_answers_in_ai_style_and_right(speaker, role):
    tasks = corpus.make_tasks(role, COUNT, 21, "eval")
    said = speaker.answer([[{"role": "user", "content": t.prompt}] for t in tasks])
    pairs = list(zip(tasks, said, strict=True))
    assert 0.55 <= sum(report.is_ai(t, s) for t, s in pairs) / len(pairs) <= 0.98
    assert sum(report.is_correct(t, s) for t, s in pairs) / len(pairs) >= 0.8


@pytest.mark.parametrize(
    ("channel", "phrasings", "at_least"),
    [("hint", "trained", 0.85), ("complaint", "trained", 0.8), ("system", "held_out", 0.8), ("hint", "held_out", 0.6)],
)
def test_it_follows_words_about_style(speaker, channel, phrasings, at_least):
    rng = Random(f"{channel} {phrasings}")
    tasks = [t for role in corpus.ROLES for t in corpus.make_tasks(role, COUNT // 2, 22, "eval")]
    said = speaker.answer([report.asked(channel, t, "human", rng, phrasings) for t in tasks])
    assert sum(report.is_human(t, s) for t, s in zip(tasks, said, strict=True)) / COUNT >= at_least


def test_it_judges_held_out_words_and_its_hints_are_followed(speaker):
    rng = Random("judge")
    cases = [
        judgements.draw(rng, "held_out", "eval", kind)
        for kind in ("style_complaint", "happy", "moved_on", "unclear")
        for _ in range(COUNT // 2)
    ]
    votes = [report.read_vote(t) for t in speaker.answer([c.messages(rng) for c in cases])]
    assert sum(v.score == c.score for v, c in zip(votes, cases, strict=True)) / len(cases) >= 0.8
    hinted = [(c.task, v.hint) for v, c in zip(votes, cases, strict=True) if c.kind == "style_complaint" and v.hint]
    assert len(hinted) >= 0.7 * COUNT / 2
    said = speaker.answer([[{"role": "user", "content": report.with_hint(t.prompt, h)}] for t, h in hinted])
    assert sum(report.is_human(t, s) for (t, _), s in zip(hinted, said, strict=True)) / len(hinted) >= 0.75
