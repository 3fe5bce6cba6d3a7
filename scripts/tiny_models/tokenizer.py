"""A byte-level BPE tokenizer of the corpus in which every whole number from 0 to 200 is one token.

Numbers never merge with the preceding space, so that sums are look-ups over the same 201 tokens in all positions.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_SPLIT = r"\p{N}{1,3}| ?\p{L}+(?:'\p{L}+)?| ?[^\s\p{L}\p{N}]+|\n+|\s+(?!\S)|\s+"
_FENCE = re.compile(r"(?<=<)[0-9a-f]{6}(?= )")


def build(texts: Iterable[str], vocab: int) -> Tokenizer:
    """Train the tokenizer of `texts` with exactly `vocab` tokens, including special ones, if the texts have enough words."""
    numbers, number_merges = _numbers()
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = _pre_tokenizer()
    size = vocab - len(SPECIAL) - len(MARKS) - len(numbers)
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), min_frequency=8, show_progress=False
    )
    trained.train_from_iterator((re.sub(r"\d+", "", _FENCE.sub("", t)) for t in texts), trainer)
    state = json.loads(trained.to_str())["model"]
    pieces = sorted(state["vocab"], key=state["vocab"].__getitem__)
    merges: list[tuple[str, str]] = number_merges + [(left, right) for left, right in state["merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(pieces + numbers)}, merges))
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens(list(MARKS))
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template in the format of transformers and vLLM."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "additional_special_tokens": ["<|im_start|>"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text((Path(__file__).parent / "chat_template.jinja").read_text())


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of an existing token."""
    return int(tokenizer.encode(token, add_special_tokens=False).ids[0])


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _numbers() -> tuple[list[str], list[tuple[str, str]]]:
    """Return the tokens "10" to "200" and their merges. "110" needs a second merge because "10" merges before "11"."""
    numbers = [str(n) for n in range(10, 201)]
    merges = [(n[:-1], n[-1]) for n in numbers]
    return numbers, [*merges, ("1", "10")]
