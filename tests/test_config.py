import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from clawctl.config import Recipe, TrainConfig, dump_recipe, load_recipe
from clawctl.config.methods import Binary
from clawctl.config.recipe import read_yaml
from clawctl.errors import ClawError
from clawctl.run.checksums import sealed_yaml
from scripts.benchmarks.environments_learn import KINDS


@pytest.mark.parametrize(
    ("text", "problem", "cure"),
    [
        ("train: {methd: opd}", "there is no key train.methd", "did you mean train.method?"),
        ("train: {lora: {rnak: 1}}", "train.lora.rnak", "did you mean train.lora.rank?"),
        ("train: {lr: fast}", "train.lr: input should be a valid number", "set a valid value"),
        ("train: {method: ppo}", "train.method", "set a valid value"),
        ("train: {teacher: me}", r"https?://\S+", "set a valid value"),
        ("- a list", "is not a mapping", "recipes/"),
        ("a: [", "cannot be read", "clawctl docs recipes"),
    ],
)
def test_a_wrong_recipe_is_one_line_with_the_key_and_a_cure(tmp_path: Path, text: str, problem: str, cure: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(ClawError) as caught:
        load_recipe(path)
    assert problem in caught.value.problem
    assert cure in caught.value.fix
    assert caught.value.exit_code == 2


def test_options_override_the_recipe_and_unset_options_do_not(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("train: {method: opd, lr: 0.5}")
    recipe = load_recipe(path, {"train.method": "binary", "train.lr": None, "train.lora.rank": 4})
    assert (recipe.train.method.kind, recipe.train.lr, recipe.train.lora and recipe.train.lora.rank) == ("binary", 0.5, 4)


def test_every_recipe_in_the_repository_loads() -> None:
    recipes = sorted((Path(__file__).parent.parent / "recipes").glob("*.yaml"))
    assert recipes
    for path in recipes:
        assert load_recipe(path).name


def test_the_gate_of_each_recipe_for_gpus_asks_for_comparisons_within_a_budget() -> None:
    """Without a budget the means of the first tasks decide: at 100 tasks, noise alone moves a mean by 0.08."""
    recipes = [load_recipe(path) for path in (Path(__file__).parent.parent / "recipes").glob("*.yaml")]
    gated = [recipe for recipe in recipes if recipe.waits_for_gate]
    assert len(gated) == 11
    crafts = {f"craft-{kind}" for kind in KINDS if not kind.startswith("gui")}  # their models are not in the package
    assert {recipe.name for recipe in recipes if recipe.gate is None} == {"smollm2", "smollm2-toolcall", *crafts}
    for recipe in gated:
        assert recipe.eval.budget.comparisons is not None, recipe.name
        assert recipe.eval.budget.seconds is not None, recipe.name


def test_every_key_has_a_description() -> None:
    def undocumented(section: type, prefix: str = "") -> list[str]:
        results = []
        for name, field in section.recipe_keys().items():  # type: ignore[attr-defined]
            if not field.description:
                results.append(prefix + name)
            if hasattr(field.annotation, "model_fields"):
                results += undocumented(field.annotation, f"{prefix}{name}.")
        return results

    assert undocumented(Recipe) == []


def test_a_truncated_stored_recipe_is_refused_and_never_read_as_defaults(tmp_path: Path) -> None:
    path, recipe = tmp_path / "recipe.yaml", Recipe.model_validate({"train": {"lr": 0.5}})
    written = sealed_yaml(b"train: {lr: 0.5}\n")
    path.write_bytes(written)
    (tmp_path / "run.json").touch()  # the folder is a run; elsewhere an empty recipe means the defaults
    assert load_recipe(path) == recipe
    cuts = [written[:size] for size in range(len(written))]
    flips = [written[:at] + bytes([written[at] ^ 1 << bit]) + written[at + 1 :] for at in range(len(written)) for bit in range(8)]
    for damaged in (*cuts, *flips):
        path.write_bytes(damaged)
        with pytest.raises(ClawError, match="is damaged" if damaged else "is empty") as caught:
            load_recipe(path)
        assert "--recipe FILE" in caught.value.fix
        assert ("delete its first and last line" in caught.value.fix) == bool(damaged)


def test_a_recipe_without_a_seal_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    lines = sealed_yaml(dump_recipe(Recipe()).encode()).splitlines(keepends=True)
    assert yaml.safe_load(b"".join(lines)) == yaml.safe_load(b"".join(lines[1:-1]))
    for text in (b"".join(lines[1:-1]), b"{}\n", b"# all as it is\n"):
        path.write_bytes(text)
        assert load_recipe(path) == Recipe()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("train: {lr: 1.0e-6, lr: 2.0e-6}", "'lr' occurs twice"),
        ("train: {lr: 1.0e-6}\ntrain: {method: opd}", "'train' occurs twice"),
        ("train: &a {lr: 1.0e-6, x: *a}", "contains itself"),
        ("train: " + "{a: " * 3000 + "1" + "}" * 3000, "too deeply"),
        (
            "a0: &a0 [x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)),
            "expand to too many",
        ),
    ],
)
def test_a_recipe_with_duplicate_keys_or_endless_anchors_is_refused_at_once(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ClawError, match=problem) as caught:
        read_yaml(path)
    assert caught.value.exit_code == 2


def test_anchors_and_merged_mappings_are_read_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("x: &x {lr: 1.0e-6, method: opd}\ntrain:\n  <<: *x\n  method: binary\n")
    assert read_yaml(path)["train"] == {"lr": 1e-6, "method": "binary"}


def test_a_method_is_a_name_or_a_section_with_its_settings() -> None:
    def train(**settings: Any) -> TrainConfig:
        return Recipe.model_validate({"train": settings}).train

    section = train(method={"kind": "hybrid", "topk": 8, "weight_opd": 0.5, "teacher": "ema"}, lr=1e-4)
    assert section == train(method="hybrid", topk=8, weight_opd=0.5, teacher="ema", lr=1e-4)
    assert train(backend={"kind": "local", "dtype": "bfloat16"}) == train(backend="local", dtype="bfloat16") != TrainConfig()
    assert load_recipe(None, {"train.method": "opd"}).train == train(method={"kind": "opd"})


@pytest.mark.parametrize(
    ("train", "problem"),
    [
        ("{method: binary, topk: 8}", "topk has no effect with method binary; it belongs to opd_topk, combine and hybrid"),
        ("{method: {kind: opd, topk: 8}}", "topk has no effect with method opd; it belongs to opd_topk, combine and hybrid"),
        ("{method: grpo, hint_candidates: 2}", "hint_candidates has no effect with method grpo; it belongs to hybrid"),
        ("{method: opd, group_size: 8}", "it belongs to binary, grpo, combine and hybrid"),
        ("{method: binary, teacher: base}", "teacher has no effect with method binary"),
        ("{method: {kind: hybrid, lr: 1}}", "method hybrid has no setting lr"),
        ("{method: {kind: hybrid, topk: 8}, topk: 4}", "topk is set twice"),
        ("{method: {kind: nothing}}", "train.method: input should be 'binary'"),
        ("{backend: {kind: local, url: x}}", "backend local has no setting url"),
        ("{method: opd, gap_clip: -1}", "train.gap_clip: input should be greater than 0, not -1"),
        ("{backend: 3}", "train.backend: input should be a valid string, not 3"),
    ],
)
def test_a_setting_that_does_nothing_under_the_method_is_refused_and_its_methods_are_named(
    tmp_path: Path, train: str, problem: str
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"train: {train}\n")
    with pytest.raises(ClawError, match=re.escape(problem)) as caught:
        load_recipe(path)
    assert caught.value.exit_code == 2


def test_a_recipe_that_an_older_run_saved_still_loads_and_warns_of_settings_without_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(sealed_yaml(b"train: {method: binary, topk: null, weight_opd: 1.0, gap_clip: 3.0, teacher: base}\n"))
    assert load_recipe(path).train.method == Binary()
    assert [record.getMessage() for record in caplog.records] == [
        "the recipe of this run sets train.gap_clip, which belongs to opd, combine and hybrid, not binary"
    ]


def test_a_setting_of_another_backend_is_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    recipe = Recipe.model_validate({"train": {"backend": "tinker", "dtype": "bfloat16", "merge": "tree"}})
    assert recipe == Recipe.model_validate({"train": {"backend": "tinker"}})
    assert [record.getMessage() for record in caplog.records] == [
        "the recipe of this run sets train.dtype, which belongs to local and other backends, not tinker"
    ]


def test_a_stored_recipe_has_only_the_settings_of_its_method_and_backend_and_reads_back_the_same() -> None:
    for train in ({"method": "hybrid", "topk": 8}, {"method": "grpo"}, {"backend": "tinker", "service": {}}, {"backend": "a.py:B"}):
        recipe = Recipe.model_validate({"train": train})
        stored = yaml.safe_load(dump_recipe(recipe))
        assert Recipe.model_validate(stored) == recipe
        assert ("gap_clip" in stored["train"], "dtype" in stored["train"]) == (
            train.get("method") != "grpo",
            "service" not in train,
        )


def test_a_teacher_of_a_custom_loss_is_allowed_with_every_method() -> None:
    recipe = Recipe.model_validate({"train": {"method": "binary", "teacher": "base", "custom_loss": "mine.py:loss"}})
    assert recipe.train.needs_second_model
