"""Questions and their answers: arithmetic drawn by clawctl, reasoning-gym's families, or the rows of a file."""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clawctl.errors import ClawError
from clawctl.extensions.worlds.splits import ROWS_ARE, read_each, read_rows
from clawctl.extensions.worlds.toolcall.as_written import (
    BOXED,
    TEXT,
    UNSURE,
    bare,
    choice_and_value,
    grouped,
    is_literal,
    is_refused,
    normal,
    same_kind,
)
from clawctl.extensions.worlds.toolcall.mathematics import verifier
from clawctl.extensions.worlds.toolcall.number_words import in_digits
from clawctl.extensions.worlds.toolcall.tools import CALCULATOR, PYTHON, checked
from clawctl.extensions.worlds.verdicts.python_code import is_same
from clawctl.extensions.worlds.wording import Wording, read_wording

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_CHOICE = re.compile(r"\(([A-Z])\)")
_WORDS = re.compile(r"[^\W\d_]+(?:[ '-][^\W\d_]+)*")  # an answer in words, or a single letter
_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{[^{}]*\}|\\[A-Za-z]+")
_RATIO = re.compile(r"\d+(?::\d+)+")  # a ratio, or a time
_SPACED_RATIO = re.compile(r"(?<=\d)\s*:\s*(?=\d)")
_SUM = re.compile(r"\(*\d+[()\s]*(?:(?:[-+*/×]|\\(?:times|cdot))[()\s]*\d+[()\s]*)+")  # 3 + 4 * (5 - 2)
_OPENS = re.compile(r"[\[{]")
_ONE = _NUMBER.pattern
_EITHER = re.compile(rf"(?:{_ONE},?[ ]+)*{_ONE},?[ ]+(?:or|and/or)[ ]+{_ONE}\W*$|\bbetween[ ]+{_ONE}[ ]+and[ ]+{_ONE}\W*$")
_LISTED = re.compile(rf"(?:^|[:=]|\b(?:is|are|be)\b)[ ]*(?!\d+ \d+/)(?:{_ONE}(?:[,;]?[ ]+(?:and[ ]+)?|,))+{_ONE}\W*$", re.MULTILINE)
_DENIED = re.compile(rf"(?:\b(?:not|never|maybe|perhaps|possibly)|n't)(?: be)?[ ]+\$?{_ONE}\W*$", re.IGNORECASE)
_SOLVED = re.compile(rf"\b([a-z])\s*=\s*({_ONE})")  # x = -3, x = 0 and x = 3
_MAY = re.compile(r"\b(?:could|might|may|can) be\b", re.IGNORECASE)
_BESIDE = re.compile(r"(?:[\s$.,;*]|\bor\b|\band\b|\\text\{\s*(?:or|and)\s*\})*")  # between two boxes that are both the answer
_RELATION = re.compile(r"\\(?:(?:long)?rightarrow|to|lor|vee|geq?|leq?|neq?)\b|[<>≤≥≠→]")
_ANSWERS = ("answer", "Answer", "final_answer", "expected_answer", "solution")
_CURE = "each row needs a question (question, problem or prompt) and an answer (answer, solution or reward_model.ground_truth)"


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its answer or its expected calls."""

    name: str
    text: str
    answer: str | None = None
    calls: tuple[Mapping[str, Any], ...] | None = None  # BFCL: the expected calls, in place of an answer
    any_call: bool = False  # BFCL's relevance category: at least one call, whichever it is
    tools: tuple[dict[str, Any], ...] = ()
    expression: str | None = None  # of drawn arithmetic: what the calculator has to compute
    entry: Any = field(default=None, compare=False)  # reasoning-gym's entry, which its scoring function needs

    @property
    def digest(self) -> int:
        """A number from 0 to 255, by a hash of the content."""
        return sha256(f"{self.name}\n{self.text}".encode()).digest()[0]


def draw_question(number: int, wording: Wording | None = None) -> Question:
    """Draw arithmetic: two to four numbers below 100, or with new words four or five below 1000. The same `number` always gives
    the same question. Without `wording`, it is one of training."""
    wording = wording or read_wording()
    draw = random.Random(f"toolcall {number}")
    counts, below = ((4, 5), 1000) if wording.is_new else ((2, 2, 3, 4), 100)
    count = draw.choice(counts)
    expression = str(draw.randrange(2, below))
    for _ in range(count - 1):
        expression += f" {draw.choice('+-*')} {draw.randrange(2, below)}"
    if count > 2 and draw.random() < 0.3:
        first, sign, second, rest = expression.split(" ", 3)
        expression = f"({first} {sign} {second}) {rest}"
    text = wording.prompt("toolcall.arithmetic", draw, expression=expression)
    answer = str(eval(expression))  # evaluates this function's own text
    return Question(f"arithmetic-{number}", text, answer, tools=(CALCULATOR,), expression=expression)


def gym_questions(families: list[str], count: int, number: int) -> list[Question]:
    """Questions from each family of reasoning-gym. Raises ClawError (exit code 2) if the package or a family does not exist."""
    if find_spec("reasoning_gym") is None:
        raise ClawError("the package reasoning-gym is not installed", "run `pip install reasoning-gym`", 2)
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    unknown = [name for name in families if name not in DATASETS]
    if unknown:
        raise ClawError(f"reasoning-gym has no family {', '.join(unknown)}", f"choose from {', '.join(sorted(DATASETS))}", 2)
    per_family = -(-count // len(families))
    questions = []
    for family in families:
        data = reasoning_gym.create_dataset(family, size=per_family, seed=number)
        for index in range(per_family):
            entry = data[index]
            questions.append(
                Question(
                    f"{family}-{number}-{index}", entry["question"], str(entry["answer"]), tools=(PYTHON,), entry=(family, entry)
                )
            )
    return questions[:count]


def read_questions(path: Path, bad: list[tuple[Any, ClawError]] | None = None) -> list[Question]:
    """The rows of a JSON-lines, JSON or Parquet file in the formats of DAPO, AIME, GSM8K and BFCL.

    For BFCL, the ground truth is in the file of the same name in the folder `possible_answer/` next to this file. `bad`: see
    `read_each`, with the number of each row. Raises ClawError (exit code 2).
    """
    try:
        rows = read_rows(path)
        answers_file = path.parent / "possible_answer" / path.name
        answers = {str(row["id"]): row["ground_truth"] for row in read_rows(answers_file)} if answers_file.exists() else {}
    except (OSError, ValueError, KeyError) as error:
        raise ClawError(f"{path} cannot be read as questions: {error}", ROWS_ARE, 2) from error
    return read_each(enumerate(rows), lambda numbered: _question(numbered[1], numbered[0], path, answers), bad)


def _question(row: dict[str, Any], number: int, path: Path, answers: dict[str, Any]) -> Question:
    name = str(row.get("id", row.get("ID", f"{path.stem}-{number}")))
    row = {**(row.get("responses_create_params") or {}), **row}  # NeMo Gym's: `input` has the messages
    text = _text_of(next((row[key] for key in ("question", "problem", "Problem", "prompt", "input") if row.get(key)), ""))
    if "function" in row:
        is_relevance, is_irrelevance = "_relevance" in path.stem, "irrelevance" in path.stem
        if name not in answers and not (is_relevance or is_irrelevance):
            raise ClawError(f"the question {name} of {path} has no verdict", "put BFCL's possible_answer/ next to the file", 2)
        tools = tuple(checked(tool, f"a function of the question {name}") for tool in row["function"])
        return Question(name, text, calls=tuple(answers.get(name, ())), tools=tools, any_call=is_relevance)
    model = row.get("reward_model")
    answer = model.get("ground_truth") if isinstance(model, dict) else None
    if answer is None:
        answer = next((row[key] for key in _ANSWERS if row.get(key) is not None), None)
    if not text or answer is None:
        raise ClawError(f"row {number + 1} of {path} has no {'verdict' if text else 'question'}", _CURE, 2)
    boxed = BOXED.findall(str(answer))
    return Question(name, text, boxed[-1] if boxed else str(answer).split("####")[-1].strip(), tools=(PYTHON,))


def _text_of(messages: Any) -> str:
    """A text, or the last of several chat messages. The messages may be in a list of turns."""
    while isinstance(messages, list) and messages:
        messages = messages[-1]
    return str(messages.get("content", "") if isinstance(messages, dict) else messages or "").strip()


def is_right(reply: str, question: Question) -> bool:
    """Whether a reply gives the answer."""
    return decide(reply, question)[0]


def decide(reply: str, question: Question) -> tuple[bool, str]:
    """Whether a reply gives the answer, and what decided: "reasoning-gym", "JSON", "math-verify" or "text".

    The answer is in the reply's last box; without a box, math-verify looks for it. Where it is not installed, or the wanted answer
    is no mathematics, the last number or the last line counts.
    """
    if question.answer is None:
        return False, "text"
    if question.expression is not None:
        reply = _SUM.sub("", reply)  # a sum that is only repeated has the right value, and is no answer
    if parts := choice_and_value(question.answer.strip()):
        return max(decide(reply, replace(question, answer=answer)) for answer in parts)
    wanted = normal(grouped(question.answer.strip()))
    reply = reply if "," in wanted else grouped(reply)  # a wanted 3,5 has a decimal comma, or is a list
    reply = BOXED.sub(lambda box: rf"\boxed{{{normal(_chosen(box[1], wanted))}}}", reply)
    boxed = BOXED.findall(reply)
    if not boxed:
        reply = bare(reply)
        boxed = BOXED.findall(reply)
    if choice := _CHOICE.fullmatch(TEXT.sub(r"\1", wanted).strip()):
        wanted = choice[1]
    wanted = in_digits(wanted) if in_digits(wanted).isdigit() else wanted
    if question.entry is not None:
        import reasoning_gym

        family, entry = question.entry
        answer = boxed[-1] if boxed else reply.strip().splitlines()[-1].strip() if reply.strip() else ""
        if answer and float(reasoning_gym.get_score_answer_fn(family)(answer, entry)) >= 1:
            return True, "reasoning-gym"
    if is_refused(reply):
        return False, "text"
    if (same := same_kind(reply, wanted)) is not None:
        return same, "text"
    if wanted[:1] in ("{", "[") and (value := _json_in(wanted)) is not None:
        given = _json_in(boxed[-1] if boxed else reply)
        return given is not None and is_same(given, value), "JSON"
    if _RATIO.fullmatch(ratio := _SPACED_RATIO.sub(":", wanted)):
        return _RATIO.findall(_SPACED_RATIO.sub(":", boxed[-1] if boxed else reply))[-1:] == [ratio], "text"
    if _WORDS.fullmatch(wanted):
        reply, boxed = _CHOICE.sub(r"\1", reply), [_CHOICE.sub(r"\1", TEXT.sub(r"\1", box)) for box in boxed]
    elif wanted.isdigit() and not re.search(r"\d", boxed[-1] if boxed else reply):
        reply, boxed = in_digits(reply), [in_digits(TEXT.sub(r"\1", box)) for box in boxed]
    given = _given(reply, boxed, wanted)
    if len(given) == 1 and is_literal(reply, wanted) and not UNSURE.search(reply.strip().rpartition("\n")[2].replace(wanted, "")):
        return True, "text"
    if _WORDS.fullmatch(wanted) is None and (mathematics := verifier()) is not None:
        verdicts = [mathematics.is_same(wanted, text) for text in given]
        if None not in verdicts:
            return all(verdicts) and bool(verdicts), "math-verify"
    return bool(given) and all(_is_right_as_text(text, BOXED.findall(text), wanted) for text in given), "text"


def _chosen(text: str, wanted: str) -> str:
    """Of a box with a choice and its value, what was wanted."""
    parts = choice_and_value(text)
    return parts[not _CHOICE.fullmatch(TEXT.sub(r"\1", wanted).strip()) and len(wanted) > 1] if parts else text


def _given(reply: str, boxed: list[str], wanted: str) -> list[str]:
    """The answers of a reply, each of which has to be right: one that names several has not decided. Empty: it denies its answer.

    They are its last boxes, with nothing but "or" between them, the sides of an equation in the box, or numbers that it lists.
    """
    solved = _SOLVED.findall(reply.strip().rpartition("\n")[2]) if not boxed and re.search(r"\\\{|,", wanted) else []
    if len(solved) > 1 and len({name for name, _ in solved}) == 1:
        return [rf"\boxed{{\{{{', '.join(value for _, value in solved)}\}}}}"]
    if not boxed and (not re.search(r"\d", wanted) or (number_in(wanted) is None and re.search(r"[,;]|\bor\b", wanted))):
        return [reply]
    if not boxed:
        last = reply.strip().rpartition("\n")[2].replace("\\$", "")
        listed = _EITHER.search(last) or _LISTED.search(last)
        return (
            []
            if _DENIED.search(last) or _MAY.search(last)
            else [rf"\boxed{{{side}}}" for side in _NUMBER.findall(listed[0])]
            if listed
            else [reply]
        )
    boxes, count = list(BOXED.finditer(reply)), 1
    while count < len(boxes) and _BESIDE.fullmatch(reply, boxes[-count - 1].end(), boxes[-count].start()):
        count += 1
    sides = [side for side in boxed[-1].split("=") if re.search(r"\d", side) and not re.search(r"[A-Za-z]", _COMMAND.sub("", side))]
    if "=" in wanted or _RELATION.search(wanted):
        sides = []
    elif _RELATION.search(boxed[-1]):
        return []
    return [rf"\boxed{{{text.strip()}}}" for text in (*boxed[-count:], *(sides if len(sides) > 1 else ()))]


def _json_in(text: str) -> Any:
    """The last JSON object or list in a text. None if there is none."""
    decoder, value, start = json.JSONDecoder(), None, 0
    while (match := _OPENS.search(text, start)) is not None:
        try:
            value, start = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            start = match.end()
    return value


def _is_right_as_text(reply: str, boxed: list[str], wanted: str) -> bool:
    number = number_in(wanted)
    if boxed:
        return boxed[-1].strip() == wanted or (number is not None and number_in(boxed[-1]) == number)
    if number is None:
        lines = reply.strip().splitlines()
        last = lines[-1].strip().strip("*$.! ") if lines else ""
        if wanted.lower() in (last.lower(), last.split(":")[-1].strip().lower()):
            return True
        if len(wanted) == 1 and re.match(rf"\(?{wanted}[).:]\s", last) and len(set(re.findall(r"\b[A-Z]\b", last))) == 1:
            return True  # B) 42 meters
        ends = re.search(rf"(?<![-−])\b{re.escape(wanted)}$", last, 0 if len(wanted) == 1 else re.IGNORECASE)
        return ends is not None and UNSURE.search(last) is None
    numbers = _NUMBER.findall(reply)
    return bool(numbers) and number_in(numbers[-1]) == number


def number_in(text: str) -> float | None:
    """The number in a text that is a single number: "1,024", "3/4", "-2.50". None otherwise."""
    match = _NUMBER.fullmatch(text.strip().strip("$").rstrip(".").strip())
    if match is None:
        return None
    above, _, below = match[0].replace(",", "").partition("/")
    return round(float(above) / float(below or 1), 9) if float(below or 1) else None
