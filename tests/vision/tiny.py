"""A random tiny Qwen3-VL with a byte-level tokenizer, and pictures for it."""

from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import torch

from scripts.screens_model.template import SPECIAL, TEMPLATE, VISION


def make_vision_model(folder: Path) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(["hello please click the red button on this page user assistant hint"] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, chat_template=TEMPLATE, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    start, end, image, video = tokenizer.convert_tokens_to_ids(VISION)
    torch.manual_seed(0)
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 4096, "initializer_range": 0.2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True},
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "tie_word_embeddings": True,
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4,
        "spatial_merge_size": 2, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1], "initializer_range": 0.2,
    }  # fmt: skip
    config = Qwen3VLConfig(
        text_config=text, vision_config=vision, image_token_id=image, video_token_id=video, vision_start_token_id=start,
        vision_end_token_id=end, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3VLForConditionalGeneration(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    half = [0.5, 0.5, 0.5]
    processor = {
        "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2,
        "size": {"shortest_edge": 256, "longest_edge": 4096}, "image_mean": half, "image_std": half,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_bytes(orjson.dumps(processor))
    return folder


def picture(seed: int = 0, width: int = 32, height: int = 24, kind: str = "PNG") -> bytes:
    """A picture of noise."""
    import numpy as np
    from PIL import Image

    file = BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)).save(file, kind)
    return file.getvalue()


@torch.no_grad()
def logprobs_by_transformers(
    model: Any, reader: Any, prompt_ids: list[int], files: list[bytes], completion_ids: list[int], temperature: float = 1.0
) -> list[float]:
    """Of an answer to a prompt with images, by transformers' own way: pixels, grids and types of tokens."""
    ids = torch.tensor([[*prompt_ids, *completion_ids]])
    pictures = [reader.picture(file) for file in files]
    given: dict[str, Any] = {}
    if pictures:
        marks = torch.zeros_like(ids)
        marks[0, : len(prompt_ids)] = ids[0, : len(prompt_ids)] == reader.placeholder
        given = {
            "pixel_values": torch.cat([torch.from_numpy(picture.pixels) for picture in pictures]),
            "image_grid_thw": torch.tensor(
                [[1, picture.rows * reader.merge, picture.columns * reader.merge] for picture in pictures]
            ),
            "mm_token_type_ids": marks,
        }
    model.model.rope_deltas = None  # of another sequence
    logits = model(input_ids=ids, use_cache=False, **given).logits[0, len(prompt_ids) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(-1, ids[0, len(prompt_ids) :, None])[:, 0].tolist()
