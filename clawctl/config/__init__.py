"""All settings that a user can change. Importing this does not import torch.

Each setting is in the file of its section (`train.lr` in `train.py`). `recipe.py` combines the sections, and `environment.py` reads
the environment.
"""

from clawctl.config.collect import CollectConfig
from clawctl.config.environment import (
    Nodes,
    default_log_level,
    environment_with,
    from_environment,
    gpus_from_environment,
    is_rank,
    is_stage_of_up,
    launch_of_job,
    name_code_for_stages,
    named_code_for_jobs,
    names_code_from_up,
    nodes,
    openclaw_config,
    options_from_environment,
    place_among_ranks,
    ray_address,
    secrets_from_environment,
    show_gpus,
    state_folder,
    warning_of_variables,
    without_telemetry,
)
from clawctl.config.eval import HARNESS_PREFIXES, EvalBudget, EvalConfig, GateConfig, GateLimit, SuiteConfig
from clawctl.config.judge import JudgeConfig
from clawctl.config.machines import MachineConfig, MachinesConfig, TrainerConfig, WorkersConfig
from clawctl.config.model import ModelConfig
from clawctl.config.play import PlayConfig
from clawctl.config.privacy import PrivacyConfig
from clawctl.config.recipe import Recipe, dump_recipe, known_keys, load_recipe
from clawctl.config.section import Section
from clawctl.config.serve import LimitsConfig, ServeConfig, UpstreamConfig
from clawctl.config.train import LoraConfig, ServiceConfig, TrainConfig
from clawctl.config.up import UpConfig
from clawctl.config.variables import gpu_numbers

__all__ = [
    "HARNESS_PREFIXES",
    "CollectConfig",
    "EvalBudget",
    "EvalConfig",
    "GateConfig",
    "GateLimit",
    "JudgeConfig",
    "LimitsConfig",
    "LoraConfig",
    "MachineConfig",
    "MachinesConfig",
    "ModelConfig",
    "Nodes",
    "PlayConfig",
    "PrivacyConfig",
    "Recipe",
    "Section",
    "ServeConfig",
    "ServiceConfig",
    "SuiteConfig",
    "TrainConfig",
    "TrainerConfig",
    "UpConfig",
    "UpstreamConfig",
    "WorkersConfig",
    "default_log_level",
    "dump_recipe",
    "environment_with",
    "from_environment",
    "gpu_numbers",
    "gpus_from_environment",
    "is_rank",
    "is_stage_of_up",
    "known_keys",
    "launch_of_job",
    "load_recipe",
    "name_code_for_stages",
    "named_code_for_jobs",
    "names_code_from_up",
    "nodes",
    "openclaw_config",
    "options_from_environment",
    "place_among_ranks",
    "ray_address",
    "secrets_from_environment",
    "show_gpus",
    "state_folder",
    "warning_of_variables",
    "without_telemetry",
]  # fmt: skip
