"""The process that evaluates grammars with llguidance: it computes the allowed next tokens, so that an answer matches a JSON
schema or is a tool call.

A client chooses the schema, and a schema can need any amount of time and memory: llguidance 1.7.6 tries to allocate 15 GB for a
hundred patterns, and aborts. Each answer therefore has its own process, forked from this one, which holds the tokenizer. Limits on
processor time and memory end only that process.

It imports nothing but llguidance, so that a fork is cheap. `grammars` describes the messages.
"""

import json
import os
import re
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

COMPILE_S = 0.5  # seconds of processor time until the first mask
STEP_S = 0.1  # seconds of processor time per token
_ALLOWANCE_S, _MEAN_STEP_S = 0.5, 0.004  # seconds of processor time in total; a request that needs more slows down the others
_MEMORY = 160 << 20  # bytes in addition to the tokenizer's memory
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 500_000, "step_lexer_fuel": 50_000, "step_max_items": 20_000, "max_lexer_states": 20_000,
    "max_grammar_size": 200_000, "precompute_large_lexemes": False, "verbose_errors": False,
}  # fmt: skip
# At most one space where JSON allows any amount of whitespace, so that an answer cannot get stuck in it.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?", "coerce_one_of": True}
_TOO_MUCH = ("too big", "too large", "too complex", "limit", "fuel")
DONE, FAILED = b"d", b"e"


class CannotCompile(Exception):
    """A grammar cannot be compiled or continued. The message is for the client."""


def lark(spec: dict[str, Any], marker: Callable[[str], str]) -> str:
    """The grammar of an answer: tool calls, or a JSON value, after reasoning without constraints. `marker`: the grammar's notation
    for a piece of the model's markup."""
    forms, rules = [], ["%llguidance {}"]
    for i, call in enumerate(spec["calls"]):
        head = json.dumps('{"name": ' + json.dumps(call["name"], ensure_ascii=False) + ', "arguments": ', ensure_ascii=False)
        rules.append(f"call_{i}: {head} arguments_{i} {json.dumps('}')}")
        rules.append(f"arguments_{i}: %json {_schema(call['schema'], call['strict'])}")
    if spec["calls"]:
        any_call = " | ".join(f"call_{i}" for i in range(len(spec["calls"])))
        rules.append(f"call: {marker(spec['begin'])} BLANK? ({any_call}) BLANK? {marker(spec['end'])}")
        forms.append("call" if spec["max_calls"] == 1 else f"call (BLANK? call){{0,{spec['max_calls'] - 1}}}")
    if spec["json"] is not None:
        rules.append(f"value: %json {_schema(spec['json'], spec['strict'])}")
        forms.append("value")
    reasoning = {"begun": "thought BLANK?", "possible": f"({marker(spec['think'])} thought BLANK?)?", "none": ""}[spec["reasoning"]]
    end = marker(spec["end_think"])
    thought = f"thought[suffix={end}]: /(?s:.*)/" if end.startswith('"') else f"thought: /(?s:.*)/ {end}"
    start = f"start: {reasoning} ({' | '.join(forms)})"
    return "\n".join([*rules, start, "BLANK: /[ \\n]{1,4}/", *([thought] if reasoning else [])])


def _schema(schema: Any, strict: bool) -> str:
    schema = schema if isinstance(schema, dict) else {"anyOf": [{}]} if schema is True else {"enum": []}
    return json.dumps({**schema, "x-guidance": {**_SPACING, "lenient": not strict}})


class Following:
    """Follows one answer. Methods raise CannotCompile."""

    def __init__(self, llguidance: Any, tokenizer: Any, spec: dict[str, Any]) -> None:
        self._began, self._steps = time.process_time(), 0
        self._size = 4 * ((tokenizer.vocab_size + 31) // 32)  # bytes of a mask
        limits = llguidance.LLParserLimits(**_LIMITS)
        for call in spec["calls"]:
            _check_call(llguidance, tokenizer, call, limits)
        self.grammar = lark(spec, lambda text: _marker(tokenizer, text))
        self._matcher = llguidance.LLMatcher(tokenizer, self.grammar, log_level=0, limits=limits)
        self._check()
        if spec["begun"] and not self._matcher.consume_tokens(tokenizer.tokenize_bytes(spec["begun"].encode())):
            raise CannotCompile("the message that the answer continues does not begin in this form")

    def _check(self) -> None:
        if self._matcher.is_error():
            raise CannotCompile(self._matcher.get_error())

    def mask(self) -> bytes:
        """The allowed next tokens: one bit per token of the vocabulary, lowest first. After the complete form, the end tokens."""
        mask: bytes = self._matcher.compute_bitmask()[: self._size]
        self._check()
        if not any(mask):
            raise CannotCompile("no token can continue the answer")
        return mask

    def advance(self, token: int) -> None:
        self._steps += 1
        if time.process_time() - self._began > _ALLOWANCE_S + _MEAN_STEP_S * self._steps:
            raise CannotCompile("it needs too much processor time")
        if not self._matcher.consume_token(token):
            raise CannotCompile(self._matcher.get_error() or "a token that was not allowed")


def _check_call(llguidance: Any, tokenizer: Any, call: dict[str, Any], limits: Any) -> None:
    """Allow any object as arguments if their schema cannot be expressed, unless the client requested `strict`."""
    grammar = llguidance.LLMatcher.grammar_from_json_schema(_schema(call["schema"], call["strict"]))
    problem = llguidance.LLMatcher.validate_grammar(grammar, tokenizer, limits=limits)
    if not problem or problem.startswith("WARNING"):
        return
    if call["strict"] or any(phrase in problem for phrase in _TOO_MUCH):
        raise CannotCompile(f"the parameters of tool {call['name'][:80]!r}: {_short(problem)}")
    call["schema"] = {"type": "object"}


def _marker(tokenizer: Any, text: str) -> str:
    """A piece of the model's markup in grammar syntax: a single token if the tokenizer has it as a special token."""
    ids = tokenizer.tokenize_str(text, parse_special=True)
    return f"<[{ids[0]}]>" if len(ids) == 1 and tokenizer.is_special_token(ids[0]) else json.dumps(text)


def _short(problem: str) -> str:
    """A problem on one line, without the grammar positions that the library adds."""
    plain = " ".join(problem.replace("<non-verbose/>", "").split())
    return re.sub(r"^at \d+\(\d+\): |failed to compile JSON schema: | 1 \| %llguidance.*$", "", plain)[:200]


def follow(llguidance: Any, tokenizer: Any, connection: Connection) -> None:
    """Serve one answer within the limits, until the other side closes the connection."""
    _limit_memory()
    signal.setitimer(signal.ITIMER_PROF, COMPILE_S)  # SIGPROF ends the process
    try:
        following = Following(llguidance, tokenizer, json.loads(connection.recv_bytes()))
        connection.send_bytes(DONE + following.grammar.encode())
        while True:
            connection.send_bytes(DONE + following.mask())
            signal.setitimer(signal.ITIMER_PROF, 0)
            (token,) = struct.unpack(">I", connection.recv_bytes())
            signal.setitimer(signal.ITIMER_PROF, STEP_S)
            following.advance(token)
    except EOFError:
        pass
    except (CannotCompile, ValueError) as error:
        connection.send_bytes(FAILED + _short(str(error)).encode())


def _limit_memory() -> None:
    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    except (OSError, ValueError):
        pass  # no /proc: macOS, where the limit on processor time also bounds memory
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(descriptor: int) -> None:
    """Load the tokenizer, then fork for each connection that arrives."""
    control, link = socket.socket(fileno=descriptor), Connection(os.dup(descriptor))
    settings = json.loads(link.recv_bytes())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a crashing child prints parts of the schema
    try:
        import llguidance

        tokenizer = llguidance.LLTokenizer(settings["tokenizer"], n_vocab=settings["vocabulary"], eos_token=settings["eos_ids"])
    except Exception as error:  # noqa: BLE001 - the edge of a process: the other side reports it
        link.send_bytes(FAILED + f"{type(error).__name__}: {str(error)[:300]}".encode())
        return
    link.send_bytes(DONE)
    link.close()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        if os.fork() == 0:
            control.close()
            try:
                follow(llguidance, tokenizer, Connection(descriptors[0]))
            finally:
                os._exit(0)
        os.close(descriptors[0])


if __name__ == "__main__":
    main(int(sys.argv[1]))
