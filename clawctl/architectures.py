"""The shape of a model from its configuration alone: no weights are read and nothing is downloaded for models that recipes name."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clawctl.errors import ClawError

KNOWN = Path(__file__).parent / "architectures.json"  # config.json of models in recipes, for machines without access to the hub


def skeleton(path: str) -> Any:
    """The model without storage (device meta). Raises ClawError if its configuration cannot be found."""
    import torch
    from transformers import AutoConfig

    from clawctl.vision.tower import model_class

    recorded = json.loads(KNOWN.read_text())
    with loading(path):
        if path in recorded and not Path(path).exists():
            config = AutoConfig.for_model(**recorded[path])
        else:
            config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        with torch.device("meta"):
            return model_class(path).from_config(config)


@contextmanager
def loading(path: str) -> Iterator[None]:
    """Raises ClawError (exit code 2) if what the block loads of a model is missing or invalid."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        problem = f"model {path} cannot be loaded: {str(error).splitlines()[0]}"
        raise ClawError(problem, "set model.path to a Hugging Face model directory or a GGUF file", 2) from error


def cached_numbers_a_token(config: Mapping[str, Any]) -> int:
    """How many numbers a KV cache keeps for each token: keys and values of the layers with full attention. `config` is that of the
    text model."""
    layers = int(config["num_hidden_layers"])
    kinds = config.get("layer_types") or ["full_attention"] * layers
    heads = int(config["num_attention_heads"])
    width = int(config.get("head_dim") or config["hidden_size"] // heads)
    return 2 * sum("linear" not in kind for kind in kinds) * int(config.get("num_key_value_heads") or heads) * width
