"""Converts a GGUF file into a model's folder: `python -m clawctl.run.gguf_conversion FILE FOLDER`.

Prints problem and cure of a file that cannot be converted as a JSON list, and ends with exit code 2.
"""

import struct
import sys
from pathlib import Path
from typing import Any

import orjson

from clawctl.errors import ClawError

_SAMPLING = {"temperature": "general.sampling.temp", "top_p": "general.sampling.top_p", "top_k": "general.sampling.top_k"}
_INSTEAD = "choose another GGUF file of the model, such as Q8_0 or Q4_K_M, or its safetensors on the hub"


def convert(file: Path, folder: Path) -> None:
    """Write weights in bfloat16, tokenizer, chat template and configuration of a GGUF file. Raises ClawError (exit code 2)."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        tokenizer, model, missing = _read(file)
    except ImportError as error:
        raise ClawError(f"{file} cannot be read: {error}", "pip install --upgrade gguf transformers", 2) from error
    except NotImplementedError as error:
        raise ClawError(f"{file} has a quantisation that cannot be read: {error}", _INSTEAD, 2) from error
    except (ValueError, LookupError, TypeError, OSError, struct.error, UnicodeDecodeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if "GGMLQuantizationType" in reason:
            raise ClawError(f"{file} has a quantisation that cannot be read: {reason}", _INSTEAD, 2) from error
        if "architecture" in reason or "Unrecognized configuration" in reason or "model type" in reason:
            cure = "choose a model of another architecture, or its safetensors on the hub"
            raise ClawError(f"transformers cannot read the architecture of {file}: {reason}", cure, 2) from error
        raise ClawError(
            f"{file} is cut short or damaged: {reason}", "download it again; if it stays so, use its safetensors", 2
        ) from error
    if missing:
        cure = "choose another GGUF file of the model, or its safetensors on the hub"
        raise ClawError(f"{file} lacks {len(missing)} weights, such as {sorted(missing)[0]}", cure, 2)
    tokenizer.save_pretrained(folder)
    # transformers refuses to save a model that it believes to be quantised still.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer = None
    model.save_pretrained(folder)


def _read(file: Path) -> tuple[Any, Any, set[str]]:
    """Return tokenizer, model, and the names of weights that the file lacks."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.integrations.gguf import read_gguf_metadata

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if not tokenizer.chat_template:
        raise ClawError(f"{file} has no chat template", "choose a chat (instruct) model", 2)
    settings: Any = {"dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True), "output_loading_info": True}
    loaded: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, **settings)
    model, information = loaded
    metadata, _ = read_gguf_metadata(str(file))  # gguf's own reader takes 4 s for 49,000 tokens, this one 0.2
    sampling = {name: metadata[key] for name, key in _SAMPLING.items() if key in metadata}
    if sampling:
        model.generation_config.update(do_sample=True, **sampling)
    return tokenizer, model, set(information["missing_keys"])


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except ClawError as error:
        print(orjson.dumps([error.problem, error.fix]).decode())
        sys.exit(2)
