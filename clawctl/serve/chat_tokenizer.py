"""A model's tokenizer and chat template without transformers. That of `crafts` loads in 0.6 s of processor time, and in 1.6 s with
transformers, while a server is ready after 2.2 s, so a third of the whole is saved.

The first process that loads a tokenizer does so with transformers and keeps what came of it: the serialised tokenizer, the template
and the special tokens. It is kept under a checksum of the model's files and the libraries' versions, beside converted models.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import orjson
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from clawctl.config.environment import model_cache
from clawctl.errors import ClawError
from clawctl.run.checksums import Damaged, read_sealed, sealed
from clawctl.run.directory import publish_bytes
from clawctl.run.model_files import model_file
from clawctl.run.rows import Message

_log = logging.getLogger("clawctl.serve")
_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "config.json",
    "vocab.json", "merges.txt", "tokenizer.model",
)  # fmt: skip
_MORE_TEMPLATES = "additional_chat_templates"  # folder of a model with several templates


class ChatTokenizer:
    """What serving needs of a tokenizer of transformers, with the same names and the same results."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.backend_tokenizer: Any = Tokenizer.from_str(state["tokenizer"])
        self.chat_template: str = state["chat_template"]
        self.special_tokens_map: dict[str, str] = state["special_tokens"]
        self.all_special_ids: list[int] = state["special_ids"]
        self.added_tokens_decoder = self.backend_tokenizer.get_added_tokens_decoder()

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.backend_tokenizer.decode(ids, skip_special_tokens=False))

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend_tokenizer.get_vocab())

    def apply_chat_template(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, tokenize: bool = False, **settings: Any
    ) -> str:
        """The rendered text; never ids. Raises jinja2.TemplateError, and what else a template's expressions raise."""
        if not messages:
            raise ValueError("there is no message to render")
        variables = {"documents": None, "add_generation_prompt": False, **self.special_tokens_map, **settings}
        return _compiled(self.chat_template).render(messages=messages, tools=tools, **variables)


def load(path: str) -> Any:
    """The tokenizer of a model: a ChatTokenizer, or transformers' own where that cannot stand for it, which is the case for
    tokenizers that are written in Python and for models with several templates. Raises OSError and ValueError."""
    kept = _kept_under(path)
    if kept is not None:
        with suppress(OSError):  # not yet kept, or unreadable
            try:
                return ChatTokenizer(read_sealed(kept.read_bytes()))
            except (Damaged, LookupError, TypeError, ValueError) as error:
                _log.warning("%s is damaged (%s), so the model's tokenizer is read again", kept, error)
    tokenizer = _with_transformers(path)
    if getattr(tokenizer, "backend_tokenizer", None) is None or tokenizer.split_special_tokens:
        return tokenizer
    if not isinstance(tokenizer.chat_template, str):
        return tokenizer
    state = _state(tokenizer)
    if kept is not None:
        with suppress(OSError):  # a cache that cannot be written only costs time
            kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            publish_bytes(kept, sealed(orjson.dumps(state)))
    return ChatTokenizer(state)


def _with_transformers(path: str) -> Any:
    from clawctl.engines.patches.imports import without_versions

    with without_versions():
        from transformers import AutoTokenizer  # takes two seconds, in which an engine's process can start already

    return AutoTokenizer.from_pretrained(path, trust_remote_code=False)


def _state(tokenizer: Any) -> dict[str, Any]:
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    return {
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "chat_template": tokenizer.chat_template,
        "special_tokens": tokenizer.special_tokens_map,
        "special_ids": tokenizer.all_special_ids,
    }


def _kept_under(path: str) -> Path | None:
    """Where what came of the tokenizer of these files is kept. None: the files are not on this machine, or there is no cache."""
    files = {name: file for name in _FILES if (file := model_file(path, name)) is not None}
    whole = files.get("tokenizer.json")
    if whole is None or (whole.parent / _MORE_TEMPLATES).exists():
        return None
    digest = hashlib.sha256(f"{version('transformers')} {version('tokenizers')}".encode())
    for name, file in files.items():
        content = file.read_bytes()
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    try:
        return model_cache() / "tokenizers" / f"{digest.hexdigest()[:32]}.json"
    except ClawError:
        return None


class _Generation(Extension):
    """`{% generation %}`, with which some templates mark an assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    """Without jinja2's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


@lru_cache(16)
def _compiled(template: str) -> jinja2.Template:
    """The template in the environment that transformers gives to chat templates (`render_jinja_template`)."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)
