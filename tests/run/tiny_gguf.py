"""Writes tiny GGUF files of the Llama architecture."""

from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from tokenizers.pre_tokenizers import ByteLevel

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\n' }}"
_WIDTH, _WIDE, _LAYERS = 32, 64, 2
_BLOCK = {
    "attn_norm": (_WIDTH,), "ffn_norm": (_WIDTH,), "attn_q": (_WIDTH, _WIDTH), "attn_k": (16, _WIDTH), "attn_v": (16, _WIDTH),
    "attn_output": (_WIDTH, _WIDTH), "ffn_gate": (_WIDE, _WIDTH), "ffn_up": (_WIDE, _WIDTH), "ffn_down": (_WIDTH, _WIDE),
}  # fmt: skip


def write_gguf(
    path: Path,
    architecture: str = "llama",
    template: str | None = TEMPLATE,
    positions: int = 2048,
    seed: int = 0,
    size: float = 0.05,
) -> Path:
    tokens = ["<unk>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "he"]
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(positions)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_WIDE)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    if template is not None:
        writer.add_chat_template(template)
    writer.add_float32("general.sampling.temp", 0.5)
    writer.add_int32("general.sampling.top_k", 20)
    draws = np.random.default_rng(seed)
    shapes = {"token_embd": (len(tokens), _WIDTH), "output_norm": (_WIDTH,)}
    shapes |= {f"blk.{layer}.{name}": shape for layer in range(_LAYERS) for name, shape in _BLOCK.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", draws.normal(0, size, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def set_quantisation(path: Path, code: int) -> Path:
    """Give the first matrix of a layer another type."""
    content, name = path.read_bytes(), b"blk.0.attn_q.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8  # after the number of dimensions, and two dimensions
    path.write_bytes(content[:at] + code.to_bytes(4, "little") + content[at + 4 :])
    return path
