"""The recipe: its sections, and how it is read, overridden and written."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from clawctl.config.collect import CollectConfig
from clawctl.config.eval import EvalConfig, GateConfig
from clawctl.config.explaining import equivalent, explainers
from clawctl.config.judge import JudgeConfig
from clawctl.config.machines import MachinesConfig
from clawctl.config.model import ModelConfig
from clawctl.config.play import PlayConfig
from clawctl.config.policies import PoliciesConfig
from clawctl.config.practice import PracticeConfig
from clawctl.config.privacy import PrivacyConfig
from clawctl.config.section import Section, key_at
from clawctl.config.serve import ServeConfig
from clawctl.config.train import TrainConfig
from clawctl.config.up import UpConfig
from clawctl.errors import ClawError, Damaged
from clawctl.run.checksums import check_yaml, is_sealed_yaml


class Recipe(Section):
    name: str = "default"
    """Name of this recipe in reports."""
    model: ModelConfig = ModelConfig()
    """The model that is served and trained."""
    serve: ServeConfig = ServeConfig()
    """The server."""
    collect: CollectConfig = CollectConfig()
    """How captures become sessions."""
    play: PlayConfig = PlayConfig()
    """Which episodes are played."""
    judge: JudgeConfig = JudgeConfig()
    """How turns are judged."""
    practice: PracticeConfig = PracticeConfig()
    """How notes become weights."""
    policies: PoliciesConfig = PoliciesConfig()
    """Which policy answers and learns from the requests of a key."""
    train: TrainConfig = TrainConfig()
    """How judged turns are trained."""
    eval: EvalConfig = EvalConfig()
    """How a policy is measured."""
    gate: GateConfig | None = None
    """With a gate, a new policy goes live only after `eval` accepts it (with `when: after`, it stays live). Without one, it goes
    live as soon as it is published."""
    privacy: PrivacyConfig = PrivacyConfig()
    """Which conversations are captured, what is redacted, and how long conversations are kept."""
    up: UpConfig = UpConfig()
    """Which stages `clawctl up` starts."""
    machines: MachinesConfig = MachinesConfig()
    """What each stage needs when `clawctl up --on` submits it to a scheduler."""

    @property
    def model_name(self) -> str:
        return self.model.name or Path(self.model.path).name.removesuffix(".gguf")

    @property
    def waits_for_gate(self) -> bool:
        """Whether a new version goes live only after the gate promotes it."""
        return self.gate is not None and self.gate.when == "before"

    @property
    def adapters_beside_live(self) -> int:
        """How many versions an engine keeps loaded in addition to the live one of the shared policy."""
        return self.serve.pinned_versions + (self.policies.loaded if self.policies.per_person else 0)

    @property
    def model_path(self) -> str:
        """The model's folder, or its name on the hub. Raises ClawError (exit code 2) for a GGUF file that cannot be converted."""
        from clawctl.run.gguf import model_folder  # imports this package

        return model_folder(self.model.path)


def load_recipe(path: Path | None, overrides: dict[str, Any] | None = None) -> Recipe:
    """Return the recipe in `path` (or the defaults) with `overrides` such as {"train.method": "opd"}. None leaves a key unchanged.

    Raises ClawError (exit code 2), which names the first wrong key.
    """
    data = {} if path is None else read_yaml(path)
    _check_system(path, data)
    for key, value in (overrides or {}).items():
        if value is not None:
            set_nested(data, key.split("."), value)
    try:
        saved = path is not None and is_sealed_yaml(path.read_bytes())
        recipe = Recipe.model_validate(data, context={"saved": saved})
    except ValidationError as error:
        raise _wrong_key(error, path, overrides or {}) from error
    _check_gate(recipe)
    _check_policies(recipe)
    return recipe


def _check_system(path: Path | None, data: dict[Any, Any]) -> None:
    """Raises ClawError (exit code 2) if the recipe is written for another system that an explainer knows."""
    strange = [str(key) for key in data if key not in Recipe.model_fields]
    if strange and (cure := next(filter(None, (explainer.cure(path, data, strange) for explainer in explainers())), None)):
        raise ClawError(f"recipe {path} is written for another system ({', '.join(strange)})", cure, 2)


def _check_gate(recipe: Recipe) -> None:
    """Raises ClawError (exit code 2) if the gate compares a suite that is not run."""
    run = [suite.name for suite in recipe.eval.suites]
    missing = next((row.suite for row in recipe.gate.rows if row.suite not in run), None) if recipe.gate is not None else None
    if missing is not None:
        problem = f"the gate names the suite {missing}, but eval.suites runs {', '.join(run) or 'none'}"
        raise ClawError(problem, f"add {missing} to eval.suites, or remove its rows from the gate", 2)


def _check_policies(recipe: Recipe) -> None:
    """Raises ClawError (exit code 2) if the recipe cannot train a policy for each key."""
    if recipe.policies.per_person and (recipe.train.lora is None or recipe.train.backend.kind != "local"):
        problem = f"policies.per is {recipe.policies.per}, which trains an adapter for each policy on this machine"
        raise ClawError(problem, "set train.lora, and leave train.backend at local; or set policies.per to shared", 2)
    if recipe.policies.is_stacked and recipe.train.lora is not None and recipe.train.lora.rank % 2:
        problem = f"policies.per is {recipe.policies.per}, but train.lora.rank ({recipe.train.lora.rank}) has no half"
        raise ClawError(problem, "set train.lora.rank to an even number", 2)


def read_yaml(path: Path) -> dict[Any, Any]:
    """Return the mapping in a YAML file. An empty file gives an empty mapping. Raises ClawError (exit code 2)."""
    try:
        written = path.read_bytes()
        if written.strip() or (path.parent / "run.json").exists():  # a run's own recipe is never empty
            check_yaml(written)
        data = _loaded(written.decode()) or {}
    except Damaged as error:
        edited = "; if you edited it, delete its first and last line" if written.strip() else ""
        cure = f"pass the recipe again with --recipe FILE{edited}"
        problem = f"is damaged: {error}" if written.strip() else "is empty, but clawctl writes a run's own recipe with a checksum"
        raise ClawError(f"recipe {path} {problem}", cure, 2) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        cure = "pass a YAML file, or a name of `clawctl docs recipes`"
        raise ClawError(f"recipe {path} cannot be read: {error}", cure, 2) from error
    if not isinstance(data, dict):
        raise ClawError(f"recipe {path} is not a mapping", "start from an example in recipes/", 2)
    return data


_MAX_NODES, _DEEPEST = 20_000, 32  # limits for a recipe, counting an anchor each time it is used


def _loaded(text: str) -> Any:
    """Parse YAML like `yaml.safe_load`, but stricter.

    Also raises YAMLError if a mapping has a key twice, if an anchor contains itself, or if the expanded document is too large or
    too deep.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _nodes(node, {}, 0)
        return loader.construct_document(node)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error
    finally:
        loader.dispose()


def _nodes(node: yaml.Node, counts: dict[int, int], depth: int) -> int:
    """Count the nodes below `node`, with anchors expanded. `counts` holds finished counts by node id, and 0 for nodes being
    counted.
    """
    if counts.get(id(node)) == 0 or depth > _DEEPEST:
        raise yaml.YAMLError(f"line {node.start_mark.line + 1}: it is nested too deeply, or contains itself")
    if id(node) not in counts:
        counts[id(node)] = 0
        below = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            below = [part for pair in node.value for part in pair]
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if twice := next((name for name in names if names.count(name) > 1 and name != "<<"), None):
                raise yaml.YAMLError(f"line {node.start_mark.line + 1}: the key {str(twice)[:80]!r} occurs twice")
        counts[id(node)] = 1 + sum(_nodes(part, counts, depth + 1) for part in below)
    if counts[id(node)] > _MAX_NODES:
        raise yaml.YAMLError(f"line {node.start_mark.line + 1}: its anchors expand to too many values")
    return counts[id(node)]


def _wrong_key(error: ValidationError, path: Path | None, overrides: dict[str, Any]) -> ClawError:
    """Return the error for the first wrong key, with its source and its value."""
    first = error.errors()[0]
    key = key_at(first["loc"])
    is_override = overrides.get(key) is not None
    where = "the command line or environment" if is_override or path is None else f"recipe {path}"
    if first["type"] == "extra_forbidden":
        return ClawError(f"{where}: there is no key {key}", f"docs/reference/recipes.md lists the keys{_near(key)}", 2)
    given = first["input"]
    secret = key.endswith("api_key") or not isinstance(given, str | int | float) or len(str(given)) > 60
    shown_value = "" if secret else f", not {given!r}"
    problem = first["msg"][:1].lower() + first["msg"][1:]
    return ClawError(f"{where}: {key}: {problem}{shown_value}", "set a valid value, see docs/reference/recipes.md", 2)


def set_nested(data: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        below = data.get(part)
        data[part] = below if isinstance(below, dict) else {}
        data = data[part]
    data[path[-1]] = value


def _near(key: str) -> str:
    suggestion = suggest(key, known_keys(Recipe))
    return f"; did you mean {suggestion}?" if suggestion else ""


def suggest(key: str, keys: Sequence[str]) -> str | None:
    """Return the key that a wrong key most likely means, or None.

    Tried in this order: an explainer's name, spelling in the same section, spelling of an explainer's name, spelling anywhere.
    """
    parts = key.split(".")
    section, last = key.rpartition(".")[0], parts[-1]
    if (here := equivalent(parts)) and here.suggestion in keys and here.suggestion != key:
        return here.suggestion
    siblings = {name.rpartition(".")[2]: name for name in keys if name.rpartition(".")[0] == section}
    if section and (matches := get_close_matches(last, siblings, n=1)):
        return siblings[matches[0]]
    if (here := equivalent([last], similar=True)) and here.suggestion in keys:
        return here.suggestion
    ends = {name.rpartition(".")[2]: name for name in reversed(keys)}
    if matches := get_close_matches(last, ends, n=1, cutoff=0.75):
        return ends[matches[0]]
    return next(iter(get_close_matches(key, keys, n=1)), None)


def known_keys(section: type[Section], prefix: str = "") -> list[str]:
    """Return every key that a recipe may have, dotted: ["train.lora.rank", …]."""
    keys = []
    for name, field in section.recipe_keys().items():
        keys.append(prefix + name)
        parts = (field.annotation, *getattr(field.annotation, "__args__", ()))  # X | None contains X
        for inner in (part for part in parts if isinstance(part, type) and issubclass(part, Section)):
            keys += known_keys(inner, f"{prefix}{name}.")
    return keys


def dump_recipe(recipe: Recipe) -> str:
    return str(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))
