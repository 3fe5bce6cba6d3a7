"""BFCL's questions: which are read, and which calls are right."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from clawctl.config import EvalConfig
from clawctl.errors import ClawError
from clawctl.eval.suites.loading import load_suites
from clawctl.extensions.worlds.toolcall.bfcl import Bfcl
from clawctl.extensions.worlds.toolcall.calls import is_same_call, json_schema
from clawctl.extensions.worlds.toolcall.questions import read_questions

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap")

PARAMETERS = {
    "type": "dict",
    "required": ["place"],
    "properties": {
        "place": {"type": "string"}, "days": {"type": "integer"}, "limit": {"type": "float"},
        "tags": {"type": "array", "items": {"type": "string"}}, "box": {"type": "dict", "properties": {"w": {"type": "integer"}}},
    },
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "geo_find", "parameters": json_schema(PARAMETERS)}}]
WANTED = {"place": ["New York, NY", "NYC"], "days": ["", 3], "limit": ["", 2.5, 4], "tags": ["", ["a b", "c"]],
          "box": ["", {"w": [1, 2]}]}  # fmt: skip
ALLOWED: list[dict[str, Any]] = [{"geo.find": WANTED}]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "possible_answer").mkdir()
    for category in ("multiple", "parallel_multiple", "irrelevance", "live_irrelevance", "live_relevance"):
        rows = [
            {"id": f"{category}_{number}", "question": [[{"role": "user", "content": f"{category} {number}?"}]],
             "function": [{"name": "geo.find", "parameters": PARAMETERS}]}
            for number in range(2)
        ]  # fmt: skip
        (tmp_path / f"BFCL_v4_{category}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if "relevance" not in category:
            answers = [{"id": row["id"], "ground_truth": ALLOWED} for row in rows]
            path = tmp_path / "possible_answer" / f"BFCL_v4_{category}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in answers))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"place": "NYC"}, True),
        ({"place": "new york NY."}, True),  # texts are compared without case and punctuation
        ({"place": "NYC", "days": 3, "limit": 4, "tags": ["A-B", "c"], "box": {"w": 2}}, True),
        ({"days": 3}, False),  # place is required
        ({"place": "NYC", "days": "3"}, False),
        ({"place": "NYC", "days": True}, False),
        ({"place": "NYC", "tags": ["c", "a b"]}, False),
        ({"place": "NYC", "box": {"w": 3}}, False),
        ({"place": "NYC", "more": 1}, False),
    ],
)
def test_a_call_is_right_by_its_types_and_values(arguments: dict[str, Any], right: bool) -> None:
    assert is_same_call([("geo_find", arguments)], ALLOWED, TOOLS) is right


def test_calls_may_come_in_any_order_but_none_may_be_missing_or_too_many() -> None:
    allowed = [{"f": {"x": [1]}}, {"f": {"x": [2]}}]
    tools = [{"function": {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}}}}]
    second, first = ("f", {"x": 2}), ("f", {"x": 1})
    assert is_same_call([second, first], allowed, tools)
    assert not is_same_call([second], allowed, tools)
    assert not is_same_call([second, first, first], allowed, tools)
    assert not is_same_call([first, first], allowed, tools)
    assert is_same_call([], [], tools)


def test_the_suite_has_each_category_in_turn_and_takes_its_options(data: Path) -> None:
    """ "multiple" is not "parallel_multiple", and "irrelevance" is not "live_irrelevance"."""
    options = {"path": str(data), "categories": "multiple,irrelevance,live_relevance"}
    config = EvalConfig.model_validate({"suites": [{"name": "bfcl", "options": options}]})
    environment = load_suites(config)[0].environment
    assert isinstance(environment, Bfcl)
    tasks = environment.tasks("eval", 5, 0)
    assert [task.id for task in tasks] == ["multiple-0", "irrelevance-0", "live_relevance-0", "multiple-1", "irrelevance-1"]
    assert [task.spec.text for task in tasks[:2]] == ["multiple 0?", "irrelevance 0?"]
    assert (tasks[1].spec.calls, tasks[2].spec.any_call) == ((), True)
    assert not environment.tasks("train", 5, 0)


def test_functions_have_names_and_types_that_apis_accept(data: Path) -> None:
    function = read_questions(data / "BFCL_v4_multiple.json")[0].tools[0]["function"]
    assert function["name"] == "geo_find"
    assert function["parameters"]["properties"]["limit"]["type"] == "number"
    assert function["parameters"]["properties"]["box"]["type"] == "object"


def test_missing_questions_and_unknown_categories_are_named_with_the_cure(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ClawError, match=r"bfcl: memory is not supported -> choose from simple_python"):
        Bfcl(str(data), "memory")
    with pytest.raises(ClawError, match=r"has no BFCL_v4_simple_python\.json -> set path"):
        Bfcl(str(data), "simple_python")
