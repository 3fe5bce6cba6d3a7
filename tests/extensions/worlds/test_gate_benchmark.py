"""The gate's benchmark: what it plants is broken as it says, and the limit that it states is between two known ones."""

import math

import pytest

from clawctl.eval.suites.answers import Answered, calls_in, is_valid_call
from scripts.benchmarks.gate import BARS, POWER, TIES, Row, misses
from scripts.benchmarks.gate_limit import Problem, least_mean, least_median
from scripts.benchmarks.gate_planted import KINDS, PLANTED, as_text, spoil

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression":"2 + 3"}}\n</tool_call>'
TOOL = {"function": {"name": "calculator", "parameters": {"properties": {"expression": {"type": "string"}}}}}


def spoiled(kind: str, number: int, text: str) -> str:
    content = {"choices": [{"text": text}], "usage": {"completion_tokens": 10}}
    spoil(content, kind, number)
    return str(content["choices"][0]["text"])


def test_twenty_updates_are_planted_four_of_each_kind() -> None:
    assert len(set(PLANTED)) == 20
    assert {kind: sum(of == kind for of, _ in PLANTED) for kind in KINDS if kind != "unchanged"} == dict.fromkeys(
        ("wrong", "endless", "refusals", "language", "tools"), 4
    )


@pytest.mark.parametrize("text", [CALL, "The answer is 5.", f"I compute it.\n{CALL}"])
def test_an_answer_that_nothing_is_planted_in_keeps_its_text_and_its_calls(text: str) -> None:
    assert spoiled("unchanged", 0, text) == text
    assert list(calls_in(as_text(Answered(text, 0, None).message))) == list(calls_in(text))


@pytest.mark.parametrize("number", range(4))
def test_each_broken_tool_call_is_broken_as_token_ids_too(number: int) -> None:
    assert all(is_valid_call(call, [TOOL]) for call in calls_in(CALL))
    calls = list(calls_in(spoiled("tools", number, CALL)))
    assert not calls or not any(is_valid_call(call, [TOOL]) for call in calls)
    assert spoiled("tools", number, "The answer is 5.") == "The answer is 5."


def test_an_endless_answer_has_as_many_times_the_tokens() -> None:
    content = {"choices": [{"text": "12345"}], "usage": {"completion_tokens": 5}}
    spoil(content, "endless", 0)
    assert content["usage"] == {"completion_tokens": 119}  # twenty times five characters and nineteen spaces


def test_the_least_mean_lies_between_hoeffding_and_wald() -> None:
    """Hoeffding's bound (Annals of Mathematical Statistics 1960), and Wald's approximation of the sequential ratio test."""
    problem = Problem(margin=0.2, error=0.05, power=0.9, ties=0.4)
    half, ends = problem.half, (problem.bad, problem.good)
    distances = [half * math.log(half / end) + (1 - half) * math.log((1 - half) / (1 - end)) for end in ends]
    spread = (math.log(problem.good / problem.bad) - math.log((1 - problem.good) / (1 - problem.bad))) ** 2 * half * (1 - half)
    quarter, far = math.sqrt(spread) / 4, max(distances)
    hoeffding = (math.sqrt(quarter**2 - far * math.log(0.05 + 0.1)) - quarter) ** 2 / far**2 * problem.per_pair
    wald = math.log(0.9 / 0.05) * math.log(0.95 / 0.1) / spread * problem.per_pair
    assert hoeffding < least_mean(problem, horizon=500) < wald


def test_the_least_median_falls_as_the_budget_grows() -> None:
    problem = Problem(0.2, 0.05, POWER, TIES)
    assert least_median(problem, 150) > least_median(problem, 225) > 25


@pytest.mark.parametrize(("case", "metric"), [("planted", "missed"), ("planted", "caught_unchanged")])
def test_one_missed_update_or_one_refused_unchanged_version_fails_the_benchmark(case: str, metric: str) -> None:
    assert (case, metric) in BARS
    assert misses(Row(case, metric, 1.0, "updates"))
    assert not misses(Row(case, metric, 0.0, "updates"))
