"""Settings of `train:`, how judged turns are trained."""

import logging
from typing import Any, Literal, Self

from pydantic import Field, PositiveFloat, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from clawctl.config.section import HttpUrl, Section
from clawctl.run.rows import HintPlace

log = logging.getLogger("clawctl")

_REWARDS, _HINTS, _BOTH = ("binary", "combine", "hybrid"), ("opd", "opd_topk", "combine", "hybrid"), ("combine", "hybrid")
# Settings that apply to some methods only. They may be in the method's section or beside it.
METHODS_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("weight_binary", "weight_opd", "reward_with_hint"), _BOTH),
    **dict.fromkeys(("advantage", "baseline", "gae_lambda"), _REWARDS),
    **dict.fromkeys(("group_size", "group_std", "step_wise", "gamma"), ("grpo", *_REWARDS)),
    "gap_clip": ("opd", *_BOTH),
    **dict.fromkeys(
        ("teacher", "teacher_decay", "teacher_model", "teacher_api_key", "earlier_hints", "teach_praised", "hint_place"), _HINTS
    ),
    "topk": ("opd_topk", "combine", "hybrid"),
    **dict.fromkeys(("divergence", "topk_of", "guidance"), ("opd_topk", "combine")),
    **dict.fromkeys(("hint_choice", "hint_candidates"), ("hybrid",)),
}


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


class TrainConfig(Section):
    backend: str = "local"
    """The backend that trains: `local`, on this machine's GPUs or CPUs; `tinker`, a service with Tinker's protocol; `fireworks`;
    an installed package's backend; or your own as `file.py:name`. Also as a section: `{kind: tinker, url: https://…}` with the
    keys of `service`."""
    service: ServiceConfig | None = None
    """Settings of the service that trains, for `tinker` and `fireworks`. docs/backends.md describes them."""
    send_conversations: bool = False
    """Allow a backend on other machines. It receives the token ids of the trained conversations, which are their words."""
    method: Literal["binary", "grpo", "opd", "opd_topk", "combine", "hybrid"] = "combine"
    """Training method. `binary`: one reward per turn. `grpo`: reward minus the mean reward of its group. `opd`: distil the policy
    with the hint in its prompt, on the sampled tokens. `opd_topk`: the same as a KL over the likeliest tokens at each position.
    `combine`: `binary` and `opd` as separate terms. `hybrid`: `binary` and a distillation that selects among several hints. Also
    as a section with the settings of the method: `{kind: hybrid, topk: 8}`."""
    weight_binary: float = Field(1.0, ge=0)
    """Weight of the reward term in `combine` and `hybrid`. Other systems use 0.5. Here each term is a mean of its own, and 1 and 1
    give their plain sum. AdamW takes nearly the same step with 0.5 and 0.5."""
    weight_opd: float = Field(1.0, ge=0)
    """Weight of the distillation term in `combine` and `hybrid`. Other systems use 0.5. Only its ratio to `weight_binary`
    matters."""
    reward_with_hint: bool = True
    """`combine` and `hybrid`: whether a turn with a hint also has the reward term. A hint names the tokens at fault. The reward
    credits all tokens of an answer, and so also changes traits that only happen to occur together with the wanted one. `false`: a
    turn with a hint is trained on the hint alone, and its reward is in no baseline."""
    advantage: Literal["reward", "group", "gae"] = "reward"
    """Advantage of a turn's tokens in the reward term. `reward`: the reward minus `baseline`. `group`: the reward minus the mean of
    its group (`grpo` always uses this). `gae`: the discounted rewards of the turns that follow in the session."""
    baseline: Literal["none", "mean"] = "none"
    """Baseline for turns without a group. `none`: nothing is subtracted. `mean`: the running mean reward of turns of the same kind
    (their `task_id` up to the first `-` or `/`)."""
    group_size: int = Field(4, ge=2)
    """Groups: episodes (sessions) with the same `group_id`. A group is trained as a whole, when it has this many episodes or after
    `batch_wait_s`. A group that `clawctl collect --env` plays is trained when its `--attempts` are over, however long they take."""
    group_std: bool = True
    """Groups: also divide by the standard deviation of the group's rewards."""
    step_wise: bool | Literal["state"] = False
    """Groups: compare each turn with the turns at the same position in the other episodes, instead of whole episodes. `state`:
    compare whole episodes, and add a comparison of the turns that were asked in the same state, by what they earned from there
    on."""
    gamma: float = Field(0.99, ge=0, le=1)
    """`gae`, and `step_wise: state`: discount factor per turn."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """`gae`: how far credit reaches back. It decays by gamma * gae_lambda per turn."""
    gap_clip: float = Field(2.0, gt=0)
    """Distillation: log-probability gaps between teacher and policy are clamped to ± this value."""
    teacher: str = Field("self", pattern=r"^(self|base|ema|https?://\S+)$")
    """Teacher for distillation, which sees the hint. `self`: the policy before the step. `base`: version 0. `ema`: an exponential
    moving average of the policy. A URL: a vLLM server (`http://host:port/v1`) whose model has the same tokens."""
    teacher_decay: float = Field(0.99, ge=0, lt=1)
    """`ema`: share of the average that is kept at each step."""
    teacher_model: str | None = None
    """Model name to request from the teacher's URL. Unset: the first model that it serves."""
    teacher_api_key: str | None = None
    """API key of the teacher's URL."""
    earlier_hints: int = Field(0, ge=0, le=64)
    """Number of hints on earlier turns of the same key that the teacher reads above the turn's own hint. They are the newest ones
    that came from a person's reply. Without them, learning one wish undoes the others. Use it for wishes that hold for every
    answer; hints about a single answer mislead the teacher."""
    teach_praised: bool = False
    """With `earlier_hints`: also distil turns that people praised, whose teacher then reads the earlier hints alone. For people who
    say who they are: their wishes are then taught wherever they are recognised, and not only where they complained."""
    topk: int | None = Field(None, gt=0)
    """`opd_topk`, `combine`, `hybrid`: number of the policy's likeliest tokens that are compared at each position. Unset: 50 for
    `opd_topk`, 4 for `hybrid`; `combine` then compares the sampled tokens alone. With a number its distillation is that of
    `opd_topk`."""
    divergence: Literal["reverse", "forward"] = "reverse"
    """`opd_topk`, and `combine` with `topk`: the direction of the KL. `reverse`: KL(policy ‖ teacher). It weighs each token by
    the policy's probability, so it cannot raise a token that the policy never samples. `forward`: KL(teacher ‖ policy). It weighs
    by the teacher's probability and also learns tokens that the policy hardly ever samples."""
    topk_of: Literal["policy", "teacher"] = "policy"
    """`opd_topk`, and `combine` with `topk`: whose likeliest tokens are compared. A token that only the teacher finds likely is not
    among those of the policy, and counts with all other tokens together."""
    guidance: float = Field(1.0, gt=0, le=4)
    """`opd_topk`, and `combine` with `topk`: the teacher's logits are those without the hint plus this multiple of what the hint
    changes (classifier-free guidance). Above 1 the policy learns wishes that the model only sometimes follows when it reads them.
    Any value but 1 costs another pass."""
    hint_place: HintPlace | Literal["auto"] = "block"
    """Where the teacher reads a hint. `block`: below the request, as `[user's hint / instruction]` (published for OpenClaw-RL).
    `line`: at the end of the request. `below`, `above`: in a paragraph of its own. `auto`: the place where the untrained model
    follows a hint most often. `clawctl play practice` tries them once and records the result; until then, `block`."""
    hint_choice: Literal["sequence", "token", "shortest"] = "sequence"
    """`hybrid`: how the hint is selected. `sequence`: the hint whose teacher shares the most likely tokens with the policy over the
    whole answer. `token`: the same at each token. `shortest`: the shortest hint."""
    hint_candidates: int = Field(3, gt=0)
    """`hybrid`: number of different hints that are compared, shortest first."""
    batch_turns: int = Field(16, gt=0)
    """Usable turns per step; see also `batch_wait_s`. Other systems use 32, accumulated 4 times. One person would wait long for 128
    turns, and only usable turns count here."""
    batch_wait_s: float = Field(600.0, gt=0)
    """Seconds after which a smaller step is made. It needs `batch_min_turns` turns, and the oldest must have waited this long."""
    batch_min_turns: int = Field(4, gt=0)
    """Fewest turns in a step that is made because of `batch_wait_s`."""
    fair_keys: bool = True
    """Divide each step equally among the API keys that have waiting turns. A key gets more only if other keys leave room."""
    lr: PositiveFloat | Literal["auto"] = 1e-5
    """Learning rate after warm-up. Other systems use 1e-6 for thousands of steps. A personal run makes tens of steps, in which 1e-6
    has no visible effect. OpenClaw-RL's own scripts also use 1e-5. An adapter usually tolerates ten times as much. `auto`: each
    step moves the policy by `movement`, whatever the model's size, the trained weights and the adapter's rank."""
    movement: float = Field(0.05, gt=0)
    """`lr: auto`: KL divergence between the policies after and before a step, in nats a token, measured on its turns. The step is
    scaled until it moves the policy by this much. Warm-up begins with smaller movements, and a batch that is not full moves it in
    proportion to its turns. A step of `opd_topk` goes at most a quarter of the way to the teacher."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises from 0. Other systems use 100, but a personal run is often shorter than that.
    `clip_grad` bounds the first steps."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's betas. Other systems use the same defaults. OpenClaw-RL's scripts use 0.9 and 0.98."""
    epsilon: float = Field(1e-8, gt=0)
    """AdamW's epsilon. AdamW divides each gradient by its recent size, so a step on faint evidence is as large as any other. A
    gradient far below epsilon moves its weight less."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's weight decay. Other systems use the same default. OpenClaw-RL's scripts use 0.1, which pulls the weights of a
    finished model towards zero."""
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
    tokens_per_microbatch: int = Field(8192, gt=0)
    """Tokens in one forward and backward pass. A longer session is split between two turns."""
    longest_turn_tokens: int | None = Field(None, gt=0)
    """A turn with more tokens, prompt and answer together, is never trained; the ledger has its length. Unset: turns are refused
    only if they do not fit into the trainer's memory."""
    merge: Literal["tree", "none"] = "tree"
    """`tree`: compute what the turns of a session share only once. `none`: each turn is a separate sequence. The numbers are the
    same, but training is slower."""
    lora: LoraConfig | None = None
    """Train an adapter instead of all weights."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the forward pass and of an adapter's frozen base model. Master weights and optimizer are always float32."""
    gradient_checkpointing: bool = False
    """Store only each layer's input and recompute the layer in the backward pass. This needs far less memory and about a third more
    time."""
    shard: Literal["auto", "none", "full"] = "auto"
    """Shard weights, gradients and optimizer over the ranks (FSDP2). `auto`: shard if all weights are trained on several GPUs, or
    if `optimizer_offload` needs it. `none`: each rank holds everything. `full`: always shard."""
    optimizer_offload: bool = False
    """Keep master weights, gradients and optimizer in host memory. The GPU then holds only the layer being computed. This has no
    effect on the CPU."""
    gpus: list[int] | None = None
    """GPUs of this machine for training, by number. `clawctl train` starts torchrun with one process per GPU."""
    device_memory_gb: float | None = Field(None, gt=0)
    """Memory of one training device in GiB, for the estimate before the first step. Unset: read from the device."""
    ignore_estimate: bool = False
    """Train even if weights, gradients and optimizer alone exceed the device's memory."""
    max_steps: int | None = None
    """Total number of steps after which training ends. Unset: training continues as long as there are turns. Other systems use
    10000."""
    keep_checkpoints: int = Field(2, gt=0)
    """Number of checkpoints to keep. Other systems save one every 100 to 500 steps. Here every step is saved, so that a crash loses
    no turn."""
    keep_turn_records: int = Field(100, ge=0)
    """Number of steps for which the numbers of each trained token are kept, for `clawctl inspect why`. 0: none."""
    trackers: list[Literal["wandb", "tensorboard", "trackio"]] = []
    """Where to log each step in addition to `train/steps.jsonl`. Each tracker needs its package: `pip install 'clawctl[wandb]'`
    …"""
    tracker_project: str = "clawctl"
    """Project name in wandb and trackio. The run has the name of its directory."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline`: write to `train/wandb/` and send nothing; upload it later with `wandb sync`. `online`: send at once."""
    peak_tflops: float | None = Field(None, gt=0)
    """Peak TFLOPS of the device in the type of the forward pass, for MFU. Unset: taken from a table of known GPUs. For other
    devices no MFU is reported."""
    custom_loss: str | None = None
    """Your own loss, as `file.py:name`: `compute_loss(policy_logits, reference_logits, rewards, advantages, config)`, where the
    logits are log-probabilities of the sampled tokens. It replaces the policy loss. clawctl runs the file as it is, so load only
    code that you trust."""
    seed: int = 0
    """Seed for dropout and for the adapter's initial weights."""
    threads: int | None = None
    """CPU threads of the trainer. Unset: PyTorch decides."""

    @model_validator(mode="before")
    @classmethod
    def _join_sections(cls, data: Any) -> Any:
        """Accept `method: {kind: hybrid, topk: 8}` as `method: hybrid` with `topk: 8`."""
        if not isinstance(data, dict):
            return data
        joined = dict(data)
        for name in ("backend", "method"):
            if not isinstance(section := joined.get(name), dict):
                continue
            own = {key: value for key, value in section.items() if key != "kind"}
            if name == "backend" and own and section.get("kind") != "local":
                own = {"service": own}
            elif wrong := next((key for key in own if name == "backend" or key not in METHODS_OF), None):
                context = {"name": name, "kind": str(section.get("kind")), "key": wrong}
                raise PydanticCustomError("train", "{name} {kind} has no setting {key}", context)
            if twice := next((key for key in own if key in data and data[key] != own[key]), None):
                raise PydanticCustomError(
                    "train", "{key} is set twice, in the section {name} and beside it", {"key": twice, "name": name}
                )
            joined = {**joined, **own}
            joined.pop(name)
            if "kind" in section:
                joined[name] = section["kind"]
        return joined

    @model_validator(mode="after")
    def _check_method(self, info: ValidationInfo) -> Self:
        """Reject a setting that has no effect with the method. In a recipe that an earlier version saved, only warn."""
        for name in METHODS_OF.keys() & self.model_fields_set:
            if not self.uses(name) and getattr(self, name) != type(self).model_fields[name].default:
                methods = METHODS_OF[name]
                listed = ", ".join(methods[:-1]) + " and " * (len(methods) > 1) + methods[-1]
                if not (info.context or {}).get("saved"):
                    context = {"key": name, "method": self.method, "methods": listed}
                    raise PydanticCustomError("train", "{key} has no effect with method {method}; it belongs to {methods}", context)
                log.warning("the recipe of this run sets train.%s, which belongs to %s, not %s", name, listed, self.method)
        return self

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.teach_praised and not self.earlier_hints:
            raise PydanticCustomError("train", "teach_praised has no effect without earlier_hints", {})
        if self.lr != "auto" and self.movement != type(self).model_fields["movement"].default:
            raise PydanticCustomError("train", "movement has no effect unless lr is auto", {})
        if self.guidance != 1 and self.method == "combine" and self.topk is None:
            raise PydanticCustomError("train", "guidance has no effect with method combine unless topk is set", {})
        return self

    def uses(self, name: str) -> bool:
        """Whether a setting has an effect with the method."""
        with_reference = self.custom_loss is not None and name == "teacher"  # a custom loss may compare with `base`
        return name not in METHODS_OF or self.method in METHODS_OF[name] or with_reference

    @property
    def uses_rewards(self) -> bool:
        return self.method not in ("opd", "opd_topk")

    @property
    def uses_hints(self) -> bool:
        return self.method not in ("binary", "grpo")

    @property
    def needs_second_model(self) -> bool:
        """Whether version 0 is loaded as a second model. With an adapter, version 0 is the policy without the adapter."""
        teaches = (self.teacher == "base" and self.uses_hints) or self.custom_loss is not None
        return self.lora is None and (teaches or bool(self.base_pull) or self.kl_budget is not None)

    @property
    def credit(self) -> Literal["reward", "group", "gae"]:
        """The kind of advantage that the reward term uses."""
        return "group" if self.method == "grpo" else self.advantage
