"""The policy being trained: loading, logprobs, and saving."""

import contextlib
import functools
import logging
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import orjson
import torch
from torch import Tensor, nn

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.lent_weights import Loan
from clawctl.run.policies import check_harmless
from clawctl.trainers.local.attention import TREE, register
from clawctl.trainers.local.batches import Merge, Microbatch, StepImages, make_microbatch
from clawctl.trainers.local.head import token_logprobs
from clawctl.trainers.local.layers import keep_asked_states, use_fast_norms, use_fused_lora
from clawctl.trainers.local.loading import (
    adapted,
    in_float32,
    load_causal,
    load_config,
    load_frozen,
    publish_dtype_of,
    tokenizer_files_of,
)
from clawctl.trainers.local.ranks import Ranks, gathering, is_sharded, layers_of, shard, whole
from clawctl.trainers.local.trees import Branch, make_branch
from clawctl.vision.reader import image_reader
from clawctl.vision.tower import prepare

log = logging.getLogger("clawctl.train")
T = TypeVar("T")

CANARY_PROMPTS = ("The weather today is fine, and 2 + 3 = 5.", "Please write one short sentence about the sea.")
MASTER = "master.safetensors"  # float32 weights, saved in addition to a policy that is published in a narrower dtype


@dataclass(slots=True)
class PolicyModel:
    """A causal language model with float32 master weights, with or without a peft adapter."""

    module: Any  # PreTrainedModel or PeftModel: the module that is saved
    tokenizer: Any
    device: torch.device
    autocast: torch.dtype | None  # dtype of the forward pass; None: float32
    publish_dtype: torch.dtype  # dtype of full weights on disk
    adapter: bool
    tokenizer_files: dict[str, bytes]
    merge: Merge = "none"  # how sequences with a shared prefix are computed
    dropouts: list[nn.Module] = field(default_factory=list)  # the adapter's dropout modules; no other module uses dropout
    shard_ranks: Ranks | None = None  # the ranks that the weights are sharded over; None: each rank has all weights
    images: StepImages | None = None  # images of the running step; None: a text model
    half: int | None = None  # the half of the adapter's rank that is trained; None: all of it
    loan: Loan | None = None  # the base model's weights, if they are another process's
    unquantised: Any = None  # the adapted model on the CPU as it is served, if `module` has a quantised base

    @property
    def causal(self) -> Any:
        return self.module.get_base_model() if self.adapter else self.module

    @property
    def vocabulary(self) -> int:
        return int(self.causal.get_input_embeddings().num_embeddings)

    @property
    def context(self) -> int | None:
        return getattr(self.causal.config.get_text_config(), "max_position_embeddings", None)

    @property
    def attention(self) -> str:
        """The model's attention implementation, by transformers' name."""
        return str(self.causal.config._attn_implementation)

    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """The trained parameters, always in the same order."""
        return [(name, parameter) for name, parameter in self.module.named_parameters() if parameter.requires_grad]

    def changing(self) -> list[tuple[str, Tensor]]:
        """The trained parameters, or the trained half of each."""
        return [(name, p if self.half is None else half_of(name, p.detach(), self.half)) for name, p in self.trained()]

    def logprobs(self, batch: Microbatch, causal: Any = None) -> Tensor:
        """Logprobs of the tokens that the microbatch scores: [N], with gradient if the caller records one."""
        causal = causal if causal is not None else self.causal
        head = causal.get_output_embeddings()
        arguments = head, batch.targets_N, batch.temperature_N, batch.masks
        return self.compute(lambda: token_logprobs(self.hidden(batch, causal), *arguments), causal)

    def compute(self, work: Callable[[], T], causal: Any = None) -> T:
        """The result of a pass through the model: a tensor or a tuple of tensors. With sharded weights all ranks must make the same
        passes, with and without gradient alike."""
        with self.precision():
            return gathering(causal if causal is not None else self.causal, work)

    @torch.no_grad()
    def match_passes(self, passes: int, causal: Any = None) -> None:
        """Call before `passes` passes without gradient. With sharded weights it adds empty passes, up to the number of the busiest
        rank."""
        if self.shard_ranks is None:
            return
        body = getattr(self.causal if causal is None else causal, self.causal.base_model_prefix)
        ids_BT = torch.ones(1, 2, dtype=torch.long, device=self.device)
        for _ in range(self.shard_ranks.maximum(passes) - passes):
            self.compute(lambda: body(input_ids=ids_BT, use_cache=False).last_hidden_state, causal)

    def hidden(self, batch: Microbatch, causal: Any = None) -> Tensor:
        """The states that predict the scored tokens: [N, D]. Call it inside `compute`."""
        causal = causal if causal is not None else self.causal
        layout: dict[str, Any] = {}
        if batch.visible is not None:
            layout = {"position_ids": batch.positions_BT, "tree": batch.visible}
        given = {"input_ids": batch.ids_BT, **layout} if self.images is None else self.images.inputs(causal, batch, layout)
        hidden_BTD = getattr(causal, causal.base_model_prefix)(use_cache=False, **given).last_hidden_state
        before_N = batch.before_N
        if hidden_BTD.shape[:2] != batch.ids_BT.shape:  # the last layer computed only the needed tokens
            assert batch.visible is not None
            before_N = torch.searchsorted(batch.visible.queries_M, before_N)
        before_ND: Tensor = hidden_BTD.flatten(0, 1).index_select(0, before_N)
        return before_ND

    @contextlib.contextmanager
    def with_dropout(self) -> Iterator[None]:
        """Adapter dropout is active inside this context only. Scores and canaries never use dropout."""
        for module in self.dropouts:
            module.train()
        try:
            yield
        finally:
            for module in self.dropouts:
                module.eval()

    @contextlib.contextmanager
    def without_adapter(self) -> Iterator[None]:
        """The base model inside this context, without gradient. peft's `disable_adapter` examines every module twice: 80 ms for
        36 layers, longer than a short pass takes on a GPU."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        layers = [layer for layer in self.module.modules() if isinstance(layer, BaseTunerLayer)]
        for layer in layers:
            layer._disable_adapters = True
        try:
            yield
        finally:
            for layer in layers:
                layer._disable_adapters = False

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """The autocast context of a forward pass."""
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.autocast)

    # ---- writing out -----------------------------------------------------------------------------------------------------

    def save(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Save a self-contained folder: full weights with their tokenizer, or a peft adapter (float32). `weights` is the result of
        `published`."""
        if self.adapter:
            self.module.save_pretrained(folder, state_dict=weights, save_embedding_layers=False)
            (folder / "README.md").unlink(missing_ok=True)  # peft's empty model card
            return
        self.module.save_pretrained(folder, state_dict=weights)
        config = orjson.loads((folder / "config.json").read_bytes())
        config["dtype"] = str(self.publish_dtype).removeprefix("torch.")
        (folder / "config.json").write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
        for name, content in self.tokenizer_files.items():
            (folder / name).write_bytes(content)

    def save_master(self, folder: Path) -> None:
        """Save the float32 weights if the published weights are rounded and no other file contains them."""
        if not self.adapter and self.shard_ranks is None and self.publish_dtype != torch.float32:
            from safetensors.torch import save_model

            save_model(self.module, str(folder / MASTER))

    @torch.no_grad()
    def published(self) -> dict[str, Tensor]:
        """The complete weights for publication, rounded to their dtype; tied weights stay one tensor. With sharded weights every
        rank must call this, and only rank 0 gets them."""
        result: dict[str, Tensor] = {}
        rounded: dict[int, Tensor] = {}
        weights = dict(self.trained()) if self.adapter else self.module.state_dict(keep_vars=True)
        for name, weight in weights.items():
            if id(weight) not in rounded:
                value = whole(weight.detach() if self.adapter else weight.detach().to(self.publish_dtype))
                rounded[id(weight)] = value.cpu() if self.shard_ranks is not None else value
            if self.shard_ranks is None or self.shard_ranks.is_leader:
                result[name] = rounded[id(weight)]
            else:
                rounded[id(weight)] = torch.empty(0)
        return result

    @torch.no_grad()
    def canary(self) -> dict[str, Any]:
        """Fixed prompts and the logprobs of their tokens under the published weights, at temperature 1.

        {"prompt_ids": [[…]], "logprobs": [[None, -1.2, …]]}: [t] belongs to token t; the first token has no logprob. A model that
        reads images also has a prompt with an image under "image". They are computed in float32, unless the weights are sharded:
        an engine in bfloat16 then differs by its own rounding only, and not by the trainer's as well.
        """
        prompts = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in CANARY_PROMPTS]
        values = []
        served = self.causal if self.unquantised is None else self._served(self.unquantised)
        device = self.device if self.unquantised is None else "cpu"
        with self._rounded():
            for ids in prompts:
                ids_BT = torch.tensor([ids], device=device)
                if self.shard_ranks is not None:
                    logits = self.compute(functools.partial(_logits, served, ids_BT))
                else:
                    with in_float32(served):
                        logits = _logits(served, ids_BT)
                logprobs = logits[0, :-1].float().log_softmax(-1).gather(1, ids_BT[0, 1:, None]).squeeze(1)
                values.append([None, *logprobs.tolist()])
            image = {} if self.images is None else {"image": self._image_canary(self.images)}
        return {"prompt_ids": prompts, "logprobs": values, **image}

    def _served(self, unquantised: Any) -> Any:
        """`unquantised` with the adapter as it is now: what is served has no weights of 4 bits."""
        adapter = dict(self.trained())
        for name, weight in unquantised.named_parameters():
            if name in adapter:
                weight.copy_(adapter[name])
        return unquantised

    def _image_canary(self, images: StepImages) -> dict[str, Any]:
        """The same for a prompt with an image, including its file in base64, and the index of its first id."""
        text_ids = self.tokenizer(CANARY_PROMPTS[0], add_special_tokens=False)["input_ids"]
        ids, start, content, inputs = images.canary(self.causal, text_ids)
        logits = self.compute(lambda: self.causal(**inputs, use_cache=False).logits)
        logprobs = logits[0, :-1].float().log_softmax(-1).gather(1, torch.tensor(ids[1:], device=self.device)[:, None]).squeeze(1)
        return {"prompt_ids": ids, "start": start, "content": b64encode(content).decode(), "logprobs": [None, *logprobs.tolist()]}

    @contextlib.contextmanager
    def _rounded(self) -> Iterator[None]:
        """Within this context, all weights have their published precision."""
        rounds = not self.adapter and self.publish_dtype != torch.float32
        kept = [(weight, weight.detach().clone()) for _, weight in self.trained()] if rounds else []
        for weight, wide in kept:
            weight.copy_(wide.to(self.publish_dtype))
        try:
            yield
        finally:
            for weight, wide in kept:
                weight.copy_(wide)


def _logits(causal: Any, ids_BT: Tensor) -> Tensor:
    logits: Tensor = causal(input_ids=ids_BT, use_cache=False).logits
    return logits


def load_policy(recipe: Recipe, ranks: Ranks, checkpoint: Path | None = None) -> PolicyModel:
    """The base model, or the policy folder of a checkpoint, ready for training. Raises ClawError."""
    from transformers import AutoTokenizer

    if checkpoint is not None:
        try:
            check_harmless(checkpoint)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            problem = f"checkpoint {checkpoint.parent} cannot be trusted: {error}"
            raise ClawError(problem, "restore it from a copy, or remove it to resume from the one before") from error
    lora, config = recipe.train.lora, recipe.train
    path = recipe.model_path if lora or checkpoint is None else str(checkpoint)
    files_dtype = load_config(recipe.model_path).dtype
    sharded = is_sharded(config, ranks)
    # The complete model may not fit on the device; sharding takes its parts from the CPU.
    device = torch.device("cpu") if sharded else ranks.device
    module, loan = load_frozen(recipe, ranks, device, files_dtype) if lora else (load_causal(path, device, torch.float32), None)
    if checkpoint is not None and not lora and (checkpoint.parent / MASTER).exists():
        from safetensors.torch import load_model

        load_model(module, str(checkpoint.parent / MASTER))
    unquantised, publish_dtype = None, publish_dtype_of(recipe.model.dtype, files_dtype)
    if lora and lora.quantize and ranks.is_leader:  # only rank 0 publishes
        unquantised = adapted(load_causal(path, torch.device("cpu"), publish_dtype), lora, checkpoint, config.seed)
    if lora:
        module = adapted(module, lora, checkpoint, config.seed)
    policy = PolicyModel(
        module=module,
        tokenizer=AutoTokenizer.from_pretrained(recipe.model_path, trust_remote_code=False),
        device=device,
        autocast=torch.bfloat16 if config.local.dtype == "bfloat16" else None,
        publish_dtype=publish_dtype,
        adapter=lora is not None,
        tokenizer_files={} if lora else tokenizer_files_of(recipe.model_path),
        loan=loan,
        unquantised=unquantised,
        dropouts=[m for name, m in module.named_modules() if isinstance(m, nn.Dropout) and "lora_dropout" in name],
    )
    reader = image_reader(recipe.model_path)
    if reader is not None:
        if sharded:
            raise ClawError("a model with a vision tower cannot be sharded", "set train.shard to none", 2)
        policy.images = StepImages(reader, policy.vocabulary)
        prepare(policy.causal)
    _check_head(policy)
    use_fast_norms(policy.causal)
    if policy.adapter:
        use_fused_lora(policy.module)
    policy.merge = _usable_merge(policy, config.local.merge)
    if config.local.gradient_checkpointing:
        checkpoint_layers(policy, config.local.gradient_checkpointing)
    if sharded:
        shard(policy.causal, ranks, policy.autocast, config.local.optimizer_offload)
        policy.device, policy.shard_ranks = ranks.device, ranks
    return policy


def half_of(name: str, weight: Tensor, half: int) -> Tensor:
    """A view of half of an adapter's rank: rows of its matrix A, or columns of B. [A1; A2] and [B1 B2] compute B1 A1 + B2 A2."""
    axis = 0 if "lora_A" in name else 1
    rank = weight.shape[axis] // 2
    return weight.narrow(axis, half * rank, rank)


def load_reference(recipe: Recipe, policy: PolicyModel, ranks: Ranks) -> Any:
    """Version 0 as a second model that computes in the same way as the policy."""
    device = torch.device("cpu") if policy.shard_ranks is not None else ranks.device
    reference = load_causal(recipe.model_path, device, torch.float32)
    if policy.images is not None:
        prepare(reference)
    use_fast_norms(reference)
    if policy.attention == TREE:
        _attend_to_tries(reference)
    if policy.shard_ranks is not None:
        shard(reference.requires_grad_(False), ranks, policy.autocast, recipe.train.local.optimizer_offload)
    return reference


def checkpoint_layers(policy: PolicyModel, share: float = 1.0) -> None:
    """Store only the input of this share of the layers, and compute them again in the backward pass (gradient checkpointing)."""
    settings = {"use_reentrant": False, "context_fn": lambda: (contextlib.nullcontext(), policy.with_dropout())}
    policy.causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
    layers = layers_of(policy.causal)
    for layer in layers[: round(share * len(layers))]:
        layer.training = True  # only the layer's own flag, which enables checkpointing; its dropouts stay unchanged


@torch.no_grad()
def _check_head(policy: PolicyModel) -> None:
    """Refuse an architecture that does more than project its last hidden state (soft-capping, scaled logits)."""
    ids_BT = torch.tensor([[1, 2, 3]], device=policy.device)
    causal = policy.causal
    hidden = getattr(causal, causal.base_model_prefix)(input_ids=ids_BT, use_cache=False).last_hidden_state
    head_logits, model_logits = causal.get_output_embeddings()(hidden), causal(input_ids=ids_BT, use_cache=False).logits
    if not torch.allclose(head_logits.float(), model_logits.float(), atol=1e-3, rtol=1e-3):
        raise ClawError(f"{type(causal).__name__} changes its logits after the output head", "train a model that does not", 2)


def _usable_merge(policy: PolicyModel, wanted: Merge) -> Merge:
    """The merge of the recipe, or exact prefixes if the architecture is not plain attention to all earlier tokens."""
    if wanted == "tree" and (reason := _why_not_tries(policy)) is not None:
        log.info("%s %s, so only exact prefixes are merged", type(policy.causal).__name__, reason)
        return "prefix"
    return wanted


@torch.no_grad()
def _why_not_tries(policy: PolicyModel) -> str | None:
    """None if the model computes a small trie like its separate sequences. If so, it uses tree attention afterwards."""
    kinds = set(getattr(policy.causal.config.get_text_config(), "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or not getattr(policy.causal, "_supports_sdpa", False):
        return "is not a pure attention model"
    _attend_to_tries(policy.causal)
    prompts, completions = ([1, 2, 3], [1, 2, 3, 4, 5], [2, 1]), ([4, 5], [3, 6], [3, 4])
    branches = [make_branch(prompt, completion, 1.0) for prompt, completion in zip(prompts, completions, strict=True)]

    def states(merge: Merge, *groups: list[Branch]) -> Tensor:
        batches = [make_microbatch(group, merge, policy.device) for group in groups]
        return torch.cat([policy.compute(functools.partial(policy.hidden, batch)).float() for batch in batches])

    separate = states("none", branches)
    reason = why_not_rounding(states("tree", branches), separate, states("tree", *([branch] for branch in branches)))
    if reason is not None:
        policy.causal.set_attn_implementation("sdpa")
    return reason


def why_not_rounding(merged: Tensor, separate: Tensor, single: Tensor) -> str | None:
    """None if states of a trie equal those of its separate sequences up to rounding, or what was measured. `single`: tries with one
    sequence each. In 16 bits they too differ, because other kernels compute them. A wrong mask is as far off as the states."""
    error, noise = (float((states - separate).norm() / separate.norm()) for states in (merged, single))
    if error < (limit := min(max(0.02, 4 * noise), 0.25)):
        return None
    return f"computes a trie with a relative error of {error:.2g} (limit {limit:.2g}; {noise:.2g} with nothing merged)"


def _attend_to_tries(causal: Any) -> None:
    register()
    causal.set_attn_implementation(TREE)
    keep_asked_states(causal)
