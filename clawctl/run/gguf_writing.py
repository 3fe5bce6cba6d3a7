"""Writes a model as a GGUF file in 16 bits, for llama.cpp and Ollama.

llama.cpp's `convert_hf_to_gguf.py` converts more architectures, but is part of no package. The package `gguf` has the file format
and the names of tensors. Metadata of a model that came from a GGUF file is copied from that file.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from clawctl.config import Recipe
from clawctl.errors import ClawError

_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}  # by transformers' model_type
_NOT_COPIED = re.compile(r"GGUF\..*|general\.(architecture|file_type|quantization_version)|split\..*")
_F16 = 1  # llama.cpp's file type: matrices in 16 bits
_CHATML = """TEMPLATE \"\"\"{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
\"\"\"
PARAMETER stop <|im_end|>
"""


def write_gguf(path: Path, model: Any, tokenizer: Any, source: Path | None) -> None:
    """`source`: the GGUF file from which the base model came. Raises ClawError (exit code 2) for a model that cannot be written."""
    import gguf

    config = model.config
    name = _ARCHITECTURES.get(config.model_type)
    instead = "export it with --adapter merged, and convert it with llama.cpp's convert_hf_to_gguf.py"
    if name is None:
        raise ClawError(f"GGUF export knows no architecture {config.model_type}, only {', '.join(_ARCHITECTURES)}", instead, 2)
    if source is None and (not config.model_type.startswith("qwen") or _scales_rope(config)):
        raise ClawError("GGUF export of this model needs metadata that only a GGUF file of its base has", instead, 2)
    architecture = next(kind for kind, label in gguf.MODEL_ARCH_NAMES.items() if label == name)
    writer = gguf.GGUFWriter(path, name)
    writer.add_file_type(_F16)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    written = set()
    if source is None:
        _add_metadata(writer, config, tokenizer)
    for key, weight in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, suffix = key.rpartition(".")
        to = names.get_name(stem)
        if to is None:
            raise ClawError(f"GGUF has no name for the weight {key}", instead, 2)
        value = weight.float().numpy()
        if name == "llama" and stem.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if stem.endswith("q_proj") else config.num_key_value_heads
            value = _interleaved(value, heads)
        written.add(f"{to}.{suffix}")
        with np.errstate(over="ignore"):  # comparing log-probabilities finds a weight that is too large for 16 bits
            value = value.astype(np.float32 if value.ndim == 1 else np.float16)
        writer.add_tensor(f"{to}.{suffix}", np.ascontiguousarray(value))
    if source is not None:
        _copy(writer, gguf.GGUFReader(source), written)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy(writer: Any, reader: Any, written: set[str]) -> None:
    """Copy the metadata of a GGUF file, and tensors that are no weights of the model, such as factors of the rotary embedding."""
    for key, field in reader.fields.items():
        if not _NOT_COPIED.fullmatch(key):
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        if tensor.name not in written and tensor.name != "output.weight":
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)


def _scales_rope(config: Any) -> bool:
    return bool((getattr(config, "rope_parameters", None) or {}).get("rope_type", "default") != "default")


def _interleaved(weight_OI: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a projection in the order of llama.cpp, where the two numbers that rotate together are neighbours."""
    rows, columns = weight_OI.shape
    return weight_OI.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _add_metadata(writer: Any, config: Any, tokenizer: Any) -> None:
    """The metadata of a Qwen model and of its tokenizer."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    import gguf

    merges = (saved := _saved(tokenizer))["model"].get("merges")
    if saved["model"]["type"] != "BPE" or merges is None:
        raise ClawError("GGUF export knows tokenizers of the kind BPE only", "export it with --adapter merged", 2)
    added = {token["id"]: token for token in saved["added_tokens"]}
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    tokens = [by_id.get(index, f"[PAD{index}]") for index in range(config.vocab_size)]
    control, user, unused, normal = (int(getattr(gguf.TokenType, kind)) for kind in ("CONTROL", "USER_DEFINED", "UNUSED", "NORMAL"))
    types = [
        (control if added[index]["special"] else user) if index in added else normal if index in by_id else unused
        for index in range(config.vocab_size)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    writer.add_add_bos_token(False)
    for index, add in ((tokenizer.eos_token_id, writer.add_eos_token_id), (tokenizer.pad_token_id, writer.add_pad_token_id)):
        if index is not None:
            add(index)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _saved(tokenizer: Any) -> Any:
    import orjson

    return orjson.loads(tokenizer.backend_tokenizer.to_str())


def write_modelfile(path: Path, file: str, tokenizer: Any, recipe: Recipe) -> None:
    """Write what `ollama create NAME -f Modelfile` reads. Ollama takes other chat templates than ChatML from the GGUF file."""
    temperature = recipe.serve.temperature
    lines = f"FROM ./{file}\n" + (f"PARAMETER temperature {temperature:g}\n" if temperature is not None else "")
    path.write_text(lines + (_CHATML if "<|im_start|>" in (tokenizer.chat_template or "") else ""))
