"""All settings that a user can change. Importing this does not import torch.

Each setting is in the file of its section (`train.lr` in `train.py`). `recipe.py` combines the sections, and `environment.py` reads
the environment.
"""

from clawctl.config.collect import CollectConfig
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
