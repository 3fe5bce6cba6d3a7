"""The recipe: everything a human may set, strict, frozen, documented under each field. Importing this imports no torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from clawctl.checksums import Damaged, check_yaml
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
    """What it is. Of vLLM and SGLang exact token ids can be had; without them turns are kept but not trained."""
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
    splice: bool = False
    """Put earlier answers of ours into the prompt as they were sampled, where a client sends them back in other words (other white
    space, tool arguments written anew, reasoning left out). It changes what the model sees. Not for upstreams other than vLLM."""
    pinned_versions: int = Field(2, ge=1)
    """How many versions other than the live one (`NAME@3`) stay loaded at a time."""
    gpus: list[int] | None = None
    """GPUs of this machine that the server may use, by number; unset: all."""
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


# What people who come from elsewhere call the judge's settings
_JUDGE_ELSEWHERE = {
    "majority_vote_n": "votes",
    "num_judges": "votes",
    "majority_vote_threshold": "threshold",
    "consensus_threshold": "threshold",
    "judge_model": "model",
    "hint_extraction_model": "hint_model",
    "num_judge_workers": "concurrency",
    "prm_path": "prm",
    "custom_rm_path": "custom_rm",
}


class JudgeConfig(Section):
    endpoint: str | None = None
    """Base URL of an OpenAI-compatible server (`http://host:port/v1`). Unset: the server of this run."""
    endpoints: list[str] = []
    """More of them, all with the same `model` and `api_key`: the one with the fewest calls in flight is asked next, one that fails
    rests and is tried again."""
    model: str | None = None
    """Model to ask (elsewhere `judge_model`). Unset: version 0 of the policy (`NAME@0`), which is never the one being trained."""
    api_key: str | None = None
    """Key of `endpoint`. Unset: this run's key, if `endpoint` is this run's server."""
    prm: str | None = None
    """A sequence-classification model (directory or name) that judges instead of an endpoint (elsewhere `prm_path`). Its labels go
    from worst to best; one label is a logit."""
    prm_threshold: float = Field(0.5, gt=0, le=1)
    """Its score lies between -1 and 1: so far from 0 it is a 1 or a -1, else 0."""
    prm_batch: int = Field(16, gt=0)
    """Turns it scores at a time."""
    custom_rm: str | None = None
    """`file.py:name` of a reward model of yours that judges instead of an endpoint (elsewhere `custom_rm_path`)."""
    rules: bool = True
    """Exit codes, test verdicts and thumbs decide where they are plain; only the rest is asked about."""
    outcome: Literal["decides", "apart"] = "decides"
    """Where an environment scored the whole episode: that score is the reward, or the judge scores the turn all the same."""
    votes: int = Field(3, gt=0, le=99)
    """Answers asked per turn (elsewhere `majority_vote_n`, `num_judges`); the majority decides, in a tie the judge abstains."""
    threshold: float = Field(0.5, ge=0, le=1)
    """Share of the valid votes that the majority needs, else the judge abstains (elsewhere `majority_vote_threshold`,
    `consensus_threshold`)."""
    hints: Literal["with_vote", "apart", "off"] = "with_vote"
    """Hints come with the votes that agree with the verdict, from one further call per turn that has a reward (also where a rule
    or a person decided), or not at all."""
    hint_model: str | None = None
    """Model that is asked for hints `apart` (elsewhere `hint_extraction_model`). Unset: `model`."""
    temperature: float = Field(0.6, ge=0)
    """Of the judge: 0 makes all votes the same."""
    max_tokens: int = Field(4096, gt=0)
    """Longest answer of the judge."""
    concurrency: int = Field(16, gt=0)
    """Calls in flight at a time, over all endpoints (elsewhere `num_judge_workers`)."""
    requests_per_s: float | None = Field(None, gt=0)
    """Most calls a second that each endpoint is sent; unset: no limit."""
    timeout_s: float = Field(120.0, gt=0)
    """A call without an answer for so long is tried again, then counted as a failed vote."""
    history_chars: int = Field(4000, ge=0)
    """How much of the conversation before the request the judge sees, from its end; 0: none."""
    min_hint_chars: int = Field(10, ge=0)
    """A shorter hint is no hint."""
    max_hint_chars: int = Field(600, gt=0)
    """Nor is a longer one."""

    @model_validator(mode="before")
    @classmethod
    def _elsewhere(cls, given: Any) -> Any:
        """Accept the names that other systems use; our own name wins."""
        if not isinstance(given, dict):
            return given
        ours = {_JUDGE_ELSEWHERE[key]: value for key, value in given.items() if key in _JUDGE_ELSEWHERE}
        return {**ours, **{key: value for key, value in given.items() if key not in _JUDGE_ELSEWHERE}}


class LoraConfig(Section):
    rank: int = Field(16, gt=0)
    """Rank of the adapter."""
    alpha: float = Field(32.0, gt=0)
    """Scale: the adapter's output is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout before the adapter, in training only."""
    targets: list[str] | Literal["all-linear"] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    """Names of the linear layers that get an adapter; `all-linear`: all but the output head."""
    rslora: bool = False
    """Scale by alpha / sqrt(rank) instead, so that a high rank learns as fast as a low one (rsLoRA)."""
    quantize: Literal["nf4", "int8"] | None = None
    """Hold the frozen base in 4 or 8 bits (bitsandbytes, on CUDA). Its logprobs are then not quite the server's."""


class TrainConfig(Section):
    method: Literal["binary", "grpo", "opd", "opd_topk", "combine", "hybrid"] = "combine"
    """`binary`: reward per turn. `grpo`: reward less the mean of its group. `opd`: distil what the model would have said with the
    hint, on the sampled tokens. `opd_topk`: the same on the likeliest tokens at each position, as a KL. `combine`: `binary` and
    `opd` as separate terms. `hybrid`: `binary` and a distillation that chooses among several hints."""
    weight_binary: float = Field(1.0, ge=0)
    """Weight of the reward term in `combine` and `hybrid`."""
    weight_opd: float = Field(1.0, ge=0)
    """Weight of the distillation term in `combine` and `hybrid`."""
    advantage: Literal["reward", "group", "gae"] = "reward"
    """What the reward term gives each token of a turn: its reward less `baseline`; its reward less the mean of its group
    (`grpo` always); or the discounted rewards of the turns that followed it in its session."""
    baseline: Literal["none", "mean"] = "none"
    """For lone turns: subtract nothing, or the running mean reward of turns of its kind
    (its `task_id` up to the first `-` or `/`)."""
    group_size: int = Field(4, ge=2)
    """Groups: episodes (sessions) of one `group_id`. A group is trained whole, once so many are there or it waited
    `batch_wait_s`."""
    group_std: bool = True
    """Groups: divide by the standard deviation of the group's rewards as well."""
    step_wise: bool = False
    """Groups: compare a turn with the turns at the same place in the other episodes, instead of episode with episode."""
    gamma: float = Field(0.99, ge=0, le=1)
    """`gae`: how much of the next turn's worth a turn inherits."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """`gae`: how far credit reaches back; it fades by gamma * gae_lambda a turn."""
    gap_clip: float = Field(2.0, gt=0)
    """Distillation: log-probability gaps between teacher and policy are clamped to ± this."""
    teacher: str = Field("self", pattern=r"^(self|base|ema|https?://\S+)$")
    """Who reads the hint in distillation: `self`, the policy as it is before the step; `base`, version 0; `ema`, a slow average of
    the policy; or the URL of a vLLM server (`http://host:port/v1`) whose model has the same tokens."""
    teacher_decay: float = Field(0.99, ge=0, lt=1)
    """`ema`: how much of the average stays after a step."""
    teacher_model: str | None = None
    """Model to ask at the URL; unset: the first that it serves."""
    teacher_api_key: str | None = None
    """Key of the URL."""
    topk: int | None = Field(None, gt=0)
    """`opd_topk`, `hybrid`: how many of the policy's likeliest tokens are compared at each position; unset: 50 and 4."""
    hint_choice: Literal["sequence", "token", "shortest"] = "sequence"
    """`hybrid`: the hint whose teacher shares most likely tokens with the policy, over the whole answer or at each token; or the
    shortest hint."""
    hint_candidates: int = Field(3, gt=0)
    """`hybrid`: how many different hints, shortest first, are compared."""
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
    off_policy: Literal["dppo", "ppo_clip", "tis", "cispo", "gspo"] = "dppo"
    """How tokens count that an older version sampled; `ratio` is the policy's probability of a token over the sampler's. `dppo`:
    weighed by the ratio, left out beyond `mask_threshold`. `ppo_clip`: ratio clipped. `gspo`: the same with the ratio of the whole
    turn. `tis`, `cispo`: weighed by the ratio, which is cut off but leaves no token out."""
    mask_threshold: float = Field(0.2, gt=0, le=1)
    """`dppo`: a token whose probability has moved by more than this since it was sampled, in the direction its
    advantage pushes, is left out (DPPO's probability-difference mask)."""
    clip_low: float | None = Field(None, ge=0, le=1)
    """The ratio is held above 1 - this; unset: 0.2 in `ppo_clip`, 1 in `cispo`, 3e-4 in `gspo`, 0.2 in the distillation of
    `hybrid`."""
    clip_high: float | None = Field(None, ge=0)
    """The ratio is held below 1 + this; unset: 0.28 in `ppo_clip`, 4 in `cispo`, 4e-4 in `gspo`, 0.28 in the distillation of
    `hybrid`."""
    ratio_cap: float = Field(2.0, gt=0)
    """`tis`: the largest weight of a token."""
    ratio_penalty: float = Field(1e-3, ge=0)
    """Weight of (log ratio)² which keeps the policy near the sampler."""
    max_mismatch: float = Field(0.5, gt=0)
    """A turn that the newest version sampled and whose logprobs differ from the trainer's by more than this, on average over its
    tokens, is refused. Where most do, the model is the wrong one and training stops."""
    max_skipped_steps: int = Field(5, gt=0)
    """Training stops after so many steps in a row that could not be made (loss or gradient not finite, logprobs that disagree)."""
    max_staleness: int = Field(8, ge=0)
    """Turns sampled more than so many versions ago are refused, with the reason."""
    tokens_per_microbatch: int = Field(8192, gt=0)
    """Tokens in one forward and backward pass. A session that is longer is cut between two turns."""
    merge: Literal["tree", "none"] = "tree"
    """`tree`: what the turns of a session share is computed once. `none`: each turn is a sequence of its own; same numbers,
    slower."""
    lora: LoraConfig | None = None
    """Train an adapter instead of all weights."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the forward pass; master weights and optimizer are float32 always. The frozen base of an adapter is kept in this type."""
    gradient_checkpointing: bool = False
    """Keep only what goes into each layer and compute the layer again in the backward pass: far less memory, a third more time."""
    shard: Literal["auto", "none", "full"] = "auto"
    """Cut weights, gradients and optimizer over the ranks (FSDP2). `auto`: on several GPUs where all weights are trained, and where
    `optimizer_offload` asks for it. `none`: each rank has all of them."""
    optimizer_offload: bool = False
    """Keep master weights, gradients and optimizer in host memory, and on the GPU the layer at work alone. On the CPU it changes
    nothing."""
    gpus: list[int] | None = None
    """GPUs of this machine that train, by number; `clawctl train` then starts torchrun with a process for each."""
    device_memory_gb: float | None = Field(None, gt=0)
    """Memory of one training device in GiB, for the estimate before the first step; unset: asked of the device."""
    ignore_estimate: bool = False
    """Try it even where weights, gradients and optimizer alone are larger than the device."""
    max_steps: int | None = None
    """Stop after so many steps in all; unset: go on."""
    keep_checkpoints: int = Field(2, gt=0)
    """How many checkpoints stay on disk."""
    keep_turn_records: int = Field(100, ge=0)
    """Of so many steps the numbers of each trained token are kept, for `clawctl inspect why`; 0: of none."""
    trackers: list[Literal["wandb", "tensorboard", "trackio"]] = []
    """Where each step is told as well; `train/steps.jsonl` always is. Each needs its package: `pip install 'clawctl[wandb]'` …"""
    tracker_project: str = "clawctl"
    """Project name in wandb and trackio; the run is called after its directory."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline` writes to `train/wandb/` and sends nothing; `wandb sync` sends it later."""
    peak_tflops: float | None = Field(None, gt=0)
    """What the device can do in the forward pass's type, for MFU; unset: looked up for known GPUs, else no MFU is told."""
    custom_loss: str | None = None
    """`file.py:name` of a function `compute_loss(policy_logits, reference_logits, rewards, advantages, config)` that takes the
    place of the policy loss. The file is run as it is: load only code that you trust."""
    seed: int = 0
    """Of dropout and of the adapter's first weights."""
    threads: int | None = None
    """CPU threads of the trainer; unset: PyTorch's choice."""

    @property
    def uses_rewards(self) -> bool:
        return self.method not in ("opd", "opd_topk")

    @property
    def uses_hints(self) -> bool:
        return self.method not in ("binary", "grpo")

    @property
    def credit(self) -> Literal["reward", "group", "gae"]:
        """What the reward term is made of."""
        return "group" if self.method == "grpo" else self.advantage


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


class PrivacyConfig(Section):
    redact: list[Literal["api_key", "token", "password", "private_key", "card", "email", "phone"]] = [
        "api_key", "token", "password", "private_key", "card",
    ]  # fmt: skip
    """What is replaced by `[redacted:KIND]` before an exchange is written. A turn that held any of it is kept but never trained."""
    capture_keys: list[str] | None = None
    """Names of API keys whose conversations are captured (`team-*` works); unset: all."""
    skip_keys: list[str] = []
    """Names of API keys whose conversations are never captured, whatever `capture_keys` says."""
    capture_models: list[str] | None = None
    """Model names, as asked for, whose conversations are captured; unset: all."""
    skip_models: list[str] = []
    """Model names whose conversations are never captured."""
    max_age_days: float | None = Field(None, gt=0)
    """Conversations older than this are deleted by `clawctl retention` and by `collect`; unset: kept. Policies stay."""
    max_gb: float | None = Field(None, gt=0)
    """The oldest conversations are deleted while all of them take more than this; unset: kept."""
    keep_untrained: bool = False
    """What no stage is done with (not read to its end, not judged, or judged for a step that was not made) stays all the same. Then
    the two limits keep house and promise nothing."""


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
    privacy: PrivacyConfig = PrivacyConfig()
    """Whose conversations are captured, what is taken out of them, how long they stay."""
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
            written = path.read_bytes()
            check_yaml(written)
            data = yaml.safe_load(written.decode()) or {}
        except Damaged as error:
            cure = "give the recipe again with --recipe FILE, or, if you edited it, delete its first and last line"
            raise ClawError(f"recipe {path} is damaged: {error}", cure, 2) from error
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


def is_rank() -> bool:
    """Whether torchrun started this process."""
    return "LOCAL_RANK" in os.environ


@dataclass(frozen=True, slots=True)
class Nodes:
    """The machines of one trainer, as a scheduler names them."""

    count: int  # NNODES
    rank: int  # NODE_RANK
    address: str | None  # MASTER_ADDR
    port: int  # MASTER_PORT
    gpus: int | None  # GPUS_PER_NODE


def nodes(environment: Mapping[str, str] = os.environ) -> Nodes:
    """From the environment; without one this machine alone. Raises ClawError (exit code 2)."""

    def number(name: str, default: int | None) -> int | None:
        text = environment.get(name)
        if not text:
            return default
        if not text.isdigit():
            raise ClawError(f"{name} is {text!r} in the environment", "set it to a whole number, or unset it", 2)
        return int(text)

    count, rank = number("NNODES", 1) or 1, number("NODE_RANK", 0) or 0
    if rank >= count:
        raise ClawError(f"NODE_RANK is {rank} and NNODES is {count}", "number the nodes from 0 to NNODES - 1", 2)
    address = environment.get("MASTER_ADDR") or None
    return Nodes(count, rank, address, number("MASTER_PORT", 29500) or 29500, number("GPUS_PER_NODE", None))


def environment_with(changes: dict[str, str]) -> dict[str, str]:
    """Of a process that takes our place."""
    return {**os.environ, **changes}


def show_gpus(gpus: list[int]) -> None:
    """Let this process and those that it starts see these GPUs alone. To be called before CUDA is."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
