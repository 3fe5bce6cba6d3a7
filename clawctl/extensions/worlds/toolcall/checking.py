"""Checks questions and their answers: the right answer has to count, and no answer must not."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clawctl.environments.checking import CheckedTask
from clawctl.errors import ClawError
from clawctl.extensions.worlds.checking import left_out
from clawctl.extensions.worlds.toolcall.calls import CATEGORIES, FORMER, is_same_call, plain_name
from clawctl.extensions.worlds.toolcall.questions import Question, decide, gym_questions, read_questions

_QUESTIONS_OF_A_FAMILY = 5


def check_questions(place: str, options: Mapping[str, Any]) -> list[CheckedTask] | None:
    """Check a file of questions, a folder of BFCL's data, or the families in the option `gym`. None if it is none of these."""
    if families := [name.strip() for name in str(options.get("gym") or "").split(",") if name.strip()]:
        return [_check_family(family) for family in families]
    path = Path(place).expanduser()
    if path.is_dir() and (files := sorted(path.glob("BFCL_v*.json"))):
        return [checked for file in files for checked in _check_file(file)]
    return _check_file(path) if path.suffix in (".json", ".jsonl", ".parquet") and path.is_file() else None


def _check_file(path: Path) -> list[CheckedTask]:
    category = path.stem.split("_", 2)[-1] if path.stem.startswith("BFCL_v") else None
    if category is not None and FORMER.get(category, category) not in CATEGORIES:
        reason = f"BFCL's category {category} needs simulated systems, a search or another language -> play {', '.join(CATEGORIES)}"
        return [CheckedTask(path.stem, "not playable", reason)]
    bad = list[tuple[Any, ClawError]]()
    questions = read_questions(path, bad)
    refused = [left_out(f"{path.stem}-{number}", error) for (number, _), error in bad]
    return refused + [_check(question) for question in questions]


def _check(question: Question) -> CheckedTask:
    if question.calls is not None or question.any_call:
        return _check_calls(question)
    if decide("", question)[0]:
        return CheckedTask(question.name, "no-op passes", "an empty reply is right")
    right, decided = decide(f"\\boxed{{{question.answer}}}", question)
    if right:
        return CheckedTask(question.name, "playable", f"{decided} decides")
    return CheckedTask(question.name, "oracle fails", f"its own answer {question.answer!r} is wrong: {decided} decides")


def _check_calls(question: Question) -> CheckedTask:
    if question.any_call:
        return CheckedTask(question.name, "playable", "any call is right")
    allowed = question.calls or ()
    if allowed and is_same_call([], allowed, question.tools):
        return CheckedTask(question.name, "no-op passes", "no call is right")
    calls = [(plain_name(name), _arguments(values)) for wanted in allowed for name, values in wanted.items()]
    if is_same_call(calls, allowed, question.tools):
        return CheckedTask(question.name, "playable", "" if allowed else "no call is right, and that is the task")
    return CheckedTask(question.name, "oracle fails", f"the first allowed values of its own answer do not fit: {calls}")


def _arguments(values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The first allowed value of each argument. "" means that an argument may be left out."""
    chosen = {name: next((value for value in allowed if value != ""), "") for name, allowed in values.items()}
    return {
        name: _value(value) for name, value in chosen.items() if value != "" or list(values[name]) == [""] or "" not in values[name]
    }


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(item) if isinstance(item, dict) else item for item in value]
    return _arguments(value) if isinstance(value, dict) else value


def _check_family(family: str) -> CheckedTask:
    """Check questions that reasoning-gym draws. One that its scoring refuses is enough for a finding."""
    try:
        questions = gym_questions([family], _QUESTIONS_OF_A_FAMILY, 0)
    except ClawError as error:
        return left_out(family, error)
    checked = [_check(question) for question in questions]
    finding = next((task for task in checked if task.found != "playable"), CheckedTask(family, "playable"))
    return CheckedTask(family, finding.found, finding.reason)
