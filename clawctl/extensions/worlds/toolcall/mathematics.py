"""Whether two written answers are mathematically the same, by math-verify (https://github.com/huggingface/Math-Verify).

    python -m clawctl.extensions.worlds.toolcall.mathematics     reads [wanted, reply] as JSON lines

It runs in a process of its own, because an answer such as a tower of powers can keep the algebra busy for ever.
"""

import json
import math
import re
import selectors
import subprocess
import sys
import threading
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any

from clawctl.config.environment import environment_of_program
from clawctl.extensions.worlds.toolcall.units import differ, is_quantity, number_of

_LONGEST_S = 10.0
_STARTS_S = 60.0  # sympy is imported
_LONGEST = 20_000  # characters of a reply, counted from its end
_POWER_OF_TEN = re.compile(r"(?<![\w.])(-?\d+(?:\.\d+)?)[eE]([+-]?\d+)\b")

_COUNTED = re.compile(r"(.*\d\}?)(?:\\[ ,;!]|\s)+(?:\\text\s?\{\s*)?([^\W\d_]{3,}(?: [^\W\d_]+)*)\s*\}?")  # 3 cups


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
    wanted, reply = (_POWER_OF_TEN.sub(r"\1 \\times 10^{\2}", text) for text in (wanted, reply))
    if differ(wanted, reply):
        return False
    box = re.fullmatch(r"\\boxed\{(.*)\}", reply, re.DOTALL)
    number = f"\\boxed{{{number_of(box[1])}}}" if box is not None else reply
    pairs = dict.fromkeys([(wanted, reply), (number_of(wanted), number)])
    counted = [_COUNTED.fullmatch(text) for text in (wanted, box[1] if box is not None else "")]
    if counted[0] and counted[1] and counted[0][2].casefold() == counted[1][2].casefold():
        pairs[counted[0][1], rf"\boxed{{{counted[1][1]}}}"] = None
    same = [_is_same(gold, text.replace("\\$", "")) for gold, text in pairs]
    return None if set(same) == {None} else True in same


def _is_same(wanted: str, reply: str) -> bool | None:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    latex = LatexExtractionConfig()
    if not is_quantity(wanted):  # the c of x + c is no unit
        latex = replace(latex, normalization_config=replace(latex.normalization_config, units=False))
    reading: dict[str, Any] = {"extraction_config": (latex, ExprExtractionConfig()), "parsing_timeout": None}
    for text in (f"\\boxed{{{wanted}}}", wanted):
        if gold := parse(text, **reading):
            given = parse(reply, **reading)
            return bool(verify(gold, given, timeout_seconds=None, float_rounding=_digits((*gold, *given))))
    return None


def _digits(parsed: tuple[Any, ...]) -> int:
    """How many digits after the point are compared: math-verify's six, and below a thousandth six from the first that is not 0."""
    sizes = (abs(float(number)) for number in parsed if getattr(number, "is_Number", False) and number.is_finite)
    return 5 - math.floor(min(-1, *(math.log10(size) for size in sizes if 0 < size < 0.001), -1))


if __name__ == "__main__":
    main()
