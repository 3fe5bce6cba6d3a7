"""Trains a tiny model: packed rows, Muon and AdamW, and a folder that transformers loads.

Deterministic up to the order of floating-point sums: the same seed gives the same corpus, tokenizer, rows and starting weights.
"""

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from torch.optim import _muon

from scripts.tiny_models.documents import Document
from scripts.tiny_models.tokenizer import id_of, save
from scripts.tiny_models.transformer import Shape, Transformer, config_json

LENGTH = 512
CONTEXT_WEIGHT = 0.2  # other speakers' text teaches words; their numbers may be wrong and have weight 0
NOT_TRAINED = -100
_FAST_BFLOAT16 = torch.cpu._is_avx512_bf16_supported()  # ten times slower than float32 on processors without it


@dataclass(frozen=True, slots=True)
class Row:
    """One packed row of several documents. Segment 0 is a shared prefix that all documents of the row see; -1 is padding."""

    ids: list[int]
    positions: list[int]
    segments: list[int]
    targets: list[int]  # the next token; NOT_TRAINED after the end of a document
    weights: list[float]  # weight of the target's loss


Piece = tuple[list[int], list[bool]]  # ids of a document, and which of them have full loss


def renderer() -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return env


def texts_of(docs: list[Document]) -> list[str]:
    """Render the documents with the chat template, as the model sees them."""
    template = renderer().from_string((Path(__file__).parent / "chat_template.jinja").read_text())
    return [template.render(messages=d.messages, tools=list(d.tools) or None, add_generation_prompt=False) for d in docs]


def trained_tokens(ids: list[int], learn: list[bool], start: int, end: int) -> list[bool]:
    """Which ids have loss: each learned assistant message with its end mark, without its `<|im_start|>assistant\\n`."""
    on, message, mask, skip = False, -1, [], 0
    for index, token in enumerate(ids):
        if token == start:
            message += 1
            on, skip = learn[message], index + 2
        mask.append(on and index > skip)
        if token == end:
            on = False
    return mask


def learned_flags(doc: Document) -> list[bool]:
    """Return one flag per block of the rendered text. Tools start a separate system block. Tool messages share one user block."""
    flags = [False] if doc.tools and doc.messages[0]["role"] != "system" else []
    for index, message in enumerate(doc.messages):
        if not (message["role"] == "tool" and doc.messages[index - 1]["role"] == "tool"):
            flags.append(index in doc.learn)
    return flags


def rows_of(docs: list[Document], tokenizer: Tokenizer, seed: int) -> list[Row]:
    """Pack documents."""
    start, end = id_of(tokenizer, "<|im_start|>"), id_of(tokenizer, "<|im_end|>")
    encoded = [e.ids for e in tokenizer.encode_batch(texts_of(docs))]
    pieces = [(ids, trained_tokens(ids, learned_flags(doc), start, end)) for doc, ids in zip(docs, encoded, strict=True)]
    numbers = frozenset(id_of(tokenizer, str(n)) for n in range(201))
    rows = [*packed(pieces, [], numbers)]
    Random(seed).shuffle(rows)
    return rows


def packed(pieces: list[Piece], prefix: list[int], numbers: frozenset[int]) -> Iterator[Row]:
    """Pack into eight open rows by best fit. A full row is closed to make room."""
    waiting: list[list[Piece]] = [[] for _ in range(8)]
    room = LENGTH - len(prefix)
    for piece in pieces:
        if len(piece[0]) > room:
            continue
        sizes = [sum(len(ids) for ids, _ in row) for row in waiting]
        fits = [i for i, size in enumerate(sizes) if size + len(piece[0]) <= room]
        if fits:
            best = max(fits, key=sizes.__getitem__)
        else:
            best = max(range(len(sizes)), key=sizes.__getitem__)
            yield _row(waiting[best], prefix, numbers)
            waiting[best] = []
        waiting[best].append(piece)


def _row(pieces: list[Piece], prefix: list[int], numbers: frozenset[int]) -> Row:
    row = Row([*prefix], [*range(len(prefix))], [0] * len(prefix), [NOT_TRAINED] * len(prefix), [0.0] * len(prefix))
    for number, (piece, mask) in enumerate(pieces, start=1):
        row.ids.extend(piece)
        row.positions.extend(range(len(prefix), len(prefix) + len(piece)))
        row.segments.extend([number] * len(piece))
        row.targets.extend([*piece[1:], NOT_TRAINED])
        following = zip(piece[1:], mask[1:], strict=True)
        row.weights.extend(1.0 if on else 0.0 if token in numbers else CONTEXT_WEIGHT for token, on in following)
        row.weights.append(0.0)
    rest = LENGTH - len(row.ids)
    row.ids.extend([0] * rest)
    row.positions.extend([0] * rest)
    row.segments.extend([-1] * rest)
    row.targets.extend([NOT_TRAINED] * rest)
    row.weights.extend([0.0] * rest)
    return row


def tensors(rows: list[Row]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return ids, positions, targets and weights [B, T], and the attention mask [B, 1, T, T]."""
    ids = torch.tensor([r.ids for r in rows])
    positions = torch.tensor([r.positions for r in rows])
    targets = torch.tensor([r.targets for r in rows])
    weights = torch.tensor([r.weights for r in rows])
    segments = torch.tensor([r.segments for r in rows])
    same = (segments[:, :, None] == segments[:, None, :]) | (segments == 0)[:, None, :]
    return ids, positions, targets, weights, (same & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())[:, None]


def _orthogonal(grad: Tensor, ns_coefficients: tuple[float, float, float], ns_steps: int, eps: float) -> Tensor:
    """Muon's Newton-Schulz iteration in float32. Torch's is in bfloat16, which takes most of a step where that is slow."""
    a, b, c = ns_coefficients
    wide = grad.T if grad.size(0) > grad.size(1) else grad
    wide = wide / wide.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if grad.size(0) > grad.size(1) else wide


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Warm up for 30 steps, hold, then decay linearly over the last 60 %."""
    return peak * min(1.0, (step + 1) / 30, max(0.02, (steps - step) / (0.6 * steps)))


def train(model: Transformer, rows: list[Row], steps: int, batch: int, lr: float, compiled: bool, kept: Path | None = None) -> None:
    """Do `steps` updates over `rows`, cyclically. Saves its state in the file `kept` every 100 steps, and resumes from it."""
    body = torch.compile(model.model, dynamic=False) if compiled else model.model
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    if not _FAST_BFLOAT16:
        _muon._zeropower_via_newtonschulz = _orthogonal
    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.02, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    first_step = 0
    if kept is not None and kept.exists():
        first_step, weights, *states = torch.load(kept)
        model.load_state_dict(weights)
        muon.load_state_dict(states[0])
        adam.load_state_dict(states[1])
    began = time.monotonic()
    for step in range(first_step, steps):
        for group in (*muon.param_groups, *adam.param_groups):
            group["lr"] = learning_rate(step, steps, lr)
        first = step * batch % (len(rows) - batch)
        ids, positions, targets, weights, mask = tensors(rows[first : first + batch])
        with torch.autocast("cpu", torch.bfloat16, enabled=_FAST_BFLOAT16):
            hidden = body(ids, positions, mask)
            logits = model.logits(hidden)
        losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=NOT_TRAINED, reduction="none")
        loss = (losses * weights.flatten()).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        adam.step()
        muon.zero_grad()
        adam.zero_grad()
        if step % 20 == 19 or step == 0:
            spent = time.monotonic() - began
            own_loss_loss = losses[weights.flatten() == 1].mean().item()
            speed = (step + 1 - first_step) * batch * LENGTH / spent
            print(
                f"step {step + 1}/{steps} loss {loss.item():.4f} own words {own_loss_loss:.4f} {speed:.0f} tokens/s {spent:.0f} s",
                flush=True,
            )
        if kept is not None and step % 100 == 99:
            draft = kept.with_name(kept.name + ".new")
            torch.save([step + 1, model.state_dict(), muon.state_dict(), adam.state_dict()], draft)
            draft.replace(kept)


def export(model: Transformer, tokenizer: Tokenizer, shape: Shape, folder: Path) -> None:
    """Write the model into a temporary folder next to the target, then move each file into place."""
    draft = folder.with_name(folder.name + ".new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    eos, pad = id_of(tokenizer, "<|im_end|>"), id_of(tokenizer, "<|endoftext|>")
    weights = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in model.state_dict().items()}
    save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    (draft / "config.json").write_text(json.dumps(config_json(shape, eos, pad), indent=2) + "\n")
    generation = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "eos_token_id": eos, "pad_token_id": pad}
    (draft / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    save(tokenizer, draft, shape.context)
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(draft.iterdir()):
        file.replace(folder / file.name)
    draft.rmdir()
