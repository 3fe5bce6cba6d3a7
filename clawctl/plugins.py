"""User code: functions named as `file.py:name`, and the signatures they are called with.

A file runs unmodified, with all rights of the process: load only code that you trust. A function with the wrong signature is
refused when the stage starts.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from clawctl.errors import ClawError

if TYPE_CHECKING:
    from torch import Tensor

    from clawctl.config import CollectConfig, TrainConfig
    from clawctl.run.rows import Message


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The `config` of a custom loss: the recipe, and data about the N tokens that the other arguments do not contain."""

    train: "TrainConfig"
    token_ids: "Tensor"  # [N]: the sampled tokens
    sampler_logprobs: "Tensor"  # [N]
    turns: "Tensor"  # index of the token's turn within this call, from 0
    count: int  # sampled tokens of the whole step, on all ranks and in all calls: divide a sum by it
    step: int

    def __getitem__(self, name: str) -> Any:
        """A field of this class, or a setting of `train`; settings also accept the names that other systems use. Raises
        KeyError."""
        return getattr(self, name) if name in LossSettings.__slots__ else self.train[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Like `self[name]`, or `default` if there is no such name."""
        return getattr(self, name) if name in LossSettings.__slots__ else self.train.get(name, default)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.train[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from error


# What a parameter of `train.custom_loss` gets, by its name. Each stream is [N], over the sampled tokens of a part of a step.
LOSS_STREAMS = {
    **dict.fromkeys(("policy_logits", "policy_logprobs", "student_logits", "student_logprobs"), "policy"),
    **dict.fromkeys(("reference_logits", "reference_logprobs", "ref_logits", "ref_logprobs"), "reference"),
    **dict.fromkeys(("teacher_logits", "teacher_logprobs"), "teacher"),
    **dict.fromkeys(("sampler_logprobs", "rollout_logprobs", "old_logprobs"), "sampler"),
    **dict.fromkeys(("advantage_mask", "hint_mask"), "hinted"),
    "rewards": "rewards", "scalar_rewards": "scalar_rewards", "advantages": "advantages", "config": "config",
    "vocabulary_logits": "vocabulary", "reference_vocabulary_logits": "reference_vocabulary",
}  # fmt: skip


class CustomLoss(Protocol):
    """`train.custom_loss`: called once for each part of a step. Returns a scalar, or a tuple that begins with it.

    `policy_logits` [N] are the log-probabilities of the sampled tokens at the sampler's temperature, with gradient.
    `reference_logits` [N] are version 0's, without gradient. `rewards` [N] is nan for turns without a reward. `advantages` [N] are
    the method's, weighted and summed. A loss whose parameters have other names of `LOSS_STREAMS` gets these streams instead:

    - `teacher_logprobs` is the policy's own stream where a turn has no hint, and `advantage_mask` is 0 there.
    - `scalar_rewards` is 0 where a turn has no reward.
    - `vocabulary_logits` and `reference_vocabulary_logits` are [N, vocabulary].

    A value that uses `config.count` is the part's share of the step's loss. Any other value is the mean over the part's tokens, and
    is weighted by their number.
    """

    def __call__(
        self, policy_logits: "Tensor", reference_logits: "Tensor", rewards: "Tensor", advantages: "Tensor", config: LossSettings
    ) -> "Tensor | tuple[Tensor, Any]": ...


@dataclass(frozen=True, slots=True)
class Generation:
    """One model call with the data that training needs. Without ids and logprobs its turn is kept but not trained."""

    message: "Message"
    prompt_ids: list[int] | None = None
    completion_ids: list[int] | None = None
    logprobs: list[float] | None = None  # under the distribution that was sampled from
    policy_version: int | None = None
    temperature: float = 1.0
    finish_reason: str | None = None


class CustomGenerate(Protocol):
    """`clawctl play --generate`: one model call."""

    def __call__(self, messages: "list[Message]", tools: list[dict[str, Any]] | None, config: "CollectConfig") -> Generation: ...


class CustomRollout(Protocol):
    """`clawctl play`: runs one episode by calling `generate(messages, tools)`, and yields its turns in order.

    A turn is a mapping with `generation` (the result of `generate`), `messages` (the request) and `next_state` (the following
    messages, or None). Optional keys are `tools`, `outcome_reward` (of the episode, from -1 to 1), `task_id` and `group_id`.
    Episodes of one group are compared with each other.
    """

    def __call__(
        self, episode: int, generate: Callable[..., Generation], config: "CollectConfig"
    ) -> Iterable[Mapping[str, Any]]: ...


# Usual names in a file that is passed without `:name`, most likely first.
USUAL = {
    "--custom-rm": (
        "get_reward_model", "CustomPRM", "CustomRewardModel", "RewardModel", "PRM", "score",
        "compute_reward", "compute_score", "reward_func",
    ),
    "train.custom_loss": (
        "compute_loss", "compute_opd_loss", "compute_hybrid_loss", "custom_loss", "loss_fn", "loss_function", "loss",
    ),
    **dict.fromkeys(
        ("play", "play.env"),
        ("rollout", "custom_rollout", "terminal_rollout", "play", "generate_rollout", "collect_rollouts", "run_rollout"),
    ),
    "--generate": ("generate", "custom_generate", "sample"),
}  # fmt: skip
# Parameters of slime's functions. A slime function with the right number of parameters would still receive the wrong arguments.
_SLIME_PARAMETERS = frozenset(("args", "rollout_id", "data_buffer", "sampling_params"))

LOSS = ("policy_logits", "reference_logits", "rewards", "advantages", "config")
ROLLOUT = ("episode", "generate", "config")
GENERATE = ("messages", "tools", "config")


def load_function(spec: str, option: str, parameters: tuple[str, ...], named: Collection[str] = ()) -> Callable[..., Any]:
    """The function `file.py:name`. Raises ClawError (exit code 2) if it does not exist, or if it can be called neither with
    `parameters` nor by name with some of `named`."""
    spec = with_name(spec, option)
    function = load_object(spec, option)
    name = spec.rpartition(":")[2]
    if not callable(function):
        raise ClawError(f"{option}: {name} is not a function", "put the name of a function in the file after the colon", 2)
    expected = f"({', '.join(parameters)})"
    if inspect.iscoroutinefunction(function):
        raise ClawError(f"{option}: {name} is async, but clawctl calls it without await", f"write def {name}{expected}", 2)
    if parameters_by_name(function, named) is not None:
        return function  # type: ignore[no-any-return]
    if not takes(function, len(parameters)) or (len(_SLIME_PARAMETERS & _parameters(function)) > 1):
        raise ClawError(f"{option}: {name} takes {_signature(function)}, expected {expected}", f"write def {name}{expected}", 2)
    return function  # type: ignore[no-any-return]


def load_object(spec: str, option: str) -> Any:
    """The object `file.py:name`. Raises ClawError (exit code 2) if it does not exist or its file cannot be loaded."""
    file, _, name = with_name(spec, option).rpartition(":")
    path = Path(file)
    if spec.endswith(".py") and not Path(spec).is_file():
        raise ClawError(f"{option}: there is no file {spec}", "pass the path of a Python file", 2)
    if not file or not name.isidentifier():
        raise ClawError(f"{option} {spec!r} is not file.py:name", f"write {option} my_code.py:my_name", 2)
    if not path.is_file():
        raise ClawError(f"{option}: there is no file {path}", "put the path of a Python file before the colon", 2)
    if path.suffix != ".py":
        raise ClawError(f"{option}: {path} is not a Python file", "pass a file that ends in .py", 2)
    loaded = getattr(_module(path, option), name, None)
    if loaded is None:
        raise ClawError(f"{option}: {path} has no {name!r}", "put a name that the file defines after the colon", 2)
    return loaded


def with_name(spec: str, option: str) -> str:
    """`file.py:name`. For a file alone, its first usual name is added. Raises ClawError (exit code 2)."""
    if spec.endswith(".py") and Path(spec).is_file():
        path = Path(spec)
        usual = USUAL.get(option, ())
        module = _module(path, option)
        written = [name for name, value in vars(module).items() if _is_written_in(value, module) and not name.startswith("_")]
        attribute = next((name for name in (*usual, *written[: len(written) == 1]) if hasattr(module, name)), None)
        if attribute is None:
            problem = f"{option}: no function is named, and {path} has none of {', '.join(usual)}"
            raise ClawError(problem, f"add the name of a function: {option} {path}:NAME", 2)
        return f"{path}:{attribute}"
    module_path, _, name = spec.rpartition(".")
    if ":" not in spec and "/" not in spec and module_path and name.isidentifier() and name != "py":
        cure = f"pass the file and the name: {option} {module_path.replace('.', '/')}.py:{name}"
        raise ClawError(f"{option} {spec!r} is a module path", cure, 2)
    return spec


def _is_written_in(value: Any, module: Any) -> bool:
    return (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == module.__name__


def load_module(file: str, option: str) -> Any:
    """The module of a user's file. Raises ClawError (exit code 2)."""
    if not Path(file).is_file():
        raise ClawError(f"{option}: there is no file {file}", "pass the path of a Python file", 2)
    return _module(Path(file), option)


def _parameters(called: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(called).parameters)
    except (TypeError, ValueError):
        return set()


def parameters_by_name(called: Callable[..., Any], names: Collection[str]) -> list[inspect.Parameter] | None:
    """The parameters of `called`, or None if one that needs a value has none of these names."""
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return None
    needed = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    return parameters if needed and set(needed) <= set(names) else None


def takes(called: Callable[..., Any], count: int) -> bool:
    """Whether `called` accepts this many positional arguments."""
    try:
        inspect.signature(called).bind(*range(count))
    except (TypeError, ValueError):  # ValueError: a built-in function without a signature
        return False
    return True


def _signature(called: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(called))
    except ValueError:
        return "unknown parameters"


def _module(path: Path, option: str) -> Any:
    """The module of a file. It can import what is beside it, and a file in a package is imported as a module of that package."""
    path = path.resolve()
    folder = import_folder(path)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that the user's files replace no installed module
    try:
        if folder != path.parent:
            name = ".".join(path.relative_to(folder).with_suffix("").parts)
            module = importlib.import_module(name)
            if Path(module.__file__ or "").resolve() == path:
                return module
        return _registered(path)
    except ModuleNotFoundError as error:
        fix = f"install {error.name} in the environment of clawctl, or put it beside the file"
        raise ClawError(f"{option}: {path} cannot be loaded: there is no module {error.name!r}", fix, 2) from error
    except Exception as error:
        raise ClawError(f"{option}: {path} cannot be loaded: {error!r}", "fix the file", 2) from error


def import_folder(path: Path) -> Path:
    """The folder from which imports of a file begin: its own, or the one that contains its outermost package."""
    return next(folder for folder in path.parents if not (folder / "__init__.py").is_file())


def _registered(path: Path) -> Any:
    """Run a file as a new module. It is in `sys.modules`, where dataclasses, pickle and inspect look for it."""
    name = f"clawctl_custom_{path.stem}_{blake2b(bytes(path), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # the name of the file ends in .py
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
