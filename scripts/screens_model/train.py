"""Train the `screens` model from scratch: a Qwen3-VL of transformers with a vision tower, by Muon and AdamW.

A page of `spot` is a grid of plain boxes, and each cell of the grid is one token of the model. So the pixels of a cell of each
colour are computed once, without a browser. A test compares them with screenshots of Chromium. Deterministic up to the order of
floating-point sums.
"""

import argparse
import shutil
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from clawctl.extensions.worlds.gui.sites import SPOT_CELL, SPOT_COLOURS, SPOT_COLUMNS, SPOT_ROWS
from clawctl.vision.reader import ImageReader, Picture, image_reader
from clawctl.vision.tower import ImageFeatures, ImageSpan, ShownImages, mrope_positions, prepare
from scripts.screens_model.corpus import CELLS, Document, documents
from scripts.screens_model.template import SPECIAL, TEMPLATE, VISION
from scripts.tiny_models.tokenizer import id_of
from scripts.tiny_models.train import learning_rate

ROOT = Path(__file__).parents[2]
_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
_SPLIT = r" ?\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\n+|\s+(?!\S)|\s+"
_HALF = [0.5, 0.5, 0.5]
PATCH, MERGE = 16, 2
NOT_TRAINED = -100
KINDS = ("Name", "Where", "Task")  # first words of the questions


def text_of(doc: Document) -> str:
    system = f"<|im_start|>system\n{doc.system}<|im_end|>\n" if doc.system else ""
    question = f"<|im_start|>user\n{_IMAGE}{doc.question}<|im_end|>\n"
    return f"{system}{question}<|im_start|>assistant\n{doc.answer}<|im_end|>\n"


def build_tokenizer(vocab: int, seed: int) -> Tokenizer:
    """A byte-level BPE in which each number below 1000 of the corpus is one token, with the space before it."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=SPECIAL, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator((text_of(doc) for doc in documents(seed + 1, 3000)), trainer)
    return tokenizer


def build_model(tokenizer: Tokenizer, seed: int) -> Any:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    start, end, image, video = (id_of(tokenizer, mark) for mark in VISION)
    eos, pad = id_of(tokenizer, "<|im_end|>"), id_of(tokenizer, "<|endoftext|>")
    text = {
        "vocab_size": tokenizer.get_vocab_size(), "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True},
        "eos_token_id": eos, "pad_token_id": pad, "tie_word_embeddings": True,
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 48, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 64, "patch_size": PATCH,
        "spatial_merge_size": MERGE, "num_position_embeddings": 64, "deepstack_visual_indexes": [0],
    }  # fmt: skip
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(
            text_config=text, vision_config=vision, image_token_id=image, video_token_id=video, vision_start_token_id=start,
            vision_end_token_id=end, tie_word_embeddings=True,
        )
    )  # fmt: skip
    torch.nn.init.normal_(model.model.visual.pos_embed.weight, std=0.5)  # as large as the pixels: otherwise places are found late
    model.generation_config.eos_token_id = eos
    prepare(model)
    return model


def export(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the model into a temporary folder beside the target, then move each file into place."""
    from transformers import PreTrainedTokenizerFast

    draft = folder.with_name(folder.name + ".new")
    shutil.rmtree(draft, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(draft)
    model.float()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=TEMPLATE, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    ).save_pretrained(draft)
    write_processor(draft)
    folder.mkdir(parents=True, exist_ok=True)
    for file in draft.iterdir():
        file.replace(folder / file.name)
    draft.rmdir()


def write_processor(folder: Path) -> None:
    processor = {
        "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": PATCH, "temporal_patch_size": 2, "merge_size": MERGE,
        "size": {"shortest_edge": 1024, "longest_edge": 1 << 18}, "image_mean": _HALF, "image_std": _HALF,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_bytes(orjson.dumps(processor, option=orjson.OPT_INDENT_2))


class Pixels:
    """The pixels of pages, as the image processor makes them of screenshots of 128 x 96 pixels."""

    def __init__(self, reader: ImageReader) -> None:
        shades = {"": "#ffffff", **SPOT_COLOURS}
        self._of = {name: torch.from_numpy(reader.picture(_drawn(shade)).pixels) for name, shade in shades.items()}

    def page(self, boxes: dict[int, str]) -> Tensor:
        """[patches of the page, values of a patch]"""
        return torch.cat([self._of[boxes.get(cell, "")] for cell in range(CELLS)])

    def picture(self, boxes: dict[int, str]) -> Picture:
        return Picture(self.page(boxes).numpy(), SPOT_ROWS, SPOT_COLUMNS)


def _drawn(shade: str) -> bytes:
    """One cell as a file."""
    image = Image.new("RGB", (SPOT_CELL, SPOT_CELL), "#ffffff")
    ImageDraw.Draw(image).rectangle((3, 3, 28, 28), fill=shade)
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


class Rows:
    """Makes batches of documents."""

    def __init__(self, tokenizer: Tokenizer, pixels: Pixels) -> None:
        self.tokenizer, self._pixels = tokenizer, pixels
        self._start, self._end = id_of(tokenizer, "<|im_start|>"), id_of(tokenizer, "<|im_end|>")
        self._image = id_of(tokenizer, "<|image_pad|>")
        self._speaker = tokenizer.encode("assistant").ids[0]

    def batch(self, docs: list[Document], begun: list[list[int]] | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The ids [B, T], positions [4, B, T], targets [B, T], flat places of image tokens [M] and pixels [patches, values].

        `begun`: ids of answers that are being sampled, in place of the documents' answers.
        """
        rows, targets = list[list[int]](), list[list[int]]()
        for encoded in self.tokenizer.encode_batch([text_of(doc) for doc in docs]):
            begin = encoded.ids.index(self._image)
            ids = [*encoded.ids[:begin], *[self._image] * CELLS, *encoded.ids[begin + 1 :]]
            if begun is not None:
                ids = [*ids[:-2], *begun[len(rows)]]  # without the end of the empty answer
            rows.append(ids)
            targets.append(self._targets(ids))
        length = max(map(len, rows))
        ids_BT, targets_BT = torch.zeros(len(rows), length, dtype=torch.long), torch.full((len(rows), length), NOT_TRAINED)
        positions_4BT = np.zeros((4, len(rows), length), np.int64)
        depths = np.arange(length)
        for row, (ids, row_targets) in enumerate(zip(rows, targets, strict=True)):
            ids_BT[row, : len(ids)], targets_BT[row, : len(row_targets)] = torch.tensor(ids), torch.tensor(row_targets)
            span = ImageSpan(ids.index(self._image), SPOT_ROWS, SPOT_COLUMNS)
            positions_4BT[0, row], positions_4BT[1:, row] = depths, mrope_positions(depths, np.full(length, length), [span])
        places_M = ids_BT.eq(self._image).flatten().nonzero()[:, 0]
        pixels = torch.cat([self._pixels.page(doc.boxes) for doc in docs])
        return ids_BT, torch.from_numpy(positions_4BT), targets_BT, places_M, pixels

    def _targets(self, ids: list[int]) -> list[int]:
        """The next id where an answer or its end is next, else NOT_TRAINED."""
        targets, is_answer = [], False
        for index, token in enumerate(ids[:-1]):
            if token == self._start:
                is_answer = ids[index + 1] == self._speaker
            elif token == self._end:
                is_answer = False
            is_target = is_answer and token not in (self._start, self._speaker)  # from the line break after "assistant"
            targets.append(ids[index + 1] if is_target else NOT_TRAINED)
        return [*targets, NOT_TRAINED]


def logits_of(model: Any, ids_BT: Tensor, positions_4BT: Tensor, places_M: Tensor, pixels: Tensor, kept: Tensor) -> Tensor:
    """The logits [N, vocabulary] at the places where the mask `kept` [B, T] is true."""
    grid = torch.tensor([[1, SPOT_ROWS * MERGE, SPOT_COLUMNS * MERGE]]).expand(len(ids_BT), 3)
    seen = model.model.get_image_features(pixels, grid, return_dict=True)
    features = ImageFeatures(torch.cat(list(seen.pooler_output)), [torch.cat(list(layer)) for layer in seen.deepstack_features])
    shown = ShownImages(places_M, features)
    hidden = model.model(input_ids=ids_BT, position_ids=positions_4BT, shown=shown, use_cache=False)
    logits: Tensor = model.lm_head(hidden.last_hidden_state[kept])
    return logits.float()


def train(model: Any, rows: Rows, docs: list[Document], steps: int, batch: int, lr: float) -> None:
    # A step of AdamW in the first convolution moves all patches together, by more than they differ. It keeps its random weights.
    model.model.visual.patch_embed.requires_grad_(False)
    learned = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in learned if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in learned if p.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.02, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    began = time.monotonic()
    for step in range(steps):
        for group in (*muon.param_groups, *adam.param_groups):
            group["lr"] = learning_rate(step, steps, lr)
        chosen, losses = docs[step * batch : (step + 1) * batch], []
        for kind in KINDS:  # documents of one kind have similar lengths
            some = [doc for doc in chosen if doc.question.startswith(kind)]
            ids_BT, positions, targets_BT, places_M, pixels = rows.batch(some)
            kept = targets_BT != NOT_TRAINED
            logits = logits_of(model, ids_BT, positions, places_M, pixels, kept)
            losses.append(F.cross_entropy(logits, targets_BT[kept]))
        torch.stack(losses).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in (muon, adam):
            optimizer.step()
            optimizer.zero_grad()
        if step % 20 == 19 or step == 0:
            shown = ", ".join(f"{kind} {loss.item():.4f}" for kind, loss in zip(KINDS, losses, strict=True))
            print(f"step {step + 1}/{steps} loss: {shown}, {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "scripts/benchmarks/models/screens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--batch", type=int, default=32, help="documents in one update")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--vocab", type=int, default=576)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--right", action="store_true", help="demonstrations are always right: shows what the architecture can do")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    began = time.monotonic()
    tokenizer = build_tokenizer(args.vocab, args.seed)
    docs = list(documents(args.seed, args.steps * args.batch, {"right": 1.0} if args.right else None))
    model = build_model(tokenizer, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    export(model, tokenizer, args.out)
    reader = image_reader(str(args.out))
    assert reader is not None
    weights = sum(p.numel() for p in model.parameters())
    print(f"{weights} weights, vocabulary {tokenizer.get_vocab_size()}, {time.monotonic() - began:.0f} s", flush=True)
    train(model, Rows(tokenizer, Pixels(reader)), docs, args.steps, args.batch, args.lr)
    export(model, tokenizer, args.out)
    print(f"wrote {args.out} after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
