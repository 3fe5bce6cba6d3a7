"""Puts the sampled ids of earlier answers back into a rendered prompt, if the rendering shows their exact positions."""

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from clawctl.engines.requests import EarlierAnswer
from clawctl.run.rows import Message
from clawctl.serve.recent_answers import prompt_digest

_EMPTY_THOUGHT = re.compile(r"(<think>)?\s*(</think>\s*)?")  # some templates write an empty one before an answer without reasoning
Render = Callable[[list[Message], bool], str]  # messages, with or without the generation prompt → text


def splice(
    tokenizer: Any,
    render: Render,
    messages: list[Message],
    text: str,
    answers: Mapping[int, list[EarlierAnswer]],
    encode: Callable[[str], list[int]],
) -> tuple[list[int], int] | None:
    """The ids of the prompt `text` with sampled answers in place of their rendering, and the number of these answers. `answers`
    maps the index of a message to its candidates. None if a position is uncertain.

    The text between answers is tokenised as usual. A prompt thus consists of the previous prompt, the sampled ids, and the new
    text.
    """
    pieces = _split_at_answers(render, messages, text, sorted(answers))
    if pieces is None:
        return None
    ids, chosen, unclear = encode(pieces[0]), {}, set()
    for index, piece in zip(sorted(answers), pieces[1:], strict=True):
        chosen[index] = answer = _choose(answers[index], ids) or answers[index][0]
        if _choose(answers[index], ids) is None:
            unclear.add(index)
        remaining = _text_after(tokenizer, answer, piece)
        if remaining is None:
            return None
        ids += [*answer.completion_ids, *(encode(remaining) if remaining else [])]
    if not unclear:
        return ids, len(chosen)
    certain = {index: [answer] for index, answer in chosen.items() if index not in unclear}
    return splice(tokenizer, render, messages, text, certain, encode) if certain else None


def _choose(candidates: list[EarlierAnswer], ids: list[int]) -> EarlierAnswer | None:
    """The answer that was given to exactly this prompt; else the answer that all candidates agree on; else None."""
    digest = prompt_digest(ids)
    exact = next((answer for answer in reversed(candidates) if answer.prompt == digest), None)
    alike = len({answer.completion_ids for answer in candidates}) == 1
    return exact or (candidates[-1] if alike else None)


def _text_after(tokenizer: Any, answer: EarlierAnswer, piece: str) -> str | None:
    """The text after an answer, without the end token if the answer already contains it; None if the two do not match."""
    last = answer.completion_ids[-1]
    if last not in tokenizer.all_special_ids:
        return piece
    end = tokenizer.decode([last])
    return piece[len(end) :] if piece.startswith(end) else None


def _split_at_answers(render: Render, messages: list[Message], text: str, indices: list[int]) -> list[str] | None:
    """The text before, between and after the answers at `indices`. Text before an answer ends with the generation prompt. None if a
    position is uncertain."""
    plain = render(messages, False)
    prompt = text[len(plain) :]
    if not prompt.strip() or not text.startswith(plain):
        return None
    mark, replaced = secrets.token_hex(12), set(indices)
    stand_ins = {i: {"role": "assistant", "content": f"{mark}x{i}x"} for i in replaced}
    marked = render([stand_ins.get(i, message) for i, message in enumerate(messages)], True)
    *parts, remaining = re.split(f"{mark}x([0-9]+)x", marked)
    if [int(index) for index in parts[1::2]] != indices:  # each mark once, in order
        return None
    pieces = []
    for before in parts[::2]:
        cut = _turn_start(before, prompt)
        if cut is None:
            return None
        pieces.append(before[:cut])
    if not _in_order([*pieces, remaining], text):
        return None
    return [piece + prompt for piece in pieces] + [remaining]


def _turn_start(before: str, prompt: str) -> int | None:
    """Start of an answer's turn in the text before it; None if that text does not end with the generation prompt."""
    for header in (prompt, prompt[: prompt.find("\n") + 1]):
        start = before.rfind(header) if header.strip() else -1
        if start >= 0 and _EMPTY_THOUGHT.fullmatch(before, start + len(header)):
            return start
    return None


def _in_order(pieces: list[str], text: str) -> bool:
    """Whether `text` contains these pieces in order, so the marks have changed nothing but the answers."""
    *inner, last = pieces
    if not text.startswith(inner[0]) or not text.endswith(last):
        return False
    end = len(inner[0])
    for piece in inner[1:]:
        start = text.find(piece, end)
        if start < 0:
            return False
        end = start + len(piece)
    return end <= len(text) - len(last)
