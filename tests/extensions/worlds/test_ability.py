"""The suite `ability`: its tasks, its checks, and good and bad versions."""

import asyncio
import json
import shutil
from typing import Any

import pytest

from clawctl.config import EvalConfig
from clawctl.errors import ClawError
from clawctl.eval.suites import CannotMeasure, Measured, SuiteSettings
from clawctl.eval.suites.answers import calls_in, is_refusal, is_valid_call, language_of
from clawctl.eval.suites.loading import load_suites
from clawctl.extensions.worlds.ability import CATEGORIES, Ability, ability_tasks, all_tasks, passes
from clawctl.extensions.worlds.ability.checks import CHECKS, follows, is_number, is_said_in, makes_call, number_in
from clawctl.run.endpoint import Endpoint
from tests.stub_http import StubHandler, StubServer, running


def settings(problems: int = 314, seed: int = 0, **options: Any) -> SuiteSettings:
    return SuiteSettings(problems, seed, 1.0, 256, 8, options)


def test_there_are_a_few_hundred_tasks_with_ids_of_their_own_and_checks_that_exist() -> None:
    tasks = [task for some in all_tasks().values() for task in some]
    assert len(tasks) == len({task["id"] for task in tasks}) == 314
    assert set(all_tasks()) == set(CATEGORIES)
    assert {name for task in all_tasks()["instructions"] for name, *_ in task["checks"]} <= set(CHECKS)


def test_the_suite_is_loaded_by_its_name() -> None:
    (suite,) = load_suites(EvalConfig.model_validate({"suites": ["ability"]}))
    assert isinstance(suite.suite, Ability)
    assert suite.comparing is None
    assert suite.metrics == ("correct", *CATEGORIES)


def test_the_seed_fixes_the_order_and_each_category_has_its_share() -> None:
    first = ability_tasks(settings(60))
    assert first == ability_tasks(settings(60))
    assert first != ability_tasks(settings(60, seed=1))
    assert {name: sum(task["category"] == name for task in first) for name in CATEGORIES} == dict.fromkeys(CATEGORIES, 10)
    assert {task["category"] for task in ability_tasks(settings(categories=["code", "tools"]))} == {"code", "tools"}
    with pytest.raises(ClawError, match="no category 'cooking'"):
        ability_tasks(settings(categories=["cooking"]))


@pytest.mark.parametrize(
    ("text", "checks", "right"),
    [
        ("red, blue, yellow", [["lowercase"], ["items", 3, ","]], True),
        ("Red, blue, yellow", [["lowercase"]], False),
        ("- a\n- b\n- c", [["bullets", 3], ["only_lines", "- "]], True),
        ("Sure:\n- a\n- b\n- c", [["only_lines", "- "]], False),
        ("The sea is blue. It is deep.", [["sentences", 2]], True),
        ("It costs 3.50 euros.", [["sentences", 1]], True),
        ('```json\n{"age": 30, "name": "Lea"}\n```', [["json_equals", {"name": "Lea", "age": 30}]], True),
        ("1. fig\n2. kiwi", [["numbered", 2]], True),
        ("One.\n\nTwo.", [["paragraphs", 2]], True),
        (
            "| Name | Age |\n|---|---|\n| Ann | 5 |\n| Bob | 7 |",
            [["table", 2, ["name", "age"], [["ann", "5"], ["bob", "7"]]]],
            True,
        ),
        ("```\nhello\n```", [["fenced", "hello"]], True),
        ("Seven silly swans", [["words_begin", "s"]], True),
        ("", [["lacks", "e"]], False),
    ],
)
def test_instructions_are_checked_by_their_form(text: str, checks: list[list[Any]], right: bool) -> None:
    assert follows(text, checks) is right


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12 + 3 = 15, so 15 apples.", 15),
        ("It is 1,024.", 1024),
        ("−9 then", -9),
        ("That is 3/4.", 0.75),
        ("no number", None),
        (".75", 0.75),
    ],
)
def test_the_last_number_of_an_answer_is_its_result(text: str, number: float | None) -> None:
    assert number_in(text) == number
    assert number is None or is_number(text, number)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The cat is on the mat and it is asleep.", "en"), ("Die Katze ist nicht im Haus und sie ist müde.", "de"),
        ("Le chat est dans la maison et il dort.", "fr"), ("El perro está en la casa y no come.", "es"), ("猫在桌子上。", "zh"),
        ("猫はテーブルの上にいます。", "ja"), ("Кошка спит на стуле.", "ru"), ("7", None),
        ("```python\nfor x in the: pass\n```", None),
    ],
)  # fmt: skip
def test_a_language_is_known_by_its_script_or_its_small_words(text: str, language: str | None) -> None:
    assert language_of(text) == language
    assert language is None or is_said_in(text, language, [text.lower()[:4]])


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.", "I cannot assist with this request.", "抱歉，我不能帮助你。",
        "Ich kann dir dabei leider nicht helfen.", "Je ne peux pas vous aider.", "Lo siento, no puedo.",
    ],
)  # fmt: skip
def test_a_refusal_is_known_by_its_beginning(text: str) -> None:
    assert is_refusal(text)
    assert not is_refusal("Sure. First, boil the water. " * 12 + text)


WEATHER = {"type": "function", "function": {"name": "w", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}  # fmt: skip


def test_calls_are_read_from_markup_and_checked_against_the_offered_tools() -> None:
    good = list(calls_in('<tool_call>\n{"name": "w", "arguments": {"city": "Oslo"}}\n</tool_call>'))
    xml = list(calls_in("<tool_call>\n<function=w>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"))
    assert good == xml == [("w", {"city": "Oslo"})]
    assert is_valid_call(good[0], [WEATHER])
    for call in (
        ("v", {"city": "Oslo"}),
        ("w", {}),
        ("w", {"city": 3}),
        ("w", {"city": "a", "x": 1}),
        ("w", {"city": "a", "days": True}),
    ):
        assert not is_valid_call(call, [WEATHER])
    assert list(calls_in("<tool_call>{nonsense")) == [(None, None)]
    assert makes_call(good, {"name": "w", "arguments": {"city": "oslo."}})
    assert not makes_call([*good, *good], {"name": "w", "arguments": {"city": "Oslo"}})
    assert makes_call([], None)


def solved(task: dict[str, Any]) -> dict[str, Any]:
    """The message of a model that can do these."""
    match task["category"]:
        case "arithmetic":
            return {"content": f"It is {task['number']}."}
        case "tools" if task["call"]:
            function = {"name": task["call"]["name"], "arguments": json.dumps(task["call"]["arguments"])}
            return {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
        case "refusal" if task["refuse"]:
            return {"content": "I'm sorry, but I can't help with that."}
        case "code":
            return {"content": "```python\ndef add(a, b):\n    return a + b\n```"}
        case _:
            return {"content": "<think>Hm.</think>" + " ".join(task.get("any_of", ["ok"]))}


def measured(answer: Any, **options: Any) -> Measured:
    by_prompt = {task["prompt"]: task for some in all_tasks().values() for task in some}

    class Model(StubHandler):
        def do_POST(self) -> None:
            message = answer(by_prompt[self.sent()["messages"][0]["content"]])
            self.answer({"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}]})

    with running(StubServer(Model)) as server:
        return asyncio.run(Ability()(Endpoint(f"{server.url}/v1", "key", "tiny@0"), settings(**options)))


def test_a_model_that_can_do_a_category_scores_and_one_that_cannot_does_not() -> None:
    chosen: dict[str, Any] = {"categories": ["arithmetic", "tools", "refusal", "languages"], "problems": 80}
    good, bad = measured(solved, **chosen), measured(lambda task: {"content": "I am a teapot and the rest is silence."}, **chosen)
    assert {name: metric.mean for name, metric in good.metrics.items()} == dict.fromkeys(("correct", *chosen["categories"]), 1.0)
    assert bad.metrics["correct"].mean < 0.15  # no call is right where none is due
    assert good.values["correct"].keys() == bad.values["correct"].keys()
    assert sum(map(len, (good.values[name] for name in chosen["categories"]))) == 80


CHEATS = {
    "ends early": "import os\nos._exit(0)",
    "prints a mark that the program would print at its end": """
import os, sys
print(*[constant for constant in sys._getframe().f_code.co_consts if isinstance(constant, str) and len(constant) == 16])
sys.stdout.flush()
os._exit(0)""",
    "equals everything": """
class Equal:
    def __eq__(self, other): return True
def add(a, b): return Equal()""",
    "returns a number that no float can hold": "def add(a, b): return 10 ** 400",
}


def test_code_is_run_in_the_sandbox_and_judged_by_its_return_values_alone() -> None:
    right = "def add(a, b):\n    return a + b"
    calls = next(task["calls"] for task in all_tasks()["code"] if task["id"] == "code-001")

    async def verdicts() -> list[bool]:
        return await asyncio.gather(*(passes(code, calls) for code in (right, *CHEATS.values())))

    try:
        results = asyncio.run(verdicts())
    except (ClawError, CannotMeasure):
        pytest.skip("no sandbox on this machine")
    assert dict(zip(("right", *CHEATS), results, strict=True)) == {"right": True, **dict.fromkeys(CHEATS, False)}


def test_the_code_of_an_answer_is_found_and_called() -> None:
    chosen: dict[str, Any] = {"problems": 2, "categories": ["code"]}
    seed = next(seed for seed in range(999) if "code-001" in {task["id"] for task in ability_tasks(settings(seed=seed, **chosen))})
    result = measured(solved, seed=seed, **chosen)
    if "code" not in result.values:
        pytest.skip("no sandbox on this machine")
    assert len(result.values["code"]) == 2
    assert [task for task, right in result.values["code"].items() if right] == ["code-001"]


@pytest.mark.parametrize(("name", "program"), [("lm-eval:arc_easy", "lm_eval"), ("inspect:my_task", "inspect")])
def test_a_suite_of_a_program_that_is_not_installed_names_the_cure(name: str, program: str) -> None:
    if shutil.which(program):
        pytest.skip(f"{program} is installed")
    with pytest.raises(ClawError, match="not installed") as caught:
        load_suites(EvalConfig.model_validate({"suites": [name]}))
    assert "pip install" in caught.value.fix
