"""Train the model of the world of many wishes. It starts from the demo model's layers, which can already read and add.

The tokenizer is new. Tokens of both vocabularies keep their embeddings. Deterministic up to the order of floating-point sums.
"""

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from clawctl.extensions.demos import models
from scripts.demo_model.tokenizer import build
from scripts.demo_model.train import export, rows_of, texts_of, train
from scripts.demo_model.transformer import Shape, Transformer
from scripts.wishes_model.corpus import documents


def grown_from(folder: Path, tokenizer: Tokenizer, rows: int) -> dict[str, Tensor]:
    """Return the weights in `folder` with an embedding for each token: the old one, or the mean of its old pieces' embeddings."""
    weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    known = Tokenizer.from_file(str(folder / "tokenizer.json"))
    old, name = known.get_vocab(), "model.embed_tokens.weight"
    embeddings = torch.randn(rows, weights[name].shape[1]) * 0.02
    for token, index in tokenizer.get_vocab().items():
        if token in old:
            embeddings[index] = weights[name][old[token]]
        else:
            pieces = known.encode(tokenizer.decode([index], skip_special_tokens=False), add_special_tokens=False).ids
            if pieces:
                embeddings[index] += weights[name][pieces].mean(0)
    return {**weights, name: embeddings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=models.wishes())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=8, help="rows of 512 tokens in one update")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--sharpen", type=float, default=1.15, help="factor on all logits of the finished model")
    parser.add_argument("--vocab", type=int, default=1536)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--start-from", type=Path, default=models.demo(), help="a model of the same shape")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    began = time.monotonic()
    same = args.start_from.resolve() != models.demo().resolve()  # continue training with its tokenizer
    if same:
        tokenizer = Tokenizer.from_file(str(args.start_from / "tokenizer.json"))
    else:
        tokenizer = build(texts_of(list(documents(args.seed + 1, 8000))), args.vocab)
    shape = replace(Shape(), vocab=math.ceil(tokenizer.get_vocab_size() / 64) * 64)
    docs = list(documents(args.seed, int(args.steps * args.batch * 5.6)))
    rows = rows_of(docs, tokenizer, args.seed)
    trained = sum(w == 1 for r in rows for w in r.weights) / len(rows)
    print(f"{len(docs)} documents, {len(rows)} rows ({len(docs) / len(rows):.2f} a row), {trained:.0f} trained tokens a row, "
          f"vocabulary {tokenizer.get_vocab_size()}, {time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    torch.manual_seed(args.seed)
    model = Transformer(shape)
    model.load_state_dict(grown_from(args.start_from, tokenizer, shape.vocab))
    train(model, rows, args.steps, args.batch, args.lr, not args.no_compile)
    with torch.no_grad():  # temperature 1 of the exported model is 1 / sharpen of the trained one
        model.model.norm.weight.mul_(args.sharpen)
    export(model, tokenizer, shape, args.out)
    print(f"wrote {args.out} after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
