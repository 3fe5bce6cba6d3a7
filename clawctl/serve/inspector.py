"""The process that looks through long request bodies: `python -m clawctl.serve.inspector SETTINGS`, see `vetting.py`.

It reads two parts at a time from standard input, each behind its length (4 bytes, big-endian): {"api", "max_context"} and a body.
It answers with one part: nothing, or the refusal as JSON. It ends with its input.
"""

import os
import resource
import signal
import sys
from typing import Any, BinaryIO

import orjson

from clawctl.serve.dialects import Refusal, chat, completions, messages, responses
from clawctl.serve.measure import CountTokens, check_ask, parse

_MOST_BYTES = 4 << 30  # of address space: a body that needs more is refused, and no machine dies of it
_READERS: dict[str, Any] = {
    "chat": chat.read,
    "responses": responses.read,
    "messages": messages.read,
    "count_tokens": messages.read_count,
    "completions": completions.read,
}


def main(settings: dict[str, Any], asked: BinaryIO, told: BinaryIO) -> None:
    count = None if settings["tokenizer"] is None else _counter(settings["tokenizer"])
    while len(length := asked.read(4)) == 4:
        head = orjson.loads(asked.read(int.from_bytes(length, "big")))
        raw = asked.read(int.from_bytes(asked.read(4), "big"))
        answer = _look(head, raw, settings["model"], count)
        told.write(len(answer).to_bytes(4, "big") + answer)
        told.flush()


def _look(head: dict[str, Any], raw: bytes, model: str, count: CountTokens | None) -> bytes:
    try:
        ask = _READERS[head["api"]](parse(raw), model)
        check_ask(ask, head["max_context"], count)
    except Refusal as refusal:
        said = {"status": refusal.status, "message": refusal.message, "param": refusal.param, "code": refusal.code}
        return orjson.dumps(said)
    except (MemoryError, RecursionError):
        return orjson.dumps({"status": 400, "message": "this request is too complex", "param": None, "code": None})
    return b""


def _counter(path: str) -> CountTokens:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    return lambda text: len(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for serve, whose end ends this
    os.nice(5)  # answers come first
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    main(orjson.loads(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
