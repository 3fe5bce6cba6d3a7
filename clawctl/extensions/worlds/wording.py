"""The words and prompts of drawn tasks: those of training, and those of other authors that only held-out tasks have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal

import yaml

from clawctl.environments import Split

HeldOut = Literal["same_prompts", "new_words", "paraphrased"]
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Wording:
    """What drawn tasks are made of."""

    words: Mapping[str, Sequence[str]]  # by kind: "nouns"
    prompts: Mapping[str, Sequence[str]]  # by family of tasks: "terminal.find"
    is_new: bool = False  # names in folders, renamed functions and longer sums, none of which occurs in training

    def prompt(self, family: str, draw: Random, **values: str) -> str:
        return draw.choice(self.prompts[family]).format(**values)


@cache
def read_wording(held_out: HeldOut = "same_prompts") -> Wording:
    """The wording of training, with new words or with the prompts of other authors in its place."""
    prompts = _read("held_out_prompts" if held_out == "paraphrased" else "prompts")
    return Wording(_read("held_out_words" if held_out == "new_words" else "words"), prompts, held_out == "new_words")


def wording_of(split: Split, held_out: HeldOut) -> Wording:
    """The wording of a split: that of training has no held-out words or prompts."""
    return read_wording(held_out if split == "eval" else "same_prompts")


def _read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((_FOLDER / f"{name}.yaml").read_text("utf-8")))
