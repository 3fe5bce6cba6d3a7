"""Whether two written answers are mathematically the same, by math-verify (https://github.com/huggingface/Math-Verify).

    python -m clawctl.extensions.worlds.toolcall.mathematics     reads [wanted, reply] as JSON lines

It runs in a process of its own, because an answer such as a tower of powers can keep the algebra busy for ever.
"""

import json
import selectors
import subprocess
import sys
import threading
from functools import cache
from importlib.util import find_spec

from clawctl.config.environment import environment_of_program

_LONGEST_S = 10.0
_STARTS_S = 60.0  # sympy is imported
_LONGEST = 20_000  # characters of a reply, counted from its end


class Verifier:
    """The process that compares. It starts with the first answer, and again after an answer that took too long."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def is_same(self, wanted: str, reply: str) -> bool | None:
        """Whether the reply's answer equals the wanted one. None if the wanted answer is no mathematics that math-verify parses.

        An answer that cannot be compared within ten seconds is not the same.
        """
        with self._lock:
            limit = _LONGEST_S if self._process is not None else _STARTS_S
            if self._process is None:
                command = [sys.executable, "-P", "-m", "clawctl.extensions.worlds.toolcall.mathematics"]
                self._process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-3, env=environment_of_program())
            process = self._process
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps([wanted, reply[-_LONGEST:]]).encode() + b"\n")
                process.stdin.flush()
                with selectors.DefaultSelector() as waiting:
                    waiting.register(process.stdout, selectors.EVENT_READ)
                    answer = process.stdout.readline() if waiting.select(limit) else b""
                same: bool | None = json.loads(answer)
                return same
            except (OSError, ValueError):
                process.kill()
                process.communicate()
                self._process = None
                return False


@cache
def verifier() -> Verifier | None:
    """The process of this one. None if math-verify is not installed."""
    return Verifier() if find_spec("math_verify") is not None else None


def main() -> None:
    import logging

    logging.disable()
    for line in sys.stdin:
        try:
            answer = compare(*json.loads(line))
        except Exception:  # noqa: BLE001 sympy, on a text of the policy
            answer = False
        print(json.dumps(answer), flush=True)


def compare(wanted: str, reply: str) -> bool | None:
    from math_verify import parse, verify

    for text in (f"\\boxed{{{wanted}}}", wanted):
        if gold := parse(text, parsing_timeout=None):
            return bool(verify(gold, parse(reply, parsing_timeout=None), timeout_seconds=None))
    return None


if __name__ == "__main__":
    main()
