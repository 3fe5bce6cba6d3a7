"""Which judge a recipe selects, and which settings belong to it."""

from typing import Any

import pytest
from pydantic import ValidationError

from clawctl.config import JudgeConfig, Recipe, dump_recipe, load_recipe
from clawctl.config.judge import SETTINGS_BY_KIND


def judge(**given: Any) -> JudgeConfig:
    return Recipe.model_validate({"judge": given}).judge


def test_a_group_of_settings_is_the_same_as_its_keys() -> None:
    grouped = judge(by={"kind": "prm", "model": "m", "threshold": 0.3, "range": [0, 1], "batch": 4})
    assert grouped == judge(prm="m", prm_threshold=0.3, prm_range=[0, 1], prm_batch=4)
    assert judge(by={"kind": "custom_rm", "path": "a.py:rm", "range": [0, 1]}) == judge(custom_rm="a.py:rm", custom_rm_range=[0, 1])
    assert judge(by={"kind": "endpoint", "url": "http://a/v1", "votes": 5}) == judge(endpoint="http://a/v1", votes=5)
    assert [judge(**settings).kind for settings in ({}, {"prm": "m"}, {"custom_rm": "a.py:rm"})] == ["endpoint", "prm", "custom_rm"]


CHOSEN: dict[str, dict[str, Any]] = {"endpoint": {}, "prm": {"prm": "m"}, "custom_rm": {"custom_rm": "a.py:rm"}}
OTHER_VALUES: dict[str, Any] = {
    "endpoint": "http://a/v1", "endpoints": ["http://a/v1"], "model": "x", "api_key": "x", "votes": 5, "threshold": 0.6,
    "temperature": 0.1, "max_tokens": 99, "view_chars": 300, "requests_per_s": 2.0, "timeout_s": 9.0, "prm_threshold": 0.3,
    "prm_range": [0, 1], "prm_batch": 4, "custom_rm_range": [0, 1],
}  # fmt: skip


@pytest.mark.parametrize("chosen", CHOSEN)
def test_a_setting_of_another_judge_is_an_error_that_names_it_and_its_default_is_none(chosen: str) -> None:
    assert OTHER_VALUES.keys() | {"prm", "custom_rm"} == {key for names in SETTINGS_BY_KIND.values() for key in names.values()}
    for kind, names in SETTINGS_BY_KIND.items():
        for key in names.values():
            if kind == chosen or key in ("prm", "custom_rm"):
                continue
            assert judge(**CHOSEN[chosen], **{key: JudgeConfig.model_fields[key].default}).kind == chosen
            with pytest.raises(ValidationError, match=f"{key} belongs to the judge `{kind}`, but this recipe chooses `{chosen}`"):
                judge(**CHOSEN[chosen], **{key: OTHER_VALUES[key]})


def test_hints_apart_from_the_verdict_may_have_an_endpoint_beside_a_reward_model() -> None:
    settings = {"prm": "m", "hints": "apart", "endpoint": "http://a/v1", "model": "x", "temperature": 0.2}
    assert judge(**settings).kind == "prm"
    with pytest.raises(ValidationError, match="votes belongs to the judge `endpoint`"):
        judge(**settings, votes=5)


@pytest.mark.parametrize(
    ("by", "problem"),
    [
        ({"model": "m"}, "by needs a kind: endpoint, prm, custom_rm"),
        ("prm", "by needs a kind"),
        ({"kind": "prm"}, "by.model is missing"),
        ({"kind": "custom_rm", "path": "a.py:rm", "votes": 3}, "by.votes is not a setting of the judge `custom_rm`"),
    ],
)
def test_a_wrong_group_is_refused_with_the_reason(by: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        judge(by=by)


def test_a_reward_model_judges_and_may_have_the_path_of_a_classifier() -> None:
    assert judge(prm="m", custom_rm="a.py:rm").kind == "custom_rm"
    with pytest.raises(ValidationError, match="belongs to the judge `endpoint`"):
        judge(endpoint="http://127.0.0.1:1/v1", custom_rm="a.py:rm")


def test_a_saved_recipe_loads_again_and_may_choose_another_judge(tmp_path) -> None:
    saved = tmp_path / "recipe.yaml"
    saved.write_text(dump_recipe(judge_recipe := Recipe.model_validate({"judge": {"by": {"kind": "prm", "model": "m"}}})))
    assert load_recipe(saved) == judge_recipe
    saved.write_text(dump_recipe(Recipe()))
    assert load_recipe(saved, {"judge.prm": "m"}).judge.kind == "prm"
