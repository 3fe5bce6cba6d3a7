"""`train:`, steps from verdicts."""

from typing import Literal

from pydantic import Field

from clawctl.config.section import Section


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
    """Weight of the reward term in `combine` and `hybrid`. Elsewhere 0.5: here each term has its own mean, 1 and 1 is their plain
    sum, and AdamW takes nearly the same step for 0.5 and 0.5."""
    weight_opd: float = Field(1.0, ge=0)
    """Weight of the distillation term in `combine` and `hybrid`. Elsewhere 0.5; only its ratio to `weight_binary` matters."""
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
    """A step is made of so many usable turns, … Elsewhere 32, accumulated 4 times: one person would wait long for 128 usable
    turns, and only usable ones count here."""
    batch_wait_s: float = Field(600.0, gt=0)
    """… or of those that are there (at least `batch_min_turns`) once the oldest has waited so long."""
    batch_min_turns: int = Field(4, gt=0)
    """The fewest turns a step that waited too long may have."""
    fair_keys: bool = True
    """Share each step equally among the API keys whose turns wait; a key gets more only where others leave room."""
    lr: float = Field(1e-5, gt=0)
    """Learning rate after warm-up. Elsewhere 1e-6, for thousands of steps; a personal run makes tens of steps, in which 1e-6 shows
    nothing. OpenClaw-RL's own scripts take 1e-5 as well. An adapter usually bears ten times as much."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises from 0. Elsewhere 100: a personal run would be over before it was warm.
    `clip_grad` bounds the first steps."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW. Elsewhere the same; OpenClaw-RL's scripts take 0.9 and 0.98."""
    weight_decay: float = Field(0.01, ge=0)
    """Of AdamW. Elsewhere the same; OpenClaw-RL's scripts take 0.1, which pulls a finished model towards zero."""
    clip_grad: float = Field(1.0, gt=0)
    """Largest gradient norm."""
    turn_bound: float | None = Field(2.0, ge=1)
    """A turn is weighed down where its gradient exceeds the mean of the other turns of its step by more than this factor;
    null: not bounded. The formula is in docs/methods.md."""
    off_policy: Literal["dppo", "ppo_clip", "tis", "cispo", "gspo"] = "dppo"
    """How tokens count that an older version sampled; `ratio` is the policy's probability of a token over the sampler's. `dppo`:
    weighed by the ratio, left out beyond `mask_threshold`. Elsewhere a PPO clip: its ratio is of the trainer to itself, 1 in a
    batch's one step, so it never acts on old turns. `ppo_clip`: ratio clipped. `gspo`: the same with the ratio of the whole
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
    max_refusals: int = Field(3, gt=0)
    """Training pauses after so many updates in a row that the gate or a server refused. It goes on when LIVE moves, when it starts
    with another recipe, or with `clawctl train --from`."""
    max_staleness: int = Field(8, ge=0)
    """Turns sampled more than so many updates ago are refused, with the reason. After a refusal or a rollback the updates are
    counted along the lineage: back to the newest common ancestor, and on from there."""
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
    """Stop after so many steps in all; unset: go on, for the person goes on as well. Elsewhere 10000."""
    keep_checkpoints: int = Field(2, gt=0)
    """How many checkpoints stay on disk. Elsewhere one is saved every 100 to 500 steps; here each step is one, so that a crash
    loses no turn."""
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
    def needs_second_model(self) -> bool:
        """Whether version 0 lies beside the policy: without an adapter to take off, it is a model of its own."""
        return self.teacher == "base" and self.lora is None and (self.uses_hints or self.custom_loss is not None)

    @property
    def credit(self) -> Literal["reward", "group", "gae"]:
        """What the reward term is made of."""
        return "group" if self.method == "grpo" else self.advantage
