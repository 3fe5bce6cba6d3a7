# ruff: noqa: E501 - expressions and templates stay lines
"""Names that announce a secret, and checks of the values under them."""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from clawctl.extensions.secrets.text import Anchors, Text, beyond_ascii, positions_of, regex
from clawctl.extensions.secrets.values import (
    is_bare_password,
    is_passphrase,
    is_password,
    is_phrase,
    is_stand_in,
    is_strong_key,
    is_words,
)
from clawctl.extensions.secrets.vocabulary import (
    ANCHORS,
    ANCHORS_BEYOND,
    ENGLISH,
    KEYS_LONGEST_FIRST,
    LISTS,
    LONGEST_FIRST,
    NO_VALUES,
    SHORT,
    words_of,
)

_NEEDED = {word: frozenset(letter for letter in word if letter > "\x7f") for word in ANCHORS_BEYOND}
_SUFFIX = r"(?:[_.-]?(?:\d{1,3}|prod|dev|test|stage|live|old|new|value|hash|b64|base64|base|data|string|text|plain|field|file_content|access[_-]?key|id_key|key|primary|secondary))?"
_P, _K = "|".join(map(re.escape, LONGEST_FIRST)), "|".join(map(re.escape, KEYS_LONGEST_FIRST))
_NAME = regex(rf"(?:(?P<password>{_P})|(?P<key>{_K}))(?P<suffix>{_SUFFIX}{_SUFFIX})(?P<ending>)$", re.IGNORECASE)
# Inflected words of other languages: `паролата`, `parolanız`, `salasanani`.
_FOREIGN = [word for word in LONGEST_FIRST if word not in ENGLISH and max(word) < "\u0e00"]
_LATIN, _OTHER = ("|".join(word for word in _FOREIGN if (max(word) < "\u0250") == latin) for latin in (True, False))
_INFLECTED = regex(
    rf"(?<![^\W\d_])(?P<password>(?:{_LATIN})(?=[^\W\d_]{{1,5}}$)|(?:{_OTHER})(?=[^\W\d_A-Za-z]{{1,5}}$))(?P<suffix>)(?P<key>(?!))?(?P<ending>[^\W\d_]{{1,5}})$",
    re.IGNORECASE,
)
_BORDER = regex(
    r"(?:^|[^a-z0-9]|db|my|root|user|admin|smtp|mysql|ftp|require|master|store|key|ssh|wifi|wlan|mail|imap|sudo|vpn|sql|bind|ldap|proxy|rpc|priv|vnc|rdp)$"
)
_BEFORE_KEY = regex(rf"(?:{'|'.join(words_of('words before a key'))})[_ .-]?$", re.IGNORECASE)
NOT_KEY = regex(
    rf"(?:^|[^A-Za-z]|(?-i:(?<=[a-z])(?=[A-Z])))(?:{'|'.join(words_of('words before no key'))})s?[_ .-]?$", re.IGNORECASE
)


def is_secret_under(name: str, value: str, quoted: bool) -> bool:
    """Whether `value` is a secret, given its name. The name is strong evidence, but the value must also look like a secret.

    A password may be anything except a placeholder or code; unquoted, in prose, it must not look like a word. A value named key,
    secret or token must look random.
    """
    kind = kind_of_name(name)
    if kind is None:
        return False
    value = value.strip()
    if kind == "password":
        return is_password(value) if quoted else is_bare_password(value)
    if is_stand_in(value) or (name.endswith(("_PAT", "_pat")) and not _OF_PAT.fullmatch(value)):
        return False
    phrased = name.lower().endswith("secret") and (quoted or name.isupper()) and (is_phrase(value) or _is_long_phrase(value))
    return phrased or is_strong_key(value)


_OF_PAT = regex(r"[\w+/=.-]{20,400}")  # patterns are named like this as well


def _is_long_phrase(value: str) -> bool:
    """Whether the value is a phrase of four or more words, none of them a software term:
    `SESSION_SECRET=copper-kettle-garden-moon`.
    """
    return is_passphrase(value) and is_words(value) and len(re.findall("[-_.]", value)) >= 3


@lru_cache(maxsize=4096)
def kind_of_name(name: str) -> Literal["password", "key", "part"] | None:
    """Return the kind of value that a name announces. `part`: the secret word is inside the name.

    `compass` does not name a password, and `keyboard_key` does not name a key.
    """
    name = name[-64:]
    if name.endswith(("_PAT", "_pat")):
        return "key"
    if name.lower().endswith(("api_hash", "apihash", "secret_id", "secretid", "secret-id")):
        return "key"
    match = _NAME.search(name) or _INFLECTED.search(name)
    if match is None:
        return "part" if _speaks_of_secret(name) else None
    word, before = (match["password"] or match["key"]).lower(), name[: match.start()]
    if match["suffix"].lower().lstrip("_.-") in ("hash", "string") and match["key"] is not None:
        return None
    if match["password"] is not None:
        free = (
            word not in SHORT
            or not before
            or (word == "pass" and match[0][0].isupper())
            or (word in _JOINED_BY_CASE and match[0][0].isupper() and before[-1].islower())
            or _BORDER.search(before.lower()) is not None
        )
        return "password" if free and (not match["ending"] or (len(word) >= 4 and not match["ending"].isupper())) else None
    if word in ("key", "keys"):
        strong = _BEFORE_KEY.search(before) is not None
        vendor = before.isupper() and before.endswith("_") and len(before) > 2
        return "key" if (strong or vendor) and not NOT_KEY.search(before) else None
    if word == "auth":
        if before.lower().endswith(("master", "smtp", "basic")):
            return "password"
        return "key" if not before or before[-1] in "_-. " else None
    return None if NOT_KEY.search(before) else "key"


_JOINED_BY_CASE = frozenset(LISTS["joined by case"].split())  # `strPwd`


_PARTS = regex(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_SPEAKS = frozenset(
    ["password", "passwd", "pwd", "passphrase", "secret", "token", "apikey", "accesskey", "secretkey", "privatekey"]
)


def _speaks_of_secret(name: str) -> bool:
    """Whether a secret word is inside the name and the last word names nothing else: `API_KEY_OPENAI`, `tokenForDeploy`."""
    parts = [part.lower() for part in _PARTS.findall(name)]
    if len(parts) < 2 or (name[0].isupper() and not name.isupper()) or parts[-1] in NO_VALUES or NOT_KEY.search(parts[0] + "_"):
        return False
    return any(part in _SPEAKS for part in parts) or any(first + second in _SPEAKS for first, second in pairwise(parts))


NAMES_AT = Anchors(*ANCHORS)


def name_positions(piece: Text) -> list[int]:
    """Return the positions of words that may name a secret, in order."""
    if piece.names is None:
        positions = set(NAMES_AT.positions(piece))
        if piece.beyond:
            letters = set(beyond_ascii(piece.lower))
            for word in [word for word, needed in _NEEDED.items() if needed <= letters]:
                positions.update(positions_of(piece.lower, word))
        piece.names = sorted(positions)
    return piece.names


@dataclass(frozen=True, slots=True)
class Named:
    """A name that determines the kind of a value beside it."""

    begin: int
    end: int
    name: str
    kind: Literal["password", "key", "part"]


def named_at(piece: Text, at: int) -> Named | None:
    """Return the name around the word at `at` if it names a secret, else None."""
    if at not in piece.named:
        piece.named[at] = _named_at(piece.text, piece.ascii, at)
    named: Named | None = piece.named[at]
    return named


def _named_at(text: str, lower: str, at: int) -> Named | None:
    if lower.endswith("[redacted:", 0, at):
        return None
    beyond = not lower[at : at + 24].isascii() or "?" in lower[at : at + 24]  # letters of other scripts
    exact = _EXACT.match(text, at) if beyond else None
    match = _WORDISH.match(text, at) or exact
    if match is None:
        return None
    begin, end = at, match.end()
    while begin > 0 and at - begin < 32 and (text[begin - 1].isalnum() or text[begin - 1] in "_.-"):
        begin -= 1
    name = text[begin:end].rstrip(".-_")
    tries = [(begin, name)]
    if "." in name:
        tries.append((begin, name[: name.rfind(".")]))
    if exact:
        tries.append((begin, text[begin : exact.end()]))
    if name.lower() in ("key", "keys") and (earlier := _EARLIER.search(text, max(0, begin - 16), begin)):
        tries.append((earlier.start(), text[earlier.start() : end]))
    for begin, name in tries:
        kind = kind_of_name(name)
        if kind is not None:
            return Named(begin, begin + len(name), name, kind)
    phrase = _PHRASE.match(text, at) if beyond or lower.startswith(_PHRASE_STARTS, at) else None
    return Named(begin, phrase.end(), phrase[0], "password") if phrase else None


_WORDISH = regex(r"[\w-]{2,48}(?:\.\w{1,16})?")
_EXACT = regex(
    "|".join(map(re.escape, [word for word in (*LONGEST_FIRST, *KEYS_LONGEST_FIRST) if not word.isascii()])), re.IGNORECASE
)
_EARLIER = regex(r"(?<![\w-])[A-Za-z]{1,14}[ ]$")
_PHRASE_STARTS = tuple(word[:4] for word in LONGEST_FIRST if " " in word and word[:4].isascii())
_PHRASE = regex(rf"(?:{'|'.join(word for word in LONGEST_FIRST if ' ' in word)})(?&of whom)?(?!\w)", re.IGNORECASE)
