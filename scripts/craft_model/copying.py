"""Measures how exactly the model copies words, numbers and keys of new tasks.

python -m scripts.craft_model.copying NAME --model DIR [--tasks 300]
"""

import argparse
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from scripts.craft_model.train import CORPORA
from scripts.tiny_models.documents import Document
from scripts.tiny_models.train import texts_of
from scripts.tiny_models.transformer import Shape, Transformer

_ANSWER = re.compile(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", re.DOTALL)
_EXPRESSION = re.compile(r'"expression": "(.*?)(?: =)?"')
_LABEL = re.compile(r'^(?:click|type|select) "(.*)"(?=\n|<)', re.MULTILINE)
_NUMBER = re.compile(r"(-?\d+<\|im_end\|>)$")
_WORD = re.compile(r"([A-Za-z_][\w./]{2,})")
_COMMANDS = {
    "mkdir", "grep", "head", "tail", "awk", "sed", "print", "END", "for", "name", "done", "bash", "return", "def", "cat", "submit",
}  # fmt: skip


def copies(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end (exclusive) of each copied text in an episode's answers: of a command, the words of its task."""
    task = {*_WORD.findall(text[text.find("<|im_start|>user") : text.find("<|im_start|>assistant")])} - _COMMANDS
    part = {"labels": _LABEL, "toolcall": _EXPRESSION}.get(kind_of(text), _WORD)
    for answer in _ANSWER.finditer(text):
        patterns = [part]
        if "<tool_response>" in text[: answer.start()]:
            patterns.append(_NUMBER)
        for pattern in patterns:
            for match in pattern.finditer(answer[1]):
                if pattern is _WORD and match[0].rstrip(".") not in task:
                    continue
                yield answer.start(1) + match.start(1), answer.start(1) + match.end(1)


@torch.no_grad()
def accuracy(
    model: Transformer, tokenizer: Tokenizer, documents: Callable[[int, int], Iterator[Document]], kind: str, tasks: int
) -> tuple[float, float]:
    """Return the share of episodes in which all copies are exact, with greedy decoding and at temperature 1."""
    numbers = torch.zeros(model.model.s.vocab, dtype=torch.bool)
    numbers[[index for token, index in tokenizer.get_vocab().items() if token[0] in "-0123456789"]] = True
    greedy, sampled = list[bool](), list[float]()
    for doc in documents(-1, 40 * tasks):
        text = texts_of([doc])[0]
        if kind_of(text) != kind or not (spans := [*copies(text)]):
            continue
        encoded = tokenizer.encode(text)
        ids = torch.tensor([encoded.ids])
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None, None]
        logits = model.logits(model.model(ids, torch.arange(ids.shape[1])[None], causal))[0]
        exact, logprob = True, 0.0
        for first, last in spans:
            indices = [index for index, (start, end) in enumerate(encoded.offsets) if first < end and start < last]
            for index in indices:
                scores = logits[index - 1]
                if (
                    index == indices[0] and kind in ("toolcall", "terminal", "swe") and text[first] in "-0123456789"
                ):  # a number or a word is a choice, not a copy
                    scores = scores.masked_fill(~numbers, -math.inf)
                exact &= int(scores.argmax()) == encoded.ids[index]
                logprob += float(scores.log_softmax(0)[encoded.ids[index]])
        greedy.append(exact)
        sampled.append(math.exp(logprob))
        if len(greedy) == tasks:
            break
    return sum(greedy) / len(greedy), sum(sampled) / len(sampled)


def kind_of(text: str) -> str:
    if "<tools>" in text:
        return "toolcall"
    if "You use a web page" in text:
        return "gui"
    if "<|im_start|>user\nTask: " in text:
        return "labels"
    return "drill" if "Linux shell" not in text else "swe" if ".py" in text[: text.find("<|im_start|>assistant")] else "terminal"


def load(folder: Path) -> tuple[Transformer, Tokenizer]:
    settings = json.loads((folder / "config.json").read_text())
    shape = Shape(
        settings["vocab_size"], settings["hidden_size"], settings["num_hidden_layers"], settings["num_attention_heads"],
        settings["num_key_value_heads"], settings["head_dim"], settings["intermediate_size"], settings["rope_theta"],
        settings["max_position_embeddings"],
    )  # fmt: skip
    model = Transformer(shape)
    model.load_state_dict({name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()})
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*CORPORA])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=300)
    args = parser.parse_args()
    model, tokenizer = load(args.model)
    for kind in ("labels",) if args.name == "pages" else ("toolcall", "terminal", "swe"):
        greedy, sampled = accuracy(model, tokenizer, CORPORA[args.name], kind, args.tasks)
        print(f"{kind} copies exactly: {greedy:.3f} greedy, {sampled:.3f} at temperature 1", flush=True)


if __name__ == "__main__":
    main()
