"""Control tokens come from the chat template only: text from a client is always encoded as ordinary text.

A tokenizer turns `<|im_start|>` into one id wherever it occurs, even if a user, a web page or a tool description wrote it. This
module renders the conversation with a placeholder for each such text from a client. Only control tokens that the template wrote
become control ids. The placeholders are then replaced and encoded as ordinary text.

    safe = guard(tokenizer, messages, tools, settings)
    text = tokenizer.apply_chat_template(safe.messages, tools=safe.tools, tokenize=False, **safe.settings)
    ids = safe.encode(text)

A conversation without such text is rendered and encoded as usual, and nothing is copied.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary

import orjson
from ahocorasick_rs import BytesAhoCorasick

from clawctl.run.model_files import model_file
from clawctl.run.rows import Message

_BRACKETED = re.compile(r"\s*[<\[{|＜].*[>\]}|＞]\s*", re.DOTALL)
_EDGES = re.compile(r"\W*(.*?)\W*", re.DOTALL)
_OPENS, _CLOSES = "<think>", "</think>"  # tags around the reasoning at the start of an assistant message
_STRUCTURE = ("role", "type")  # templates compare these values if they are identifiers; a schema's `type` may be any text
_A_WORD = re.compile(r"[A-Za-z0-9_.-]{0,64}")
_NAMED = ("name", "id", "tool_call_id")  # a template may write brackets around a name
_NAMES_BELOW = ("arguments", "properties")


def is_control(content: str, special: bool) -> bool:
    """Whether an added token is a control token: it is special, or it is in brackets like `<tool_call>`. Added words and runs of
    spaces are ordinary."""
    return bool(content.strip()) and (special or _BRACKETED.fullmatch(content) is not None)


class ControlTexts:
    """Finds control texts in strings, in time linear in the length of the string."""

    def __init__(self, texts: Iterable[str], whole_words: Iterable[str] = ()) -> None:
        """`whole_words` match only between characters that are neither letters nor digits."""
        every, whole = set(texts), set(whole_words)
        parts = [_trie_pattern(sorted(every - whole))] if every - whole else []
        parts += [rf"(?<!\w){re.escape(word)}(?!\w)" for word in sorted(whole, key=len, reverse=True)]
        self.pattern = re.compile("|".join(parts) or r"(?!)")
        self._starts = {text[:end] for text in every for end in range(2, len(text))}
        self._ends = {text[begin:] for text in every for begin in range(1, len(text) - 1)}
        self._first, self._last = {text[0] for text in every}, {text[-1] for text in every}
        self._longest = max(map(len, every), default=0)
        self._cores = {core for text in every for core in _cores(text)}
        # As they stand in JSON: one search of a conversation takes a fiftieth of the time of `pattern` in each of its strings.
        self._in_json = BytesAhoCorasick([orjson.dumps(text)[1:-1] for text in every])

    def edges(self, text: str) -> tuple[int, int]:
        """Number of characters at the start of `text` that could end a control text, and at its end that could begin one. Adjacent
        text in the prompt could complete either."""
        head, tail = text[: self._longest], text[-self._longest :]
        begun = ended = 0
        if not self._last.isdisjoint(head):
            begun = next((size for size in range(len(head), 1, -1) if head[:size] in self._ends), 0)
        if not self._first.isdisjoint(tail):
            ended = next((size for size in range(len(tail), 1, -1) if tail[-size:] in self._starts), 0)
        return begun, min(ended, len(text) - begun)

    def is_core(self, text: str) -> bool:
        """Whether brackets around the text would make it a control text."""
        return text.strip() in self._cores

    def broken(self, value: Any) -> Any:
        """`value` with a space after the first character of each control text in it. For engines that render the prompt
        themselves."""
        mapped = _mapped(value, lambda text, _: self._broken(text)) if self._may_hold(value) else None
        return value if mapped is None else mapped

    def broken_messages(self, messages: list[Message]) -> list[Message]:
        """Like `broken`, but keeps the tags around the reasoning at the start of an assistant message."""
        if not self._may_hold(messages):
            return messages
        mapped = [_mapped_message(message, lambda text, _: self._broken(text)) for message in messages]
        changed = [old if new is None else new for old, new in zip(messages, mapped, strict=True)]
        return changed if any(mapped) else messages

    def _may_hold(self, value: Any) -> bool:
        """Whether a control text may be anywhere in a JSON value."""
        try:
            return bool(self._in_json.find_matches_as_indexes(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)))
        except TypeError:  # half a surrogate pair
            return True

    def _broken(self, text: str) -> str:
        return self.pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


def _cores(text: str) -> list[str]:
    match = _EDGES.fullmatch(text)
    if match is None or not match[1]:
        return []
    return [text[begin:end] for begin in range(match.start(1) + 1) for end in range(match.end(1), len(text) + 1)]


def _trie_pattern(texts: Sequence[str], at: int = 0) -> str:
    """A pattern that matches the longest of these sorted words. It examines each character once, regardless of the number of
    words."""
    ends = len(texts[0]) == at
    remaining = texts[1:] if ends else texts
    branches = []
    while remaining:
        same = [word for word in remaining if word[at] == remaining[0][at]]
        branches.append(re.escape(remaining[0][at]) + _trie_pattern(same, at + 1))
        remaining = remaining[len(same) :]
    if not branches:
        return ""
    joined = branches[0] if len(branches) == 1 and not ends else f"(?:{'|'.join(branches)})"
    return f"{joined}?" if ends else joined


COMMON = (Path(__file__).parent / "control_tokens.txt").read_text("utf-8").split()  # of common models


def texts_of_engine(model: str) -> ControlTexts:
    """Texts that an engine with its own renderer may read as control tokens. They are the control texts of the model's tokenizer,
    if its files are on this machine, and those of common models, because the engine may run another model."""
    path = model_file(model, "tokenizer.json")
    try:
        added = orjson.loads(path.read_bytes()).get("added_tokens") or [] if path is not None else []
        controls = [token["content"] for token in added if is_control(token["content"], token.get("special", False))]
    except (OSError, orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        controls = []
    return ControlTexts([*COMMON, *controls])


# ---- a local tokenizer ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guarded:
    """A conversation for the template. Pass the rendered text to `encode`, not to the tokenizer."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    settings: dict[str, Any]
    encode: Callable[[str], list[int]]  # rendered text → ids
    spelled: bool  # whether the client's text contains a control token or part of one


def guard(
    tokenizer: Any, messages: list[Message], tools: list[dict[str, Any]] | None = None, settings: dict[str, Any] | None = None
) -> Guarded:
    """The conversation with a placeholder for each text that must not become a control id."""
    control_tokens = _KNOWN.get(tokenizer)
    if control_tokens is None:
        control_tokens = _KNOWN[tokenizer] = _ControlTokens(tokenizer)
    safe = control_tokens.guard(messages, tools, settings or {})
    if safe is not None:
        return safe

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    if control_tokens.fast:
        return Guarded(messages, tools, settings or {}, encode, False)
    texts = control_tokens.texts  # a tokenizer written in Python cannot be rebuilt with renamed control tokens
    return Guarded(texts.broken_messages(messages), texts.broken(tools), texts.broken(settings or {}), encode, False)


def control_texts(tokenizer: Any) -> ControlTexts:
    return ControlTexts(
        token.content for token in tokenizer.added_tokens_decoder.values() if is_control(token.content, token.special)
    )


def prepare(tokenizer: Any) -> None:
    """Begin the slow setup, in a thread, that the first control token in a client's text would trigger: some seconds for a large
    vocabulary."""
    guard(tokenizer, [])
    if _KNOWN[tokenizer].fast:
        Thread(target=_KNOWN[tokenizer].build, daemon=True).start()


class _Placeholders:
    """Placeholders for texts. They consist of letters and digits that no client can guess and no template changes."""

    def __init__(self) -> None:
        self._mark = f"q{secrets.token_hex(8)}q"
        self._texts: list[str] = []
        self._pattern = re.compile(rf"{self._mark}(\d+)q", re.IGNORECASE)
        self.needed = False  # may be set without a placeholder: the tokenizer's normaliser would create a control token

    def add(self, text: str) -> str:
        self.needed = True
        self._texts.append(text)
        return f"{self._mark}{len(self._texts) - 1}q"

    def restore(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._texts[int(match[1])], text)


class _ControlTokens:
    """The control tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        added = tokenizer.added_tokens_decoder
        control = {token.content: token for token in added.values() if is_control(token.content, token.special)}
        whole_words = [text for text, token in control.items() if token.single_word]
        self._control = {token.content: token_id for token_id, token in added.items() if token.content in control}
        self.texts = self._texts = ControlTexts(control, whole_words)
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self.fast = self._backend is not None
        if self._backend is None:
            return
        in_model = any(self._backend.model.token_to_id(text) is not None for text in control)
        self._normaliser = self._backend.normalizer
        if not in_model and not any(token.normalized for token in control.values()):
            self._normaliser = None  # its output cannot contain a control token
        if self._normaliser is not None:  # the normaliser also applies to an added token's own text
            normalised = [self._normaliser.normalize_str(text).strip("▁ ") for text in control]
            self._normalised = ControlTexts(filter(None, [*control, *normalised])).pattern
        self._built: tuple[Any, dict[str, str], dict[int, int]] | None = None

    def guard(self, messages: list[Message], tools: list[dict[str, Any]] | None, settings: dict[str, Any]) -> Guarded | None:
        """None if the conversation is safe without changes, or if the tokenizer is not `fast`."""
        if not self.fast:
            return None
        placeholders = _Placeholders()
        guarded = [_mapped_message(message, lambda text, key: self._guarded(text, key, placeholders)) for message in messages]
        safe = [old if new is None else new for old, new in zip(messages, guarded, strict=True)]
        safe_tools, safe_settings = self._safe(tools, placeholders), self._safe(settings, placeholders)
        if not placeholders.needed:
            return None
        return Guarded(safe, safe_tools, safe_settings, lambda text: self._encode(text, placeholders), True)

    def _safe(self, value: Any, placeholders: _Placeholders) -> Any:
        mapped = _mapped(value, lambda text, key: self._guarded(text, key, placeholders))
        return value if mapped is None else mapped

    def _guarded(self, text: str, key: str, placeholders: _Placeholders) -> str:
        if key in _NAMED and self._texts.is_core(text):
            return placeholders.add(text)
        if self._texts.pattern.search(text) is not None:
            text = self._texts.pattern.sub(lambda match: placeholders.add(match[0]), text)
        elif self._normaliser is not None and self._normalised.search(self._normaliser.normalize_str(text)) is not None:
            placeholders.needed = True
        begun, ended = self._texts.edges(text)
        if begun:
            text = placeholders.add(text[:begun]) + text[begun:]
        return text[:-ended] + placeholders.add(text[-ended:]) if ended else text

    def _encode(self, text: str, placeholders: _Placeholders) -> list[int]:
        """The ids of `text`, in which every control token comes from the template. Placeholders are replaced first."""
        tokenizer, marks, ids = self.build()
        marked = self._texts.pattern.sub(lambda match: marks[match[0]], text)
        token_ids = tokenizer.encode(placeholders.restore(marked), add_special_tokens=False).ids
        return [ids.get(token, token) for token in token_ids]

    def build(self) -> tuple[Any, dict[str, str], dict[int, int]]:
        """A copy of the tokenizer with renamed control tokens, the new names, and the ids that differ from the original's."""
        if self._built is None:
            self._built = _renamed(self._backend, self._control)
        return self._built


_KNOWN: "WeakKeyDictionary[Any, _ControlTokens]" = WeakKeyDictionary()


def _renamed(backend: Any, control: dict[str, int]) -> tuple[Any, dict[str, str], dict[int, int]]:
    from tokenizers import Tokenizer

    mark = f"z{secrets.token_hex(8)}"
    names = {text: f"{mark}{number:06d}z" for number, text in enumerate(control)}
    state = orjson.loads(backend.to_str())
    for name in ("post_processor", "truncation", "padding"):
        state[name] = None
    real = {token["content"]: token["id"] for token in state["added_tokens"]}
    for token in state["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    _rename_in_model(state["model"], names, real)
    renamed = Tokenizer.from_str(orjson.dumps(state).decode())
    ids: dict[int, int] = {renamed.token_to_id(names.get(text, text)): token_id for text, token_id in real.items()}  # type: ignore[misc]
    return renamed, names, {new_id: token_id for new_id, token_id in ids.items() if new_id != token_id}


def _rename_in_model(model: dict[str, Any], names: dict[str, str], added: dict[str, int]) -> None:
    """Also rename control tokens that are ordinary pieces of the vocabulary, so that plain text cannot match them."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram: the index is the id
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
        return
    spelled = names.keys() & vocabulary.keys()
    if spelled and model.get("merges"):
        model["merges"] = [pair for pair in model["merges"] if not _merges_into(pair, spelled)]
    model["vocab"] = {names.get(piece, piece): token_id for piece, token_id in vocabulary.items()}
    model["vocab"] |= {names.get(text, text): token_id for text, token_id in added.items()}
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]


def _merges_into(pair: Any, texts: set[str]) -> bool:
    first, second = pair if isinstance(pair, list) else pair.split(" ", 1)
    return first in texts or second in texts or first + second in texts


# ---- strings in JSON -----------------------------------------------------------------------------------------------------


def _mapped_message(message: Message, transform: Callable[[str, str], str]) -> Message | None:
    """Like `_mapped`. For the reasoning at the start of an assistant message, only the text between the tags is mapped, because
    templates extract or remove it."""
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str) or not content.lstrip().startswith(_OPENS):
        mapped: Message | None = _mapped(message, transform)
        return mapped
    opening, _, remaining = content.partition(_OPENS)
    thought, closing, answer = remaining.partition(_CLOSES)
    new_content = opening + _OPENS + transform(thought, "") + closing + transform(answer, "")
    other_fields = {name: value for name, value in message.items() if name != "content"}
    mapped = _mapped(other_fields, transform)
    return (
        None
        if new_content == content and mapped is None
        else {**(other_fields if mapped is None else mapped), "content": new_content}
    )


def _mapped(value: Any, transform: Callable[[str, str], str], key: str = "") -> Any:
    """`value` with `of(text, key)` applied to every string in it, including the keys of objects; None if nothing changes."""
    if isinstance(value, str):
        mapped = transform(value, key)
        return None if mapped == value else mapped
    if isinstance(value, list | tuple):
        items = [_mapped(item, transform, key) for item in value]
        if all(item is None for item in items):
            return None
        return [old if new is None else new for old, new in zip(value, items, strict=True)]
    if not isinstance(value, dict):
        return None
    pairs, same = [], True
    for name, item in value.items():
        below = "name" if key in _NAMES_BELOW else ""
        new_name = transform(name, below) if isinstance(name, str) else name
        is_structure = name in _STRUCTURE and isinstance(item, str) and _A_WORD.fullmatch(item)
        new = None if is_structure else _mapped(item, transform, name)
        same = same and new is None and new_name == name
        pairs.append((new_name, item if new is None else new))
    return None if same else dict(pairs)
