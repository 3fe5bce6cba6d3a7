"""Settings of `train.method`: a class for each method."""

from typing import Literal

from pydantic import Field

from clawctl.config.section import Section
from clawctl.run.rows import HintPlace


class Method(Section):
    kind: Literal["binary", "grpo", "opd", "opd_topk", "combine", "hybrid"] = Field("combine", alias="method")
    """Training method. `binary`: one reward per turn. `grpo`: reward minus the mean reward of its group. `opd`: distil the policy
    with the hint in its prompt, on the sampled tokens. `opd_topk`: the same as a KL over the likeliest tokens at each position.
    `combine`: `binary` and `opd` as separate terms. `hybrid`: `binary` and a distillation that selects among several hints. Also
    as a section with the settings of the method: `{kind: hybrid, topk: 8}`."""


class Grouped(Method):
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


class Rewards(Grouped):
    advantage: Literal["reward", "group", "gae"] = "reward"
    """Advantage of a turn's tokens in the reward term. `reward`: the reward minus `baseline`. `group`: the reward minus the mean of
    its group (`grpo` always uses this). `gae`: the discounted rewards of the turns that follow in the session."""
    baseline: Literal["none", "mean"] = "none"
    """Baseline for turns without a group. `none`: nothing is subtracted. `mean`: the running mean reward of turns of the same kind
    (their `task_id` up to the first `-` or `/`)."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """`gae`: how far credit reaches back. It decays by gamma * gae_lambda per turn."""


class Hints(Method):
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
    hint: Literal["judge", "reply", "both"] = "judge"
    """What the teacher reads. `judge`: the judge's hint, or the comment of a rating. `reply`: the person's own reply; the prompt
    goes on with the answer, the reply, and the request again (arXiv 2603.12273). It needs no judge. A turn without a person's
    reply has its hint. `both`: the reply, and the hint in the repeated request. Replies to answers that were good teach nothing."""
    hint_place: HintPlace | Literal["auto"] = "block"
    """Where the teacher reads a hint. `block`: below the request, as `[user's hint / instruction]` (published for OpenClaw-RL).
    `line`: at the end of the request. `below`, `above`: in a paragraph of its own. `auto`: the place where the untrained model
    follows a hint most often. `clawctl play practice` tries them once and records the result; until then, `block`."""


class LikeliestTokens(Section):
    topk: int | None = Field(None, gt=0)
    """Number of the policy's likeliest tokens that are compared at each position. Unset: 50 for
    `opd_topk`, 4 for `hybrid`; `combine` then compares the sampled tokens alone. With a number its distillation is that of
    `opd_topk`."""


class Distributions(LikeliestTokens):
    divergence: Literal["reverse", "forward"] = "reverse"
    """The direction of the KL. `reverse`: KL(policy ‖ teacher). It weighs each token by
    the policy's probability, so it cannot raise a token that the policy never samples. `forward`: KL(teacher ‖ policy). It weighs
    by the teacher's probability and also learns tokens that the policy hardly ever samples."""
    topk_of: Literal["policy", "teacher"] = "policy"
    """Whose likeliest tokens are compared. A token that only the teacher finds likely is not
    among those of the policy, and counts with all other tokens together."""
    guidance: float = Field(1.0, gt=0, le=4)
    """The teacher's logits are those without the hint plus this multiple of what the hint
    changes (classifier-free guidance). Above 1 the policy learns wishes that the model only sometimes follows when it reads them.
    Any value but 1 costs another pass."""


class Both(Rewards, Hints):
    weight_binary: float = Field(1.0, ge=0)
    """Weight of the reward term. Each term is a mean of its own, and only the ratio of the two weights matters."""
    weight_opd: float = Field(1.0, ge=0)
    """Weight of the distillation term."""
    reward_with_hint: bool = True
    """Whether a turn with a hint also has the reward term. A hint names the tokens at fault. The reward credits all tokens of an
    answer, and so also changes traits that only happen to occur together with the wanted one. `false`: a turn with a hint is
    trained on the hint alone, and its reward is in no baseline."""
    gap_clip: float = Field(2.0, gt=0)
    """Distillation: log-probability gaps between teacher and policy are clamped to ± this value."""


class Binary(Rewards):
    kind: Literal["binary"] = Field("binary", alias="method")


class Grpo(Grouped):
    kind: Literal["grpo"] = Field("grpo", alias="method")


class Opd(Hints):
    kind: Literal["opd"] = Field("opd", alias="method")
    gap_clip: float = Field(2.0, gt=0)
    """Distillation: log-probability gaps between teacher and policy are clamped to ± this value."""


class OpdTopk(Hints, Distributions):
    kind: Literal["opd_topk"] = Field("opd_topk", alias="method")


class Combine(Both, Distributions):
    kind: Literal["combine"] = Field("combine", alias="method")


class Hybrid(Both, LikeliestTokens):
    kind: Literal["hybrid"] = Field("hybrid", alias="method")
    hint_choice: Literal["sequence", "token", "shortest"] = "sequence"
    """How the hint is selected. `sequence`: the hint whose teacher shares the most likely tokens with the policy over the
    whole answer. `token`: the same at each token. `shortest`: the shortest hint."""
    hint_candidates: int = Field(3, gt=0)
    """Number of different hints that are compared, shortest first."""


METHODS: dict[str, type[Method]] = {
    "binary": Binary, "grpo": Grpo, "opd": Opd, "opd_topk": OpdTopk, "combine": Combine, "hybrid": Hybrid,
}  # fmt: skip
