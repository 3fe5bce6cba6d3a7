"""A person's satisfaction with the first reply: a fixed rule, independent of the judge and of training.

Students do not want to look as if they used AI. They want the working, but no bold text, no numbered steps and no "Final answer".
Teachers want a friendly comment that addresses the pupil about the pupil's work. Correct numbers are measured separately.
"""

import re

from clawctl.extensions.demos.homework.problems import Problem, numbers_in

_AI_MARKS = (
    re.compile(r"\*\*|__"),
    re.compile(r"(?m)^\s*\d+[.)]\s|\bstep \d+", re.IGNORECASE),
    re.compile(r"(?m)^\s*(#+ |[-*•] )"),
    re.compile(r"\b(final answer|answer|verdict|solution|check|result)\s*:", re.IGNORECASE),
)
_WARM = re.compile(
    r"\b(thank|thanks|well done|great|nice|lovely|good (job|work|effort|thinking)|keep it up|you are close|so close|"
    r"you will get it|don't worry|i like|i love|proud|happy|enjoyed|wonderful)\b"
)


def satisfaction(task: Problem, reply: str) -> float:
    """A score from 0 to 1 in quarters. A reply fully in the role's style scores 1; a reply with a mark of AI style at most 0.25."""
    marks = sum(bool(mark.search(reply)) for mark in _AI_MARKS)
    if marks:
        return 0.25 if marks == 1 and _good_points(task, reply) == 4 else 0.0
    return _good_points(task, reply) / 4


def _good_points(task: Problem, reply: str) -> int:
    words = re.findall(r"[a-z']+", reply.lower())
    numbers = set(numbers_in(reply))
    shown = {n for a, _, b, c in task.steps for n in (a, b, c)}
    has_body = 3 <= len(words) <= 80
    uses_numbers = len(numbers & shown) >= min(2, len(shown))
    if not has_body:
        return 0
    if task.role == "student":
        says_working = len(numbers & shown) >= min(3, len(shown)) and bool(re.search(r"\d+ ?[-+x*] ?\d+", reply))
        flows = not re.search(r"\n\s*\n|\n.*\n", reply.strip())
        return has_body + uses_numbers + says_working + flows
    warm = bool(_WARM.search(" ".join(words)))
    personal = task.name.lower() in words
    return warm + personal + uses_numbers + (personal and bool({"you", "your"} & set(words)))
