"""The recipe: everything a human may set, strict, frozen, documented under each field. Importing this imports no torch."""

import os
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clawctl.errors import ClawError

DEMO_MODEL = Path(__file__).parent / "demo_model"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelConfig(Section):
    path: str = "demo"
    """A Hugging Face model directory or name, or `demo` for the tiny model that clawctl ships."""
    name: str | None = None
    """The name clients ask for; by default the last part of `path`. `NAME@3` asks for version 3, whatever is live."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the weights in the engine; `auto` takes what the model's files have."""


class LimitsConfig(Section):
    body_mb: float = Field(32.0, gt=0)
    """Largest body of a request, in MB; a larger one is refused with 413."""
    header_kb: int = Field(64, gt=0)
    """Largest request line and headers together, in KB; a larger one is refused with 431."""
    header_s: float = Field(20.0, gt=0)
    """A client has so long to send the headers of a request; then it is refused with 408."""
    body_s: float = Field(120.0, gt=0)
    """A client has so long to send a body; then it is refused with 408."""
    stalled_s: float = Field(60.0, gt=0)
    """A client that does not take what is sent to it for so long is cut off; its turn is captured as cancelled."""
    connections: int = Field(4096, gt=0)
    """Open connections at a time; one more is refused with 503."""
    concurrent_per_key: int = Field(1024, gt=0)
    """Running requests of one API key at a time; one more is refused with 429."""


class UpstreamConfig(Section):
    url: str
    """Base URL of an OpenAI-compatible server that somebody else runs (`http://host:port/v1`)."""
    kind: Literal["vllm", "sglang", "openai"] = "openai"
    """What it is. Only of a vLLM can exact token ids be had; without them turns are kept but not trained."""
    model: str | None = None
    """The name to ask it for. Unset: the first that it lists."""
    api_key: str | None = None
    """Its key. Unset: `CLAWCTL_UPSTREAM_KEY`, else none."""


class ServeConfig(Section):
    host: str = "127.0.0.1"
    """Address to listen on. Only this machine by default."""
    port: int = 30000
    """Port to listen on; 0 takes a free one and writes it to `RUN/serve.json`."""
    api_key: str | None = None
    """The key clients must send. Unset: made once, shown once, kept in `RUN/api_key` (0600), where the other stages find it."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """What runs the model: `transformers` is embedded in the serve process, `vllm` is started and kept as its child."""
    engine_args: list[str] = []
    """More arguments for vLLM's server, as on its command line: `["--max-model-len", "32768"]`."""
    engine_python: str | None = None
    """The Python interpreter that has vLLM. Unset: the one that runs clawctl."""
    upstream: UpstreamConfig | None = None
    """Serve through a server that somebody else runs, instead of an engine of our own."""
    temperature: float = Field(1.0, ge=0)
    """Used where the client names none."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Used where the client names none. Below 1 a turn is kept but not trained: its logprobs are not the policy's."""
    max_tokens: int = Field(1024, gt=0)
    """Longest answer where the client names no limit."""
    pinned_versions: int = Field(2, ge=1)
    """How many versions other than the live one (`NAME@3`) stay loaded at a time."""
    kv_cache_tokens: int = Field(131072, gt=0)
    """Tokens that the engine's cache holds for all running requests together."""
    max_batch_tokens: int = Field(2048, gt=0)
    """Tokens computed in one engine step; a longer prompt is cut into several."""
    threads: int | None = None
    """CPU threads of the engine; unset: PyTorch's choice."""
    limits: LimitsConfig = LimitsConfig()
    """What a client may ask at most."""
    drain_s: float = Field(120.0, ge=0)
    """After SIGTERM running requests have so long to finish; then they are ended and captured as cancelled."""
    drain_notice_s: float = Field(0.0, ge=0)
    """After SIGTERM requests are still accepted for so long while `/health/ready` says 503, for a load balancer to notice."""


class CollectConfig(Section):
    session_timeout_s: float = Field(3600.0, gt=0)
    """A session without a request for so long is over: its last turn closes with no next state."""
    shard_turns: int = Field(256, gt=0)
    """Publish a shard when so many turns are complete, …"""
    shard_age_s: float = Field(5.0, ge=0)
    """… or when the oldest complete turn has waited so long."""


class JudgeConfig(Section):
    endpoint: str | None = None
    """Base URL of an OpenAI-compatible server (`http://host:port/v1`). Unset: the server of this run."""
    model: str | None = None
    """Model to ask. Unset: version 0 of the policy (`NAME@0`), which is never the one being trained."""
    api_key: str | None = None
    """Key of `endpoint`. Unset: this run's key, if `endpoint` is this run's server."""
    votes: int = Field(3, gt=0)
    """Answers asked per turn; the majority decides, a tie is 0."""
    temperature: float = Field(0.6, ge=0)
    """Of the judge: 0 makes all votes the same."""
    max_tokens: int = Field(4096, gt=0)
    """Longest answer of the judge."""
    concurrency: int = Field(16, gt=0)
    """Calls in flight at a time."""
    timeout_s: float = Field(120.0, gt=0)
    """A call without an answer for so long is tried again, then counted as a failed vote."""
    history_chars: int = Field(4000, ge=0)
    """How much of the conversation before the request the judge sees, from its end; 0: none."""
    min_hint_chars: int = Field(10, ge=0)
    """A shorter hint is no hint."""


class LoraConfig(Section):
    rank: int = Field(16, gt=0)
    """Rank of the adapter."""
    alpha: float = Field(32.0, gt=0)
    """Scale: the adapter's output is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout before the adapter, in training only."""
    targets: list[str] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    """Names of the linear layers that get an adapter."""


class TrainConfig(Section):
    method: Literal["binary", "opd", "combine"] = "combine"
    """`binary`: reward per turn. `opd`: distil what the model would have said with the hint. `combine`: both, as separate terms."""
    weight_binary: float = Field(1.0, ge=0)
    """Weight of the binary term in `combine`."""
    weight_opd: float = Field(1.0, ge=0)
    """Weight of the distillation term in `combine`."""
    gap_clip: float = Field(2.0, gt=0)
    """Distillation: log-probability gaps between teacher and policy are clamped to ± this."""
    teacher: Literal["self", "base"] = "self"
    """Who reads the hint in distillation: the policy itself as it is before the step, or version 0."""
    baseline: Literal["none", "mean"] = "none"
    """Binary: subtract nothing, or the running mean reward of turns of its kind
    (its `task_id` up to the first `-` or `/`)."""
    batch_turns: int = Field(16, gt=0)
    """A step is made of so many usable turns, …"""
    batch_wait_s: float = Field(600.0, gt=0)
    """… or of those that are there (at least `batch_min_turns`) once the oldest has waited so long."""
    batch_min_turns: int = Field(4, gt=0)
    """The fewest turns a step that waited too long may have."""
    lr: float = Field(1e-5, gt=0)
    """Learning rate after warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises from 0."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW."""
    weight_decay: float = Field(0.01, ge=0)
    """Of AdamW."""
    clip_grad: float = Field(1.0, gt=0)
    """Largest gradient norm."""
    mask_threshold: float = Field(0.2, gt=0, le=1)
    """Off-policy: a token whose probability has moved by more than this since it was sampled, in the direction its
    advantage pushes, is left out (DPPO's probability-difference mask)."""
    ratio_penalty: float = Field(1e-3, ge=0)
    """Weight of (log ratio)² which keeps the policy near the sampler."""
    max_staleness: int = Field(8, ge=0)
    """Turns sampled more than so many versions ago are refused, with the reason."""
    tokens_per_microbatch: int = Field(8192, gt=0)
    """Tokens in one forward and backward pass."""
    lora: LoraConfig | None = None
    """Train an adapter instead of all weights."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the forward pass; master weights and optimizer are float32 always."""
    max_steps: int | None = None
    """Stop after so many steps in all; unset: go on."""
    keep_checkpoints: int = Field(2, gt=0)
    """How many checkpoints stay on disk."""
    seed: int = 0
    """Of dropout and of the adapter's first weights."""
    threads: int | None = None
    """CPU threads of the trainer; unset: PyTorch's choice."""


class EvalConfig(Section):
    suites: list[Literal["personalisation"]] = ["personalisation"]
    """What is measured: `personalisation` plays students and teachers; satisfaction and correctness of first replies."""
    problems: int = Field(36, gt=0)
    """Tasks in a suite, half for students, half for teachers."""
    seed: int = 0
    """Chooses the tasks; they are never those that simulated people ask."""
    temperature: float = Field(1.0, ge=0)
    """Of the answers that are measured."""
    concurrency: int = Field(16, gt=0)
    """Calls in flight at a time."""
    endpoint: str | None = None
    """Server to measure. Unset: the server of this run."""


class GateConfig(Section):
    max_correctness_drop: float = Field(0.10, ge=0, le=1)
    """A candidate that answers correctly less often than the live policy by more than this stays out."""
    max_satisfaction_drop: float = Field(0.10, ge=0, le=1)
    """Likewise for satisfaction."""


class UpConfig(Section):
    stages: list[Literal["serve", "collect", "judge", "train", "eval"]] = ["serve", "collect", "judge", "train"]
    """What `clawctl up` starts. With a gate, `eval` is needed as well."""
    backoff_s: float = Field(1.0, gt=0)
    """Wait before a stage that died is started again; doubles each time, up to a minute."""


class Recipe(Section):
    name: str = "default"
    """What this recipe is called in reports."""
    model: ModelConfig = ModelConfig()
    """The model that serves and learns."""
    serve: ServeConfig = ServeConfig()
    """The server."""
    collect: CollectConfig = CollectConfig()
    """Sessions from captures."""
    judge: JudgeConfig = JudgeConfig()
    """Verdicts from what came back."""
    train: TrainConfig = TrainConfig()
    """Steps from verdicts."""
    eval: EvalConfig = EvalConfig()
    """Measuring a policy."""
    gate: GateConfig | None = None
    """With a gate a new policy goes live only after `eval` let it; without, as soon as it is published."""
    up: UpConfig = UpConfig()
    """What `clawctl up` starts."""

    @property
    def model_name(self) -> str:
        return self.model.name or Path(self.model.path).name

    @property
    def model_path(self) -> str:
        return str(DEMO_MODEL) if self.model.path == "demo" else self.model.path


def load_recipe(path: Path | None, overrides: dict[str, Any] | None = None) -> Recipe:
    """The recipe in `path` (or the defaults), with `overrides` such as {"train.method": "opd"} laid over it; None is not set.

    Raises ClawError (exit code 2) naming the first wrong key.
    """
    data: Any = {}
    if path is not None:
        try:
            data = yaml.safe_load(path.read_text()) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ClawError(f"recipe {path} cannot be read: {error}", "name a YAML file; examples are in recipes/", 2) from error
    if not isinstance(data, dict):
        raise ClawError(f"recipe {path} is not a mapping", "start from one in recipes/", 2)
    for key, value in (overrides or {}).items():
        if value is not None:
            _lay_over(data, key.split("."), value)
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        where = f"recipe {path}" if path else "the command line"
        unknown = first["type"] == "extra_forbidden"
        cure = f"known keys are listed in docs/recipes.md{_near(key)}" if unknown else "give it a valid value"
        raise ClawError(f"{where}: {key}: {first['msg'].lower()}", cure, 2) from error


def _lay_over(data: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        below = data.get(part)
        data[part] = below if isinstance(below, dict) else {}
        data = data[part]
    data[path[-1]] = value


def _near(key: str) -> str:
    import difflib

    found = difflib.get_close_matches(key, known_keys(Recipe), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def known_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key a recipe may have, dotted: ["train.lora.rank", …]."""
    keys = []
    for name, field in section.model_fields.items():
        keys.append(prefix + name)
        parts = (field.annotation, *getattr(field.annotation, "__args__", ()))  # X | None holds X
        for inner in (part for part in parts if isinstance(part, type) and issubclass(part, Section)):
            keys += known_keys(inner, f"{prefix}{name}.")
    return keys


def from_environment(name: str) -> str | None:
    """CLAWCTL_<name>, or OPENCLAW_<name> for people who come from there: the one place that reads the environment."""
    return os.environ.get(f"CLAWCTL_{name}") or os.environ.get(f"OPENCLAW_{name}") or None


def openclaw_config() -> Path:
    """Where OpenClaw looks for its configuration."""
    if named := os.environ.get("OPENCLAW_CONFIG_PATH"):
        return Path(named)
    if state := os.environ.get("OPENCLAW_STATE_DIR"):
        return Path(state) / "openclaw.json"
    return Path(os.environ.get("OPENCLAW_HOME") or Path.home()) / ".openclaw" / "openclaw.json"


def place_among_ranks() -> tuple[int, int, int]:
    """Rank, number of ranks, and rank on this machine, as torchrun (or Slurm, through it) sets them; alone: (0, 1, 0)."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    return rank, world, int(os.environ.get("LOCAL_RANK", "0"))
