"""The process that evaluates grammars: it computes the allowed next tokens, so that an answer matches a JSON schema or is a tool
call.

A client chooses the schema, and a schema can need any amount of time and memory: llguidance 1.7.6 tries to allocate 15 GB for a
hundred patterns, and aborts. Each answer therefore has its own process, forked from this one, which holds the tokenizer. Limits on
processor time and memory end only that process.

It imports nothing but llguidance, so that a fork is cheap. `grammars` describes the messages.
"""

import array
import json
import os
import re
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable
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
_MAX_BLANKS = 4  # tokens
_TOO_MUCH = ("too big", "too large", "too complex", "limit", "fuel")
FREE, MASK, FAILED = b"f", b"m", b"e"


class CannotCompile(Exception):
    """A grammar cannot be compiled. The message is for the client."""


def lark(spec: dict[str, Any], markers: dict[str, str]) -> str:
    """The grammar of an answer: tool calls, or a JSON value. `markers`: the grammar's notation for the tokens around a call."""
    ways, rules = [], ["%llguidance {}"]
    if spec["calls"]:
        for i, call in enumerate(spec["calls"]):
            head = json.dumps('{"name": ' + json.dumps(call["name"], ensure_ascii=False) + ', "arguments": ', ensure_ascii=False)
            rules.append(f"call_{i}: {head} arguments_{i} {json.dumps('}')}")
            rules.append(f"arguments_{i}: %json {_schema(call['schema'], call['strict'])}")
        any_call = " | ".join(f"call_{i}" for i in range(len(spec["calls"])))
        rules.append(f"call: {markers['begin']} BLANK? ({any_call}) BLANK? {markers['end']}")
        ways.append("call" if spec["max_calls"] == 1 else f"call (BLANK? call){{0,{spec['max_calls'] - 1}}}")
    if spec["json"] is not None:
        rules.append(f"value: %json {_schema(spec['json'], spec['strict'])}")
        ways.append("value")
    return "\n".join([*rules, f"start: {' | '.join(ways)}", "BLANK: /[ \\n]{1,2}/"])


def _schema(schema: Any, strict: bool) -> str:
    schema = schema if isinstance(schema, dict) else {"anyOf": [{}]} if schema is True else {"enum": []}
    return json.dumps({**schema, "x-guidance": {**_SPACING, "lenient": not strict}})


class Following:
    """Follows one answer. `next` and `advance` return the message for the other side."""

    def __init__(self, llguidance: Any, tokens: "TokenTable", spec: dict[str, Any]) -> None:
        """Compile the grammar of a specification. Raises CannotCompile."""
        self._tokens, self._tokenizer = tokens, tokens.tokenizer
        self._words = (tokens.vocabulary + 31) // 32
        self._blanks = 0  # whitespace tokens still allowed between reasoning and answer
        self._think, self._end_think = spec["think"], spec["end_think"].encode()
        self._thinking, self._may_think, self._recent_text = bool(spec["thinking"]), bool(spec["may_think"]), b""
        self._reasoning_ended = False
        self._began, self._steps = time.process_time(), 0
        limits = llguidance.LLParserLimits(**_LIMITS)
        markers = {name: _marker(self._tokenizer, spec[name]) for name in ("begin", "end")}
        for call in spec["calls"]:
            self._check_call(llguidance, call, limits)
        self._matcher = llguidance.LLMatcher(self._tokenizer, lark(spec, markers), log_level=0, limits=limits)
        self._check()
        if spec["begun"] and not self._matcher.consume_tokens(self._tokenizer.tokenize_bytes(spec["begun"].encode())):
            raise CannotCompile("the message that the answer continues does not begin in this form")

    def _check_call(self, llguidance: Any, call: dict[str, Any], limits: Any) -> None:
        """Allow any object as arguments if their schema cannot be expressed, unless the client requested `strict`."""
        grammar = llguidance.LLMatcher.grammar_from_json_schema(_schema(call["schema"], call["strict"]))
        problem = llguidance.LLMatcher.validate_grammar(grammar, self._tokenizer, limits=limits)
        if not problem or problem.startswith("WARNING"):
            return
        if call["strict"] or any(word in problem for word in _TOO_MUCH):
            raise CannotCompile(f"the parameters of tool {call['name'][:80]!r}: {_short(problem)}")
        call["schema"] = {"type": "object"}

    def _check(self) -> None:
        if self._matcher.is_error():
            raise CannotCompile(_short(self._matcher.get_error()))

    def next(self) -> bytes:
        """The message with the tokens allowed next. Reasoning is unconstrained, except that the answer cannot end in it."""
        if self._thinking:
            return MASK + self._tokens.but_ends
        matcher = self._matcher
        if matcher.is_stopped() and not matcher.is_error() and matcher.is_accepting():
            return MASK + self._with(array.array("I", bytes(4 * self._words)), self._tokens.eos_ids)
        data = array.array("I", matcher.compute_bitmask()[: 4 * self._words].ljust(4 * self._words, b"\0"))
        if matcher.is_error():
            return _failure(_short(matcher.get_error()))
        if not any(data):
            return _failure("no token can continue the answer")
        return MASK + self._with(data, ([self._think] if self._may_think else []) + (self._tokens.blanks if self._blanks else []))

    def advance(self, token: int) -> bytes:
        """The message with the tokens allowed after `token`."""
        self._steps += 1
        if time.process_time() - self._began > _ALLOWANCE_S + _MEAN_STEP_S * self._steps:
            return _failure("it needs too much processor time")
        if self._may_think and token == self._think:
            self._thinking = True
        elif self._thinking:
            self._continue_reasoning(token)
        elif self._blanks and token in self._tokens.blanks:
            self._blanks -= 1
            return self.next()
        elif not self._matcher.consume_token(token):
            return _failure(_short(self._matcher.get_error()) or "a token that was not allowed")
        self._may_think = False
        self._blanks = _MAX_BLANKS if self._reasoning_ended else 0
        self._reasoning_ended = False
        return self.next()

    def _continue_reasoning(self, token: int) -> None:
        self._recent_text = self._recent_text[-len(self._end_think) :] + self._tokenizer.decode_bytes([token])
        start = self._recent_text.find(self._end_think)
        if start < 0:
            return
        self._thinking, self._reasoning_ended = False, True
        remaining = self._recent_text[start + len(self._end_think) :]
        if remaining.strip():
            self._matcher.consume_tokens(self._tokenizer.tokenize_bytes(remaining))

    def _with(self, data: "array.array[int]", ids: Iterable[int]) -> bytes:
        """The mask with `ids` allowed as well."""
        for token in ids:
            data[token >> 5] |= 1 << (token & 31)
        return data.tobytes()


def _marker(tokenizer: Any, text: str) -> str:
    """A piece of the model's markup in grammar syntax: a single token if the tokenizer has it as a special token."""
    ids = tokenizer.tokenize_str(text, parse_special=True)
    return f"<[{ids[0]}]>" if len(ids) == 1 and tokenizer.is_special_token(ids[0]) else json.dumps(text)


def _short(problem: str) -> str:
    """A problem on one line, without the grammar positions that the library adds."""
    plain = " ".join(problem.replace("<non-verbose/>", "").split())
    return re.sub(r"^at \d+\(\d+\): |failed to compile JSON schema: | 1 \| %llguidance.*$", "", plain)[:200]


def _failure(problem: str) -> bytes:
    data = problem.encode()[:1000]
    return FAILED + struct.pack(">H", len(data)) + data


class TokenTable:
    """The model's vocabulary."""

    def __init__(self, llguidance: Any, settings: dict[str, Any]) -> None:
        self.vocabulary: int = settings["vocabulary"]
        self.eos_ids: list[int] = settings["eos_ids"]
        self.tokenizer: Any = llguidance.LLTokenizer(settings["tokenizer"], n_vocab=self.vocabulary, eos_token=self.eos_ids)
        self.but_ends = _all_but(self.eos_ids, self.vocabulary)
        self.blanks = [token for token in range(self.vocabulary) if self._is_blank(token)]

    def _is_blank(self, token: int) -> bool:
        text = self.tokenizer.decode_bytes([token])
        return bool(text) and not text.strip(b" \n") and not self.tokenizer.is_special_token(token)


def _all_but(ids: Iterable[int], vocabulary: int) -> bytes:
    """The mask of all tokens except `ids`."""
    word_count = (vocabulary + 31) // 32
    data = array.array("I", [0xFFFFFFFF]) * word_count
    for token in (*ids, *range(vocabulary, 32 * word_count)):
        data[token >> 5] &= ~(1 << (token & 31)) & 0xFFFFFFFF
    return data.tobytes()


def follow(llguidance: Any, tokens: TokenTable, connection: socket.socket) -> None:
    """Serve one answer on `own`, within the limits, until the other side closes the connection."""
    _limit_memory()
    signal.setitimer(signal.ITIMER_PROF, COMPILE_S)  # SIGPROF ends the process
    with connection, connection.makefile("rb") as reading:
        spec = json.loads(reading.read(struct.unpack(">I", reading.read(4))[0]))
        try:
            following = Following(llguidance, tokens, spec)
            connection.sendall(following.next())
        except (CannotCompile, ValueError) as error:
            connection.sendall(_failure(_short(str(error))))
            return
        while len(data := reading.read(4)) == 4:
            signal.setitimer(signal.ITIMER_PROF, STEP_S)
            connection.sendall(following.advance(struct.unpack(">I", data)[0]))
            signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory() -> None:
    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    except (OSError, ValueError):
        pass  # no /proc: macOS, where the limit on processor time also bounds memory
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(descriptor: int) -> None:
    """Load the tokenizer, then fork for each socket that arrives."""
    control = socket.socket(fileno=descriptor)
    with control.makefile("rb") as reading:
        settings = json.loads(reading.read(struct.unpack(">I", reading.read(4))[0]))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a crashing child prints parts of the schema
    try:
        import llguidance

        tokens = TokenTable(llguidance, settings)
    except Exception as error:  # noqa: BLE001 - the edge of a process: the other side reports it
        control.sendall(_failure(f"{type(error).__name__}: {str(error)[:300]}"))
        return
    control.sendall(FREE)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        if os.fork() == 0:
            control.close()
            try:
                follow(llguidance, tokens, socket.socket(fileno=descriptors[0]))
            finally:
                os._exit(0)
        os.close(descriptors[0])


if __name__ == "__main__":
    main(int(sys.argv[1]))
