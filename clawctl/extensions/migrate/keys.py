"""Recipe keys of other systems and their equivalents in clawctl: OpenClaw-RL, slime, verl, TRL, prime-rl, ART.

A key is looked up by its last two parts (`rollout.temperature`), else by its last part (`learning_rate`), because other systems
nest the same names in different sections. `clawctl recipe convert` and the suggestions for mistyped keys use this table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from clawctl.config.explaining import Equivalent

Settings = dict[str, Any]  # dotted keys of clawctl and their values


@dataclass(frozen=True, slots=True)
class OurKey(Equivalent):
    """The equivalent of a foreign key."""

    # Converts the value; may return other settings or another key; None: the value has no equivalent
    change: Callable[[Any], "Settings | OurKey | None"] | None = None


def _chosen(key: str, values: Mapping[str, Any]) -> OurKey:
    """Return a key whose values have other names elsewhere. A value in `values` may be an OurKey or Settings."""

    def change(value: Any) -> "Settings | OurKey | None":
        chosen = values.get(str(value).lower().replace("-", "_"))
        return chosen if chosen is None or isinstance(chosen, OurKey | dict) else {key: chosen}

    return OurKey(key, change=change)


def _group_size(value: Any) -> "Settings | OurKey":
    if str(value) == "1":
        return OurKey(dropped="a group needs at least two answers per prompt", near="train.group_size")
    return {"train.group_size": value}


def _clip(value: Any) -> Settings:
    return {"train.off_policy": "ppo_clip", "train.clip_low": value, "train.clip_high": value}


def _trackers(value: Any) -> "Settings | OurKey | None":
    named = [value] if isinstance(value, str) else value
    if not isinstance(named, list):
        return None
    if "all" in named or not set(map(str, named)) <= {"wandb", "tensorboard", "trackio", "none", "console", "file"}:
        return None
    return {"train.trackers": [name for name in named if name in ("wandb", "tensorboard", "trackio")]}


def _gpus(key: str) -> OurKey:
    def change(value: Any) -> "Settings | OurKey":
        if isinstance(value, str) and "," in value:
            value = [part.strip() for part in value.split(",")]
        if isinstance(value, list):
            return {key: value}
        return OurKey(dropped=f"clawctl takes GPU numbers, not a count: `{key}: [0, 1]`", near=key)

    return OurKey(key, change=change)


def _majority(value: Any) -> "Settings | OurKey":
    return OurKey(dropped="always on: the majority of `judge.votes` decides", near="judge.votes") if value else {"judge.votes": 1}


def _switch(key: str, on: Any, off: OurKey) -> OurKey:
    """Return a boolean key: true sets `on`, false gives `off`."""

    def change(value: Any) -> "Settings | OurKey | None":
        return None if not isinstance(value, bool) else {key: on} if value else off

    return OurKey(key, change=change)


_RUN = OurKey(dropped="all stages share one run directory: `--run FOLDER` on the command line")
_SUITES = OurKey(dropped="these suites are not part of clawctl: name your own as file.py:name", near="eval.suites")
_ALWAYS = OurKey(dropped="always on")
_ONCE = OurKey(dropped="each turn is trained once", near="train.max_steps")
_CUT = OurKey(
    dropped="`train.batch_turns` is the whole step; `train.tokens_per_microbatch` sets the microbatches",
    near="train.tokens_per_microbatch",
)
_EACH_STEP = OurKey(dropped="clawctl saves a checkpoint after each step", near="train.keep_checkpoints")
_GOES_ON = OurKey(dropped="training always resumes from the newest checkpoint of the run")
_CHECKPOINT = OurKey(dropped="name the weights in `model.path`; a run resumes from its own newest checkpoint", near="model.path")
_WORKERS = OurKey(dropped="one server answers all rollouts: `play.parallel` sets how many run at once", near="play.parallel")
_ASYNC = OurKey(dropped="rollouts, judging and training always run side by side")
_CLASSES = OurKey(dropped="turns are classified by who asks for them, not by the role of a message: docs/clients.md")
_NO_CRITIC = OurKey(dropped="there is no value network")
_NO_REFERENCE = OurKey(
    dropped="the loss has no KL term; `train.kl_budget` limits the KL divergence from version 0, and `train.ratio_penalty` keeps "
    "the policy close to the sampler",
    near="train.kl_budget",
)
_ENVIRONMENT = OurKey(dropped="name it with `clawctl collect --env`: toolcall, terminal, swe, gui, or your own", near="play.env")
_OF_ENVIRONMENT = OurKey(
    dropped="an option of an environment: `play.options: {max_turns: 30}`; docs/environments.md", near="play.options"
)
_NOT_CUT = OurKey(
    dropped="clawctl does not truncate turns; it refuses turns longer than the model's context", near="serve.max_tokens"
)
_VLLM = OurKey(dropped="a vLLM argument: put it in `serve.engine_args`", near="serve.engine_args")
_GATE = OurKey(dropped="with a `gate`, each version is measured; without one, run `clawctl eval --once` as needed", near="gate")
_CONSTANT = OurKey(dropped="the learning rate stays constant after warm-up", near="train.lr")
_LAUNCH = OurKey(dropped="set when you launch training: docs/launch.md", near="train.gpus")
_SHARDED = OurKey(dropped="set by `train.shard`", near="train.shard")
_DATA = OurKey(dropped="turns come from `clawctl serve` or from `clawctl import FILE`")
_WARMUP = OurKey(dropped="warm-up is counted in steps", near="train.warmup_steps")
_TEACHER = OurKey(dropped="a teacher is `self`, `base`, `ema` or a URL", near="train.teacher")
_NO_TRACKER = OurKey(dropped="trackers are off by default", near="train.trackers")
_BATCH = OurKey("train.batch_turns")
_METHODS = {
    "binary": "binary", "binary_rl": "binary", "rl": "binary", "grpo": "grpo", "opd": "opd", "opd_topk": "opd_topk",
    "on_policy_distillation": "opd", "topk": "opd_topk", "combine": "combine", "combined": "combine", "hybrid": "hybrid",
    "gae": {"train.advantage": "gae"}, "step_wise": {"train.method": "grpo", "train.step_wise": True},
}  # fmt: skip
_TYPES = {
    "bf16": "bfloat16", "bfloat16": "bfloat16", "torch.bfloat16": "bfloat16",
    "fp32": "float32", "float32": "float32", "torch.float32": "float32", "no": "float32",
}  # fmt: skip
_ENGINES = {
    "vllm": "vllm", "hf": "transformers", "transformers": "transformers",
    "sglang": OurKey(dropped="start SGLang yourself and set `serve.upstream.url` and `kind: sglang`", near="serve.upstream.kind"),
}  # fmt: skip
_MODEL = OurKey("model.path")
_CLIP = OurKey("train.clip_high", change=_clip)


def _all(names: str, here: OurKey) -> dict[str, OurKey]:
    return dict.fromkeys(names.split(), here)


KEYS: dict[str, OurKey] = {
    # the model
    **_all("model base_model base_model_path model_path model_name model_name_or_path hf_checkpoint pretrained", _MODEL),
    **_all("pretrained_model_name_or_path policy_model_path", _MODEL),
    **_all("served_model_name served_name", OurKey("model.name")),
    **_all("tokenizer tokenizer_path tokenizer_name", OurKey(dropped="the tokenizer is part of the model")),
    **_all("trust_remote_code", OurKey(dropped="clawctl never runs code from a model repository")),
    **_all("attn_implementation use_flash_attention flash_attn", OurKey(dropped="selected by the available hardware")),
    **_all("model.dtype model.torch_dtype", _chosen("model.dtype", {**_TYPES, "auto": "auto"})),
    # the step
    **_all("learning_rate lr actor_lr", OurKey("train.lr")),
    **_all("warmup_steps lr_warmup_steps num_warmup_steps warmup lr_warmup_iters", OurKey("train.warmup_steps")),
    **_all("warmup_ratio lr_warmup_steps_ratio lr_warmup_fraction", _WARMUP),
    **_all("max_grad_norm clip_grad grad_clip gradient_clip gradient_clipping clip_grad_norm", OurKey("train.clip_grad")),
    **_all("weight_decay", OurKey("train.weight_decay")),
    **_all("adam_betas betas", OurKey("train.betas")),
    **_all("adam_beta1 beta1 adam_beta2 beta2", OurKey("train.betas")),
    **_all("adam_epsilon adam_eps", OurKey("train.epsilon")),
    **_all("batch_size train_batch_size global_batch_size rollout_batch_size per_device_train_batch_size", _BATCH),
    **_all("gradient_accumulation_steps gradient_accumulation accumulation_steps grad_accumulation grad_accum", _BATCH),
    **_all("micro_batch_size ppo_mini_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu num_steps_per_rollout", _CUT),
    **_all("max_tokens_per_gpu ppo_max_token_len_per_gpu", OurKey("train.tokens_per_microbatch")),
    **_all("max_steps total_training_steps total_steps train_steps num_rollout", OurKey("train.max_steps")),
    **_all("num_train_epochs epochs num_epochs total_epochs train_epochs ppo_epochs num_ppo_epochs num_iterations", _ONCE),
    **_all("save_interval save_steps save_freq save_every checkpoint_interval save_strategy", _EACH_STEP),
    **_all("save_total_limit max_ckpt_to_keep max_actor_ckpt_to_keep", OurKey("train.keep_checkpoints")),
    **_all("resume resume_from_checkpoint resume_from_ckpt resume_ckpt resume_mode load", _GOES_ON),
    **_all("checkpoint_path checkpoint load_checkpoint", _CHECKPOINT),
    **_all("num_workers rollout_workers num_rollout_workers", _WORKERS),
    **_all("collection_mode rollout_mode", _chosen("collect", {"async": _ALWAYS, "asynchronous": _ALWAYS, "sync": _ASYNC})),
    **_all("trajectory_format", _chosen("collect", {"multi_turn": _ALWAYS, "single_turn": _ALWAYS})),
    **_all("message_classification.main_line message_classification.side main_line", _CLASSES),
    **_all("reward_computation.type reward_type", _chosen("judge", {"next_state_feedback": _ALWAYS, "next_state": _ALWAYS})),
    **_all("output_dir default_local_dir save save_dir checkpoint_dir log_dir rl_buffer_dir record_dir rollout_dir", _RUN),
    **_all("method algorithm rl_method advantage_estimator adv_estimator", _chosen("train.method", _METHODS)),
    **_all("w_binary w_rl binary_weight binary_rl_weight", OurKey("train.weight_binary")),
    **_all("w_opd opd_weight", OurKey("train.weight_opd")),
    **_all("clip_ratio eps_clip clip_range cliprange clip_eps epsilon ppo_clip ppo_clip_ratio", _CLIP),
    **_all("clip_ratio_low epsilon_low eps_clip_low", OurKey("train.clip_low")),
    **_all("clip_ratio_high epsilon_high eps_clip_high", OurKey("train.clip_high")),
    **_all("value_clip cliprange_value value_clip_ratio value_loss_coef vf_coef critic_lr use_value_network", _NO_CRITIC),
    **_all("entropy_coef entropy_coeff entropy_bonus", OurKey(dropped="there is no entropy bonus")),
    **_all("gamma discount discount_factor", OurKey("train.gamma")),
    **_all("gae_lambda lam lambd lambda", OurKey("train.gae_lambda")),
    **_all("kl_coef kl_loss_coef kl_beta beta init_kl_coef kl_penalty_coef use_kl_loss", _NO_REFERENCE),
    **_all("kl_loss_type use_kl_in_reward kl_penalty ref_model reference_model ref_model_path", _NO_REFERENCE),
    **_all("num_rollouts_per_prompt rollouts_per_prompt num_generations n_samples_per_prompt rollouts_per_example group_size",
           OurKey("train.group_size", change=_group_size)),
    **_all("rollout.n sampling.n", OurKey("train.group_size", change=_group_size)),
    **_all("scale_rewards norm_adv_by_std_in_grpo", OurKey("train.group_std")),
    **_all("teacher_temperature", OurKey(dropped="the teacher uses the temperature at which the turn was sampled")),
    **_all("teacher_model teacher_model_name teacher_model_path", _TEACHER),
    **_all("distill_topk topk distillation_topk", OurKey("train.topk")),
    **_all("max_off_policy_steps max_head_offpolicyness max_async_level staleness_threshold", OurKey("train.max_staleness")),
    **_all("gradient_checkpointing enable_gradient_checkpointing activation_checkpointing", OurKey("train.gradient_checkpointing")),
    **_all("grad_accum_steps", _BATCH),
    **_all("ckpt_save_dir", _RUN),
    **_all("use_gradient_checkpointing", OurKey("train.gradient_checkpointing")),
    **_all("optimizer_offload optimizer_cpu_offload offload_optimizer", OurKey("train.optimizer_offload")),
    **_all("bf16", _switch("train.dtype", "bfloat16", OurKey(dropped="float32 is the default", near="train.dtype"))),
    **_all("fp16", OurKey(dropped="only bfloat16 and float32 are supported", near="train.dtype")),
    **_all("dtype torch_dtype precision mixed_precision", _chosen("train.dtype", _TYPES)),
    **_all("seed", OurKey("train.seed")),
    **_all("optimizer optim optimizer_type", OurKey(dropped="always AdamW", near="train.betas")),
    **_all("lr_scheduler_type lr_decay_style lr_scheduler scheduler", _CONSTANT),
    **_all("logging_steps log_interval log_every", OurKey(dropped="each step is logged")),
    **_all("report_to trackers logger", OurKey("train.trackers", change=_trackers)),
    **_all("use_wandb wandb.enabled", _switch("train.trackers", ["wandb"], _NO_TRACKER)),
    **_all("wandb_project project_name tracker_project wandb.project", OurKey("train.tracker_project")),
    **_all("wandb_mode wandb.mode", OurKey("train.wandb_mode")),
    **_all("run_name experiment_name exp_name wandb.name", OurKey("name")),
    **_all("custom_loss_function_path custom_loss_path", OurKey("train.custom_loss")),
    # adapters
    **_all("lora_rank lora_r lora.r lora.rank peft.r", OurKey("train.lora.rank")),
    **_all("lora_alpha lora.alpha lora.lora_alpha peft.lora_alpha", OurKey("train.lora.alpha")),
    **_all("lora_dropout lora.dropout lora.lora_dropout", OurKey("train.lora.dropout")),
    **_all("lora_target_modules target_modules lora_targets lora.targets lora.target_modules", OurKey("train.lora.targets")),
    **_all("use_rslora lora.rslora", OurKey("train.lora.rslora")),
    **_all("load_in_4bit", _switch("train.lora.quantize", "nf4", OurKey(dropped="16 or 32 bits are the default"))),
    **_all("load_in_8bit", _switch("train.lora.quantize", "int8", OurKey(dropped="16 or 32 bits are the default"))),
    **_all("use_lora use_peft lora.enabled lora.enable", OurKey(dropped="`train.lora` is there or it is not", near="train.lora")),
    # machines
    **_all("gpus gpu_ids train_gpus training.gpus actor_gpus", _gpus("train.gpus")),
    **_all("rollout_gpus rollout.gpus serve_gpus", _gpus("serve.gpus")),
    **_all("num_gpus n_gpus n_gpus_per_node gpus_per_node nnodes num_nodes node_rank master_addr master_port", _LAUNCH),
    **_all("actor_num_gpus_per_node actor_num_nodes rollout_num_gpus prm_num_gpus world_size", _LAUNCH),
    **_all("fsdp fsdp_config deepspeed strategy param_offload", _SHARDED),
    # serving and rollouts
    **_all("backend rollout_backend inference_backend rollout.name", _chosen("serve.engine", _ENGINES)),
    **_all("host server_host proxy_host", OurKey("serve.host")),
    **_all("port server_port proxy_port", OurKey("serve.port")),
    **_all("temperature rollout_temperature", OurKey("serve.temperature")),
    **_all("top_p rollout_top_p", OurKey("serve.top_p")),
    **_all("top_k min_p", OurKey(dropped="set by the client; turns sampled with it are kept but not trained", near="serve.top_p")),
    **_all("max_tokens max_new_tokens max_response_length max_completion_length", OurKey("serve.max_tokens")),
    **_all("rollout_max_response_len", OurKey("serve.max_tokens")),
    **_all("gpu_memory_utilization tensor_parallel_size tensor_model_parallel_size tp max_model_len", _VLLM),
    **_all("sglang_mem_fraction_static mem_fraction_static rollout_num_gpus_per_engine", _VLLM),
    **_all("max_length max_seq_length max_prompt_length max_context_len max_context_tokens rollout_max_context_len", _NOT_CUT),
    **_all("api_endpoint rollout_endpoint", OurKey(dropped="`collect` reads what `serve` captured", near="serve.upstream.url")),
    **_all("max_concurrent_sessions", OurKey(dropped="sessions are not limited in number", near="serve.limits.concurrent_per_key")),
    **_all("session_timeout session_timeout_s", OurKey("collect.session_timeout_s")),
    **_all("multi_turn session_aware session_tracking message_classification", _ALWAYS),
    **_all("training_mode enable_rl_intercept intercept", OurKey(dropped="`clawctl serve --intercept` captures")),
    **_all("num_samples", OurKey(dropped="`clawctl collect --dry-run --num-samples N` shows N turns")),
    **_all("aggregation", OurKey(dropped="each turn gets its own credit", near="train.advantage")),
    **_all("rollout_function_path", OurKey(dropped="an argument: `clawctl play file.py:name`")),
    **_all("custom_generate_function_path", OurKey(dropped="an option: `clawctl play --generate file.py:name`")),
    **_all("env env_type env_name task_type environment", _ENVIRONMENT),
    **_all("parallel_envs num_envs num_parallel_envs", OurKey("play.parallel")),
    **_all("rollout.max_steps env.max_steps max_env_steps max_turns swe_bench_path tools_config", _OF_ENVIRONMENT),
    **_all("screenshot_backend screenshots vision_model", _OF_ENVIRONMENT),
    **_all("train_files val_files train_file prompt_data dataset dataset_name data_path input_dir", _DATA),
    # judges
    **_all("majority_vote_n num_judges prm_m num_votes", OurKey("judge.votes")),
    **_all("majority_vote_threshold consensus_threshold", OurKey("judge.threshold")),
    **_all("majority_voting use_majority_voting", OurKey("judge.votes", change=_majority)),
    **_all("judge_model judge.judge_model judge_model_path", OurKey("judge.model")),
    **_all("hint_extraction_model hint_model", OurKey("judge.hint_model")),
    **_all("num_judge_workers", OurKey("judge.concurrency")),
    **_all("judge_endpoint judge_url judge_api_base", OurKey("judge.endpoint")),
    **_all("judge_api_key", OurKey("judge.api_key")),
    **_all("prm_path prm_model_path prm.path prm.model_path reward_model_path reward_model", OurKey("judge.prm")),
    **_all("custom_rm_path custom_reward_function", OurKey("judge.custom_rm")),
    **_all("prm_temperature judge_temperature prm.temperature", OurKey("judge.temperature")),
    **_all("prm_max_tokens prm_max_new_tokens judge_max_tokens prm.max_tokens", OurKey("judge.max_tokens")),
    # measuring
    **_all("evaluation.tasks eval_tasks eval.tasks benchmarks", _SUITES),
    **_all("eval_interval eval_steps eval_freq test_freq evaluation.interval evaluation.enabled evaluation.frequency", _GATE),
    **_all("eval_frequency", _GATE),
    **_all("evaluation.num_samples eval_samples evaluation.num_problems", OurKey("eval.problems")),
    **_all("evaluation.temperature eval_temperature", OurKey("eval.temperature")),
    **_all("evaluation.seed", OurKey("eval.seed")),
    **_all("evaluation.batch_size evaluation.concurrency eval_batch_size per_device_eval_batch_size", OurKey("eval.concurrency")),
    **_all("evaluation.model_path eval_model_path", OurKey(dropped="`clawctl eval --version N` measures a version of the run")),
}  # fmt: skip

# Top-level sections of other systems' recipes that clawctl's recipes do not have.
SECTIONS = frozenset(
    (
        "training", "rollout", "evaluation", "trainer", "algorithm", "actor_rollout_ref", "actor", "critic", "reward_model",
        "reward", "prm", "rl", "lora", "peft", "data", "dataset", "env", "environment", "server", "optimizer", "optim", "logging",
        "wandb", "distributed", "orchestrator", "inference", "sampling", "generation", "teacher", "distillation",
    )
)  # fmt: skip


def find_elsewhere(parts: Sequence[str]) -> OurKey | None:
    """Return the equivalent of the foreign key with these parts, or None if the key is unknown."""
    names = [part.lower().replace("-", "_") for part in parts]
    return KEYS.get(".".join(names[-2:])) or KEYS.get(names[-1])


def find_similar(name: str) -> OurKey | None:
    """Return the equivalent of the foreign key that is spelled like `name`."""
    names = get_close_matches(name, [name for name in KEYS if len(name) > 4], n=1, cutoff=0.85)
    return KEYS[names[0]] if names else None


def is_from_elsewhere(data: Mapping[Any, Any], strange: Sequence[str]) -> bool:
    """Whether a recipe is written for another system: it has a foreign section, or foreign settings at the top level."""
    flat = [key for key in strange if not isinstance(data.get(key), dict) and find_elsewhere([key])]
    return any(key.lower() in SECTIONS and isinstance(data.get(key), dict) for key in strange) or len(flat) > 1
