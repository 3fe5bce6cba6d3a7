"""The wording of the corpus: the words and prompts of training, those of other authors, and words that are made up.

Made-up words teach a model to copy any word from its task. Held-out words and prompts are by authors who wrote nothing of this.
"""

import builtins
import keyword
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from clawctl.extensions.worlds.wording import Wording, read_wording

MADE_UP, OTHER_PROMPTS = 0.7, 0.6  # shares of the tasks
_LISTED = 0.4  # share of the words that an author wrote, where words are made up
_MANY = 24
_ENDINGS = {
    "logs": ("txt", "log", "md", "out"), "answers": ("txt", "txt", "md", "out"), "tables": ("csv",),
    "settings": ("ini", "conf", "cfg", "toml", "env"),
}  # fmt: skip
_CAPITALS = ("first_names", "last_names", "cities", "buttons", "sections")


def draw_wording(rng: Random) -> Wording:
    """Draw the wording of one document."""
    prompts = _read("prompts") if rng.random() < OTHER_PROMPTS else read_wording().prompts
    if rng.random() < MADE_UP:
        return Wording(_MadeUp(rng), prompts, is_new=True)
    return Wording(read_wording().words, prompts)


def made_up_word(rng: Random) -> str:
    """A word of three to ten letters that looks like English."""
    following, word = _following(), ""
    while not 3 <= len(word) <= 10 or keyword.iskeyword(word) or hasattr(builtins, word):
        word, last = "", "^^"
        while (letter := rng.choice(following[last])) != "$":
            word, last = word + letter, last[1] + letter
    return word


class _MadeUp(dict[str, list[str]]):
    """Lists of words that are made when they are asked for."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng

    def __missing__(self, kind: str) -> list[str]:
        words: dict[str, None] = {}
        while len(words) < _MANY:
            is_listed = self._rng.random() < _LISTED and kind in _read("words")
            words[self._rng.choice(_read("words")[kind]) if is_listed else self._made_up(kind)] = None
        self[kind] = [*words]
        return self[kind]

    def _made_up(self, kind: str) -> str:
        rng, word = self._rng, made_up_word(self._rng)
        match kind:
            case "keys":
                return word[:5].upper()
            case "extensions":
                return word[: rng.randint(2, 4)]
            case "functions":
                return f"{word}_{made_up_word(rng)}" if rng.random() < 0.4 else word
            case "notes":
                return f"{' '.join(made_up_word(rng) for _ in range(4))}.".capitalize()
        if kind in _ENDINGS:
            return f"{word}.{rng.choice(_ENDINGS[kind])}"
        if kind in ("buttons", "sections", "links") and rng.random() < 0.4:
            word = f"{word} {made_up_word(rng)}"
        return word.title() if kind in _CAPITALS else word


@cache
def _following() -> dict[str, str]:
    """The letters that follow two letters in the words of the authors. `^` begins a word and `$` ends it."""
    texts = [text for some in (*_read("prompts").values(), *_read("words").values()) for text in some]
    following: defaultdict[str, str] = defaultdict(str)
    for word in sorted({word.lower() for text in texts for word in re.findall(r"[A-Za-z]{3,}", text)}):
        padded = f"^^{word}$"
        for index in range(2, len(padded)):
            following[padded[index - 2 : index]] += padded[index]
    return following


@cache
def _read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text("utf-8")))
