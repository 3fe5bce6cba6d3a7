"""Variants of recorded conversations, with the tree that they keep: what another client, or tomorrow's, could send instead.

A variant changes all requests of a recording in one way that a client could: it adds text to its newest user message and drops it
later, issues ids of its own, offers no tools, names no session, merges adjacent user messages, changes the arguments of calls, or
clears earlier results.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from clawctl.collect.canonical import text_of
from clawctl.collect.sessions import Sessions
from clawctl.run.rows import Exchange, Message

Recorded = dict[str, Exchange]
ADDED = (
    "Reply in English.",
    "<reminder>\nThe task list is empty.\n</reminder>",
    "<context>\nToday is Friday.\nThe folder is /srv/app.\n</context>",
    "Time: 2026-11-26 10:{number:02}",
    "Remember: answer briefly, and ask before you change a file.",
)


def newest_text(exchange: Exchange) -> int | None:
    """The place of the newest user message that is a text, if it is newer than every answer."""
    for index in range(len(exchange.messages) - 1, -1, -1):
        message = exchange.messages[index]
        if message["role"] == "assistant":
            break
        if message["role"] == "user" and isinstance(message["content"], str):
            return index
    return None


def added_text(exchanges: Recorded, draw: random.Random) -> Recorded:
    """Each request has text in its newest user message that later requests lack."""
    text, first = draw.choice(ADDED), draw.random() < 0.5

    def changed(exchange: Exchange) -> Exchange:
        index = newest_text(exchange)
        if index is None:
            return exchange
        content = exchange.messages[index]["content"]
        messages = [dict(message) for message in exchange.messages]
        added = text.format(number=len(messages))
        messages[index]["content"] = f"{added}\n\n{content}" if first else f"{content}\n\n{added}"
        return replace(exchange, messages=messages)

    return {name: changed(exchange) for name, exchange in exchanges.items()}


def foreign_ids(exchanges: Recorded, draw: random.Random) -> Recorded:
    """The client gives tool calls ids of its own, in later requests only."""
    ids: dict[str, str] = {}

    def foreign(name: str) -> str:
        return ids.setdefault(name, f"toolu_{draw.getrandbits(60):015x}")

    def renamed(message: Message) -> Message:
        message = dict(message)
        if message.get("tool_calls"):
            message["tool_calls"] = [{**call, "id": foreign(str(call.get("id")))} for call in message["tool_calls"]]
        if "tool_call_id" in message:
            message["tool_call_id"] = foreign(str(message["tool_call_id"]))
        message.pop("handle", None)
        return message

    return {name: replace(e, messages=[renamed(message) for message in e.messages]) for name, e in exchanges.items()}


def changed_arguments(exchanges: Recorded, draw: random.Random) -> Recorded:
    """The client adds a default to the arguments of tool calls that it sends back."""

    def changed(message: Message) -> Message:
        calls = message.get("tool_calls") or []
        parsed = [{**call, "function": {**call["function"], "arguments": _with_default(call["function"])}} for call in calls]
        return {**message, "tool_calls": parsed} if calls else message

    return {name: replace(e, messages=[changed(message) for message in e.messages]) for name, e in exchanges.items()}


def _with_default(function: Mapping[str, Any]) -> str:
    try:
        return json.dumps({**json.loads(function["arguments"]), "timeout": 30})
    except (ValueError, TypeError):
        return str(function["arguments"])


def cleared_results(exchanges: Recorded, draw: random.Random) -> Recorded:
    """Tool results in front of the last answer are cleared."""

    def cleared(messages: list[Message]) -> list[Message]:
        last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=0)
        return [
            {**message, "content": "[cleared]"} if message["role"] == "tool" and index < last else message
            for index, message in enumerate(messages)
        ]

    return {name: replace(exchange, messages=cleared(exchange.messages)) for name, exchange in exchanges.items()}


def no_tools(exchanges: Recorded, draw: random.Random) -> Recorded:
    return {name: replace(exchange, tools=None) for name, exchange in exchanges.items()}


def merged_messages(exchanges: Recorded, draw: random.Random) -> Recorded:
    """Adjacent user messages are one."""

    def merged(messages: list[Message]) -> list[Message]:
        together: list[Message] = []
        for message in messages:
            last = together[-1] if together else {}
            texts = last.get("content"), message.get("content")
            if last.get("role") == message["role"] == "user" and all(isinstance(text, str) for text in texts):
                together[-1] = {**last, "content": "\n\n".join(map(str, texts))}
            else:
                together.append(message)
        return together

    return {name: replace(exchange, messages=merged(exchange.messages)) for name, exchange in exchanges.items()}


def joined_later(exchanges: Recorded, draw: random.Random) -> Recorded:
    """Adjacent user messages are one, but not the newest ones."""

    def joined(exchange: Exchange) -> Exchange:
        last = max((index for index, message in enumerate(exchange.messages) if message["role"] == "assistant"), default=0)
        earlier = merged_messages({"": replace(exchange, messages=exchange.messages[:last])}, draw)[""].messages
        return replace(exchange, messages=[*earlier, *exchange.messages[last:]])

    return {name: joined(exchange) for name, exchange in exchanges.items()}


CHANGES: dict[str, Callable[[Recorded, random.Random], Recorded]] = {
    "added text": added_text, "foreign ids": foreign_ids, "no tools": no_tools, "merged messages": merged_messages,
    "changed arguments": changed_arguments, "cleared results": cleared_results,
}  # fmt: skip


def _content(exchange: Exchange) -> tuple[Any, ...]:
    """A request and its answer without ids. Without handles, nothing distinguishes two that are equal."""

    def said(message: Message | None) -> Any:
        calls = (message or {}).get("tool_calls") or ()
        return text_of((message or {}).get("content")), *(str(call.get("function")) for call in calls)

    return *map(said, exchange.messages), said(exchange.response)


def wrong_turns(exchanges: Recorded, trees: Mapping[str, Mapping[str, Any]], with_hints: bool) -> list[str]:
    """The requests whose parent, kind or next state is not the tree's, with what is wrong."""
    sessions = Sessions(3600.0)
    for exchange in exchanges.values():
        sessions.add(exchange)
    sessions.tick(1e12)
    rows = {row.turn_id: row for row in sessions.pop_rows()}
    names = {exchange.exchange_id: name for name, exchange in exchanges.items()}
    alike = {name: _content(exchange) for name, exchange in exchanges.items()}
    twins = {content for content, times in Counter(alike.values()).items() if times > 1}
    wrong = []
    for name, tree in trees.items():
        expected = {**tree, **({} if with_hints else tree.get("without_session", {}))}
        row = rows[exchanges[name].exchange_id]
        came = "\n\n".join(f"{message['role']}: {text_of(message['content'])}" for message in row.next_state or ())
        begins = [begin[:40].partition(": ")[2] for begin in expected["next_state"] or ()]
        parent = names.get(row.parent_turn_id or "")
        problems = {
            "parent": parent != expected["parent"] and alike.get(parent or "") != alike.get(expected["parent"] or "", ()),
            "kind": row.kind != expected["kind"],
            "next state": alike[name] not in twins
            and ((row.next_state is None) != (expected["next_state"] is None) or any(b not in came for b in begins)),
        }
        wrong += [f"{name}: {what}" for what, is_wrong in problems.items() if is_wrong]
    return wrong


def variants(
    recorded: Callable[[str, bool, bool], Recorded], trees: Mapping[str, Mapping[str, Any]], count: int, seed: int = 0
) -> tuple[int, int, list[str]]:
    """Stitch `count` variants of the clients in `trees`. Returns how many have a wrong parent or next state, how many a wrong kind,
    and a description of each."""
    draw, mistakes, links, kinds = random.Random(seed), list[str](), 0, 0
    for number in range(count):
        client = sorted(trees)[number % len(trees)]
        with_hints, with_handles = draw.random() < 0.5, draw.random() < 0.5
        chosen = draw.sample(sorted(CHANGES), draw.randint(1, len(CHANGES)))
        exchanges = recorded(client, with_hints, with_handles)
        for name in chosen:
            exchanges = CHANGES[name](exchanges, draw)
        if wrong := wrong_turns(exchanges, trees[client], with_hints):
            links += any(not problem.endswith("kind") for problem in wrong)
            kinds += any(problem.endswith("kind") for problem in wrong)
            settings = ["hints"] * with_hints + ["handles"] * with_handles
            mistakes.append(f"{client} ({', '.join([*settings, *sorted(chosen)])}): {'; '.join(wrong)}")
    return links, kinds, mistakes
