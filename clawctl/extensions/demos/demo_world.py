"""Checks whether a conversation suits the demo model: homework with small numbers, in a vocabulary of a few hundred words."""

import logging
import re
from functools import cache, lru_cache

from tokenizers import Tokenizer

from clawctl.extensions.demos.models import demo
from clawctl.judge.protocol import Evidence

log = logging.getLogger(__name__)

_WORD = re.compile(r"[^\W\d_]+")
_LOOKED_AT = 2000  # the number of characters of one message that are checked
_LONGEST = 40  # the longest word, in letters
_STRANGE = 0.1  # the allowed share of words that the demo's tokenizer splits; the demo's students and teachers use none


class DemoWorld:
    """What the demo model can judge: a `SmallJudge`."""

    chars = 600  # its model card states conversations of up to 512 training tokens

    def __init__(self) -> None:
        self._warned = False

    def check(self, turn: Evidence) -> None:
        """Check the users' text in a turn that the demo model is about to judge."""
        if not self._warned and not self.covers(turn):
            self._warned = True
            log.warning(
                "the judge is the demo model, which knows only the demo's homework; its verdicts on other topics mean nothing; "
                "set another judge with judge.endpoint (and judge.model), judge.prm or judge.custom_rm"
            )

    def is_known(self, word: str) -> bool:
        return is_known_word(word)

    def covers(self, turn: Evidence) -> bool:
        """Whether the users in the conversation write about homework, in words that the demo model was trained on."""
        contents = [
            message.get("content") for message in (*turn.messages, *(turn.next_state or [])) if message.get("role") != "assistant"
        ]
        text = " ".join(content[:_LOOKED_AT] for content in contents if isinstance(content, str))
        words = _WORD.findall(text)
        unknown = sum(not is_known_word(word) for word in words)
        return any(character.isdigit() for character in text) and unknown <= _STRANGE * len(words)


@lru_cache(maxsize=1 << 14)
def is_known_word(word: str) -> bool:
    """Whether the demo model was trained on a word. Its tokenizer does not split such words."""
    ways = (word, f" {word}")
    return len(word) <= _LONGEST and any(len(_tokenizer().encode(way, add_special_tokens=False).ids) == 1 for way in ways)


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(demo() / "tokenizer.json"))
