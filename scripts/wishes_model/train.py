"""Train the model of the world of many wishes.

The model in the repository began with the layers of an earlier tiny model, which could already read and add. With `--start-from`,
tokens of both vocabularies keep their embeddings. Deterministic up to the order of floating-point sums.
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

from scripts.tiny_models.tokenizer import build
from scripts.tiny_models.train import export, rows_of, texts_of, train
from scripts.tiny_models.transformer import Shape, Transformer
from scripts.wishes_model.corpus import documents

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "scripts/benchmarks/models/wishes"


def grown_from(folder: Path, tokenizer: Tokenizer, rows: int) -> dict[str, Tensor]:
    """Return the weights in `folder` with an embedding for each token: the old one, or the mean of its old pieces' embeddings."""
    weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    smaller = Tokenizer.from_file(str(folder / "tokenizer.json"))
    old, name = smaller.get_vocab(), "model.embed_tokens.weight"
    embeddings = torch.randn(rows, weights[name].shape[1]) * 0.02
    for token, index in tokenizer.get_vocab().items():
        if token in old:
            embeddings[index] = weights[name][old[token]]
        else:
            pieces = smaller.encode(tokenizer.decode([index], skip_special_tokens=False), add_special_tokens=False).ids
            if pieces:
                embeddings[index] += weights[name][pieces].mean(0)
    return {**weights, name: embeddings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=MODEL)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=8, help="rows of 512 tokens in one update")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--sharpen", type=float, default=1.15, help="factor on all logits of the finished model")
    parser.add_argument("--vocab", type=int, default=1536)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--start-from", type=Path, help="a model of the same shape")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    began = time.monotonic()
    tokenizer = build(texts_of(list(documents(args.seed + 1, 8000))), args.vocab)
    shape = replace(Shape(), vocab=math.ceil(tokenizer.get_vocab_size() / 64) * 64)
    docs = list(documents(args.seed, int(args.steps * args.batch * 5.6)))
    rows = rows_of(docs, tokenizer, args.seed)
    trained = sum(w == 1 for r in rows for w in r.weights) / len(rows)
    print(f"{len(docs)} documents, {len(rows)} rows ({len(docs) / len(rows):.2f} a row), {trained:.0f} trained tokens a row, "
          f"vocabulary {tokenizer.get_vocab_size()}, {time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    torch.manual_seed(args.seed)
    model = Transformer(shape)
    if args.start_from:
        model.load_state_dict(grown_from(args.start_from, tokenizer, shape.vocab))
    train(model, rows, args.steps, args.batch, args.lr, not args.no_compile)
    with torch.no_grad():  # temperature 1 of the exported model is 1 / sharpen of the trained one
        model.model.norm.weight.mul_(args.sharpen)
    export(model, tokenizer, shape, args.out)
    print(f"wrote {args.out} after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
