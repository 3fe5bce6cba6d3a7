"""Settings of `train:`, how judged turns are trained."""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, LiteralString, Self

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from clawctl.config.methods import METHODS, Binary, Combine, Grouped, Grpo, Hints, Hybrid, Method, Opd, OpdTopk, Rewards
from clawctl.config.section import GpuNumbers, HttpUrl, Section, When
from clawctl.run.reward import PRACTICE

log = logging.getLogger("clawctl")


class LoraConfig(Section):
    rank: int = Field(16, gt=0)
    """Rank of the adapter."""
    alpha: float = Field(32.0, gt=0)
    """Scale of the adapter: its output is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the adapter's input, during training only."""
    targets: list[str] | Literal["all-linear"] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    """Names of the linear layers that get an adapter. `all-linear`: all of them except the output head."""
    rslora: bool = False
    """Scale by alpha / sqrt(rank) instead, so that a high rank learns as fast as a low one (rsLoRA)."""
    quantize: Literal["nf4", "int8"] | None = None
    """Store the frozen base model in 4 or 8 bits (bitsandbytes, needs CUDA). Its logprobs then differ slightly from the
    server's."""


class PriceConfig(Section):
    prefill: float = Field(ge=0)
    """Price of a million tokens that are only read: forward passes of the policy and of the teacher."""
    train: float = Field(ge=0)
    """Price of a million tokens that are trained on, their prompts included."""


class ServiceConfig(Section):
    url: HttpUrl | None = None
    """Address of the service. Unset: that of its SDK."""
    api_key: str | None = None
    """API key of the service. Unset: the SDK reads `TINKER_API_KEY` or `FIREWORKS_API_KEY`."""
    base_model: str | None = None
    """Name under which the service offers the model of `model.path`. Unset: `model.path` itself."""
    loss: Literal["sum", "mean"] = "sum"
    """How the service adds up the loss of a batch. `sum`: over all tokens, as Tinker documents it. `mean`: the mean over tokens of
    each sequence, then over sequences, as SkyRL's server does. The gradient is the same; a wrong value is refused before a
    step is saved."""
    price: PriceConfig | None = None
    """Prices in your currency, from which the cost of each step is computed."""
    limit: float | None = Field(None, ge=0)
    """Training stops before a step that would raise the total cost of this run above this amount. Needs `price`."""

    @model_validator(mode="after")
    def _check_limit(self) -> Self:
        if self.limit is not None and self.price is None:
            raise PydanticCustomError("service", "limit needs price, because a cost cannot be computed without it")
        return self


class Local(Section):
    kind: str = Field("local", alias="backend")
    """The backend that trains: `local`, on this machine's GPUs or CPUs; `tinker`, a service with Tinker's protocol; `fireworks`;
    an installed package's backend; or your own as `file.py:name`. Also as a section: `{kind: tinker, url: https://…}` with the
    keys of `service`."""
    merge: Literal["tree", "none"] = "tree"
    """`tree`: compute what the turns of a session share only once. `none`: each turn is a separate sequence. The numbers are the
    same, but training is slower."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the forward pass and of an adapter's frozen base model. Master weights and optimizer are always float32."""
    tokens_per_microbatch: int = Field(8192, gt=0)
    """Tokens in one forward and backward pass. A longer session is split between two turns."""
    gradient_checkpointing: float = Field(0, ge=0, le=1)
    """Share of the layers of which only the input is stored, and which are computed again in the backward pass. `true` is all of
    them: far less memory, and about a third more time."""
    shard: Literal["auto", "none", "full"] = "auto"
    """Shard weights, gradients and optimizer over the ranks (FSDP2). `auto`: shard if all weights are trained on several GPUs, or
    if `optimizer_offload` needs it. `none`: each rank holds everything. `full`: always shard."""
    optimizer_offload: bool = False
    """Keep master weights, gradients and optimizer in host memory. The GPU then holds only the layer being computed. This has no
    effect on the CPU."""
    optimizer_every: int = Field(1, gt=0)
    """Steps between two writes of AdamW's moments, which are most of what a step writes. The weights are written at each step. A
    trainer that starts again continues from the newest weights, with moments that can be this many steps old, less one."""
    device_memory_gb: float | None = Field(None, gt=0)
    """Memory of one training device in GiB, for the estimate before the first step. Unset: read from the device."""
    ignore_estimate: bool = False
    """Train even if weights, gradients and optimizer alone exceed the device's memory."""
    peak_tflops: float | None = Field(None, gt=0)
    """Peak TFLOPS of the device in the type of the forward pass, for MFU. Unset: taken from a table of known GPUs. For other
    devices no MFU is reported."""
    threads: PositiveInt | None = None
    """CPU threads of the trainer. Unset: PyTorch decides."""
    when: When = "always"
    """When steps are made: `always`, `idle`, or hours of the day such as `"01:00-06:00"` (local time). `idle` is for a device that
    serves as well: a step begins while nobody asks anything. Except with `always`, a step rests between two layers while the server
    answers somebody. With `idle`, `clawctl play` begins its episodes in the same gaps."""
    idle_s: float = Field(5.0, ge=0)
    """`idle`: seconds without a request of a person before a step begins."""
    longest_rest_s: float = Field(600.0, ge=0)
    """Longest wait for a gap, and longest rest of a step in all. After it a step goes on one layer at a time, with a quarter of a
    second between two layers, while the server answers somebody."""


class AtService(Section):
    kind: str = Field(alias="backend")
    service: ServiceConfig | None = None
    """Settings of the service that trains, for `tinker` and `fireworks`. docs/backends.md describes them."""
    send_conversations: bool = False
    """Allow a backend on other machines. It receives the token ids of the trained conversations, which are their words."""


class Installed(Local, AtService):
    """A backend of an installed package or of a file, which may use all settings."""


_OTHER = "other backends"  # the class of other names; another method is an error
UNIONS: dict[str, dict[str, type[Section]]] = {
    "backend": {"local": Local, "tinker": AtService, "fireworks": AtService, _OTHER: Installed},
    "method": {**METHODS, _OTHER: Method},
}


@cache
def kinds_with(key: str, union: str) -> list[str]:
    """The methods or backends that have a setting; none if it belongs to all of them."""
    return [kind for kind, section in UNIONS[union].items() if key in section.model_fields and key != "kind"]


def _error(text: LiteralString, **context: Any) -> PydanticCustomError:
    return PydanticCustomError("train", text, context)


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with those of the method and of the backend beside their names."""
    for name in UNIONS.keys() & settings.keys():
        section = dict(settings[name])
        settings = {**settings, name: section.pop("kind"), **section}
    return settings


class TrainConfig(Section):
    """In a recipe, the settings of the method and of the backend stand beside their names: `method: hybrid`, `topk: 8`."""

    backend: Local | AtService | Installed = Local()
    method: Binary | Grpo | Opd | OpdTopk | Combine | Hybrid = Combine()
    teacher: str = Field("self", pattern=r"^(self|base|ema|https?://\S+)$")
    """Teacher for distillation, which sees the hint. `self`: the policy before the step. `base`: version 0. `ema`: an exponential
    moving average of the policy. A URL: a vLLM server (`http://host:port/v1`) whose model has the same tokens.
    `binary` and `grpo` accept it for a custom loss only."""
    batch_turns: int = Field(16, gt=0)
    """Usable turns per step; see also `batch_wait_s`."""
    batch_wait_s: float = Field(600.0, gt=0)
    """Seconds after which a smaller step is made. It needs `batch_min_turns` turns, and the oldest must have waited this long."""
    batch_min_turns: int = Field(4, gt=0)
    """Fewest turns in a step that is made because of `batch_wait_s`."""
    fair_keys: bool = True
    """Divide each step equally among the API keys that have waiting turns. A key gets more only if other keys leave room."""
    lr: PositiveFloat | Literal["auto"] = 1e-5
    """Learning rate after warm-up. A personal run makes tens of steps, in which 1e-6 has no visible effect. An adapter usually
    tolerates ten times as much. `auto`: each step moves the policy by `movement`, whatever the model's size, the trained weights
    and the adapter's rank."""
    movement: float = Field(0.05, gt=0)
    """`lr: auto`: KL divergence between the policies after and before a step, in nats a token, measured on its turns. The step is
    scaled until it moves the policy by this much. Warm-up begins with smaller movements, and a batch that is not full moves it in
    proportion to its turns. A step of `opd_topk` goes at most a quarter of the way to the teacher."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises from 0. `clip_grad` bounds the first steps."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's betas."""
    epsilon: float = Field(1e-8, gt=0)
    """AdamW's epsilon. AdamW divides each gradient by its recent size, so a step on faint evidence is as large as any other. A
    gradient far below epsilon moves its weight less."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's weight decay. A large one pulls the weights of a finished model towards zero."""
    base_pull: float = Field(0.0, ge=0, lt=1)
    """Share of the way to version 0 that the trained weights go back after each step. It removes drift that no turn asks for, so
    that ability lasts through hundreds of steps. What users go on asking for is learned again. A share of 0.01 forgets half in
    69 steps. With all weights trained it needs version 0 in memory."""
    kl_budget: float | None = Field(None, gt=0)
    """Largest KL divergence of a version from version 0, in nats a token, measured on turns of its step. A step that goes further
    is pulled back until it is within. With all weights trained it needs version 0 in memory. null: no limit."""
    clip_grad: float = Field(1.0, gt=0)
    """Largest gradient norm."""
    turn_bound: float | None = Field(2.0, ge=1)
    """Upper bound for a turn's gradient, as a multiple of the mean gradient of the other turns in its step. A turn above it is
    weighted down. null: no bound. docs/methods.md has the formula."""
    off_policy: Literal["dppo", "ppo_clip", "tis", "cispo", "gspo"] = "dppo"
    """Correction for tokens that an older version sampled. `ratio` is the policy's probability of a token over the sampler's.
    `dppo`: weight by the ratio, and mask tokens beyond `mask_threshold`. `ppo_clip`: clip the ratio. `gspo`: clip the ratio of the
    whole turn. `tis`, `cispo`: weight by the ratio with an upper limit, and mask no token. Other systems use a PPO clip. Its ratio
    compares the trainer with itself and is 1 in a batch's only step, so it never acts on old turns."""
    mask_threshold: float = Field(0.2, gt=0, le=1)
    """`dppo`: largest change in a token's probability since it was sampled. A token that moved further in the direction of its
    advantage is masked (DPPO's probability-difference mask)."""
    clip_low: float | None = Field(None, ge=0, le=1)
    """Lower bound of the ratio: 1 minus this value. Unset: 0.2 for `ppo_clip`, 1 for `cispo`, 3e-4 for `gspo`, 0.2 for the
    distillation of `hybrid`."""
    clip_high: float | None = Field(None, ge=0)
    """Upper bound of the ratio: 1 plus this value. Unset: 0.28 for `ppo_clip`, 4 for `cispo`, 4e-4 for `gspo`, 0.28 for the
    distillation of `hybrid`."""
    ratio_cap: float = Field(2.0, gt=0)
    """`tis`: largest weight of a token."""
    ratio_penalty: float = Field(1e-3, ge=0)
    """Weight of the (log ratio)² penalty, which keeps the policy close to the sampler."""
    max_mismatch: float = Field(0.5, gt=0)
    """Largest mean difference per token between the sampler's and the trainer's logprobs. Turns of the newest version above it are
    refused. If most of them exceed it, the base model is wrong and training stops."""
    max_skipped_steps: int = Field(5, gt=0)
    """Training stops after this many failed steps in a row (loss or gradient not finite, or logprobs that disagree)."""
    max_refusals: int = Field(3, gt=0)
    """Training pauses after the gate or a server refused this many updates in a row. It resumes when LIVE moves, when you start it
    with another recipe, or with `clawctl train --from`."""
    max_staleness: int = Field(8, ge=0)
    """Turns that were sampled more updates ago than this are refused, with the reason. After a refusal or a rollback, updates are
    counted along the lineage: back to the newest common ancestor, then forward from it."""
    longest_turn_tokens: int | None = Field(None, gt=0)
    """A turn with more tokens, prompt and answer together, is never trained; the ledger has its length. Unset: on a GPU and with
    `train.device_memory_gb`, what fits alone by the estimate; elsewhere turns are refused only when memory runs out."""
    lora: LoraConfig | None = None
    """Train an adapter instead of all weights."""
    gpus: GpuNumbers | None = None
    """GPUs of this machine for training, by number. `clawctl train` starts torchrun with one process per GPU."""
    max_steps: int | None = None
    """Total number of steps after which training ends. Unset: training continues as long as there are turns."""
    keep_checkpoints: int = Field(2, gt=0)
    """Number of checkpoints to keep. Every step is saved, so that a crash loses no turn."""
    keep_turn_records: int = Field(100, ge=0)
    """Number of steps for which the numbers of each trained token are kept, for `clawctl inspect why`. 0: none."""
    trackers: list[Literal["wandb", "tensorboard", "trackio"]] = []
    """Where to log each step in addition to `train/steps.jsonl`. Each tracker needs its package: `pip install 'clawctl[wandb]'`
    …"""
    tracker_project: str = "clawctl"
    """Project name in wandb and trackio. The run has the name of its directory."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline`: write to `train/wandb/` and send nothing; upload it later with `wandb sync`. `online`: send at once."""
    custom_loss: str | None = None
    """Your own loss, as `file.py:name`: `compute_loss(policy_logits, reference_logits, rewards, advantages, config)`, where the
    logits are log-probabilities of the sampled tokens. It replaces the policy loss. clawctl runs the file as it is, so load only
    code that you trust."""
    seed: int = 0
    """Seed for dropout and for the adapter's initial weights."""

    @model_validator(mode="before")
    @classmethod
    def _fold(cls, data: Any, info: ValidationInfo) -> Any:
        """Make the sections of the method and of the backend from the settings beside their names.

        A setting of another method is an error, and a warning in a recipe that an earlier version saved. A setting of another
        backend is a warning, because `--backend` may select one for any recipe.
        """
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for name, union in UNIONS.items():
            default = cls.model_fields[name].default.kind
            given = data.pop(name, default)
            section = dict(given) if isinstance(given, dict | Section) else {"kind": given}
            kind = section.pop("kind", default)
            if name == "backend" and kind != "local" and section and isinstance(given, dict):
                section = {"service": section}
            if wrong := next((key for key in section if not kinds_with(key, name) and (name, key) != ("method", "teacher")), None):
                raise _error("{name} {kind} has no setting {key}", name=name, kind=kind, key=wrong)
            if twice := next((key for key, value in section.items() if data.get(key, value) != value), None):
                raise _error("{key} is set twice, in the section {name} and beside it", key=twice, name=name)
            data, fields = data | section, {name: kind}
            chosen = union.get(str(kind), union[_OTHER])
            for key in [key for key in data if kinds_with(key, name)]:
                value, kinds = data.pop(key), kinds_with(key, name)
                if key in chosen.model_fields or chosen is Method:
                    fields[key] = value
                elif value != union[kinds[0]].model_fields[key].default:
                    listed = ", ".join(kinds[:-1]) + " and " * (len(kinds) > 1) + kinds[-1]
                    if name == "method" and not (info.context or {}).get("saved"):
                        text = "{key} has no effect with method {kind}; it belongs to {listed}"
                        raise _error(text, key=key, kind=kind, listed=listed)
                    log.warning("the recipe of this run sets train.%s, which belongs to %s, not %s", key, listed, kind)
            data[name] = chosen.model_validate(fields)
        return data

    @model_validator(mode="after")
    def _check_pairs(self, info: ValidationInfo) -> Self:
        if self.hints.teach_praised and not self.hints.earlier_hints:
            raise _error("teach_praised has no effect without earlier_hints")
        if self.lr != "auto" and self.movement != type(self).model_fields["movement"].default:
            raise _error("movement has no effect unless lr is auto")
        if isinstance(self.method, Combine) and self.method.guidance != 1 and self.method.topk is None:
            raise _error("guidance has no effect with method combine unless topk is set")
        alone = not self.uses_hints and self.custom_loss is None  # a custom loss may compare with `base`
        if alone and self.teacher != "self" and not (info.context or {}).get("saved"):
            raise _error("teacher has no effect with method {method} unless custom_loss is set", method=self.method.kind)
        return self

    @classmethod
    def recipe_keys(cls) -> dict[str, FieldInfo]:
        keys = dict(cls.model_fields)
        for name, union in UNIONS.items():
            keys[name] = union[_OTHER].model_fields["kind"]
            keys |= {key: field for section in union.values() for key, field in section.model_fields.items() if key != "kind"}
        return keys

    def settings(self) -> dict[str, Any]:
        return _flat(dict(self))

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _flat(dump(self))

    def changed(self, **settings: Any) -> Self:
        """The same with other settings. Raises ValidationError."""
        return self.model_validate(self.settings() | settings)

    @property
    def local(self) -> Local:
        """The settings of a trainer on this machine, or their defaults with a service."""
        return self.backend if isinstance(self.backend, Local) else Local()

    @property
    def service(self) -> ServiceConfig:
        """The settings of the service that trains, or their defaults."""
        return (self.backend.service if isinstance(self.backend, AtService) else None) or ServiceConfig()

    @property
    def groups(self) -> Grouped:
        """The settings of groups, or their defaults with a method that has none."""
        return self.method if isinstance(self.method, Grouped) else Grouped()

    @property
    def rewards(self) -> Rewards:
        """The settings of the reward term, or their defaults with a method that has none."""
        return self.method if isinstance(self.method, Rewards) else Rewards()

    @property
    def hints(self) -> Hints:
        """The settings of distillation, or their defaults with a method that learns from rewards alone."""
        return self.method if isinstance(self.method, Hints) else Hints()

    @property
    def uses_rewards(self) -> bool:
        return isinstance(self.method, Grouped)

    def teaches(self, turn: Mapping[str, Any], verdict: Mapping[str, Any], value: float | None) -> bool:
        """Whether a teacher has something to read about a turn of this value, as far as the rows of its shards show."""
        if not self.uses_hints:
            return False
        hindsight = self.hints.hint != "judge" and (value or 0) <= 0  # a turn that can be trained has a reaction
        noted = turn["notes"] is not None and not self.uses_rewards and (value or 0) >= 0
        return bool(verdict["hint"]) or verdict["judge"] == PRACTICE or hindsight or noted

    @property
    def uses_hints(self) -> bool:
        return isinstance(self.method, Hints)

    @property
    def needs_second_model(self) -> bool:
        """Whether version 0 is loaded as a second model. With an adapter, version 0 is the policy without the adapter."""
        teaches = (self.teacher == "base" and self.uses_hints) or self.custom_loss is not None
        return self.lora is None and (teaches or bool(self.base_pull) or self.kl_budget is not None)

    @property
    def credit(self) -> Literal["reward", "group", "gae"]:
        """The kind of advantage that the reward term uses."""
        return "group" if isinstance(self.method, Grpo) else self.rewards.advantage
