"""Train the model `crafts` or `pages` from scratch: corpus, tokenizer, packed rows, Muon and AdamW, as in `scripts/tiny_models`.

Deterministic up to the order of floating-point sums.
"""

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

from scripts.craft_model import corpus, pages
from scripts.tiny_models.documents import Document
from scripts.tiny_models.tokenizer import build, id_of
from scripts.tiny_models.train import Piece, Row, export, learned_flags, packed, texts_of, train, trained_tokens
from scripts.tiny_models.transformer import Shape, Transformer

CORPORA = {"crafts": corpus.documents, "pages": pages.documents}
SHAPE = Shape(hidden=128, layers=4, heads=4, kv_heads=2, head_dim=32, mlp=512, context=8192)
PER_ROW = {"crafts": 3.3, "pages": 3.6}  # documents per row of 512 tokens
STEPS = {"crafts": 4500, "pages": 3600}  # for copying new words: at half of them a fifth of new labels were wrong


def rows_of(docs: list[Document], tokenizer: Tokenizer, seed: int) -> list[Row]:
    """Pack rows. Documents of one environment share one copy of their common beginning, its tools or its system message."""
    start, end = id_of(tokenizer, "<|im_start|>"), id_of(tokenizer, "<|im_end|>")
    prefixes: dict[str, list[int]] = {}
    pieces: dict[str, list[Piece]] = {}
    for doc, text, encoded in zip(docs, texts := texts_of(docs), tokenizer.encode_batch(texts), strict=True):
        begin = text.index("<|im_start|>user")
        prefix = prefixes.setdefault(text[:begin], tokenizer.encode(text[:begin]).ids)
        mask = trained_tokens(encoded.ids, learned_flags(doc), start, end)
        pieces.setdefault(text[:begin], []).append((encoded.ids[len(prefix) :], mask[len(prefix) :]))
    numbers = frozenset(id_of(tokenizer, str(n)) for n in range(201))
    rows = [row for opening, some in pieces.items() for row in packed(some, prefixes[opening], numbers)]
    Random(seed).shuffle(rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=[*CORPORA])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="by default as the shipped model")
    parser.add_argument("--batch", type=int, default=8, help="rows of 512 tokens in one update")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--state", type=Path, help="a file: save there every 100 steps, and continue from it")
    parser.add_argument("--compile", action="store_true", help="pays from a few thousand steps on")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    steps = args.steps or STEPS[args.model]
    began, documents = time.monotonic(), CORPORA[args.model]
    tokenizer = build(texts_of(list(documents(args.seed + 1, 3000))), args.vocab)
    shape = replace(SHAPE, vocab=math.ceil(tokenizer.get_vocab_size() / 64) * 64)
    docs = list(documents(args.seed, int(steps * args.batch * PER_ROW[args.model])))
    rows = rows_of(docs, tokenizer, args.seed)
    trained = sum(w == 1 for r in rows for w in r.weights) / len(rows)
    print(f"{len(docs)} documents, {len(rows)} rows ({len(docs) / len(rows):.2f} a row), {trained:.0f} trained tokens a row, "
          f"vocabulary {tokenizer.get_vocab_size()}, {time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    torch.manual_seed(args.seed)
    model = Transformer(shape)
    train(model, rows, steps, args.batch, args.lr, args.compile, args.state)
    export(model, tokenizer, shape, args.out)
    print(f"wrote {args.out} after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
