# ruff: noqa: E501 - expressions and templates stay lines
"""Finds keys by format: formats that issuers document, and the general form of keys from any issuer."""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from clawctl.extensions.secrets.forms import alternatives_of
from clawctl.extensions.secrets.text import BLOBS, Anchors, Span, Text, regex, tried_at
from clawctl.extensions.secrets.values import EXAMPLE, RUN, UUID_ALONE, is_dense, is_drawn, is_random, is_strong_key, mixed, turns
from clawctl.extensions.secrets.vocabulary import IDS, KEY_PARTS, NAMES_OF_IDS, PROVIDERS, words_of

_FORMATS = alternatives_of("keys")
FORMAT = regex(rf"(?<![A-Za-z0-9])(?=[A-Za-z0-9_])(?:{_FORMATS})")
_SOLID = regex(r"[A-Za-z0-9]{6}")
_WHOLLY = regex(
    r"(?:[a-f0-9]{32}-[a-f0-9]{8}-[a-f0-9]{8}|[a-f0-9]{32}-us\d|key-|SK[a-f0-9]|AIza|hf_|api-|sdk-|mob-|live_|test_|4b1d|API-|oy2)"
)
_LONGER = regex(r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})*={0,2}")

# A continuation that a mail client or a terminal has wrapped.
_WRAPPED = regex(r"\r?\n[ \t>|]{0,8}(?P<run>[A-Za-z0-9_-]{16,512})={0,2}(?=[ \t]*(?:\r?\n|$))")


@tried_at(BLOBS, to_value_end=False)
def keys(piece: Text) -> Iterator[Span]:
    text = piece.text
    for start, end in piece.blobs:
        if not _SOLID.search(text, start, end) or (end - start <= _LONGEST_KNOWN and not _may_hold_key(text[start:end])):
            continue
        for match in ISSUED.finditer(text, start, end):
            if is_issued(match):
                yield Span(*match.span(), "api_key")
        for match in FORMAT.finditer(text, start, end):
            if is_key(match):
                longer = _LONGER.match(text, match.end())  # a format may have grown since its rule was written
                end_of_key = longer.end() if longer else match.end()
                wrapped = _WRAPPED.match(text, end_of_key)
                if (
                    _ACCESS_ID.match(match[0])
                    and (other := _SECRET_OF_ID.search(text, end_of_key, end_of_key + 120))
                    and is_random(other[0])
                ):
                    yield Span(*other.span(), "api_key")
                yield Span(match.start(), wrapped.end() if wrapped and is_random(wrapped["run"]) else end_of_key, "api_key")


_LONGEST_KNOWN = 96  # characters


@lru_cache(maxsize=4096)
def _may_hold_key(blob: str) -> bool:
    """Whether a run holds a key, except for what is beside it. Runs such as paths recur."""
    return FORMAT.search(blob) is not None or ISSUED.search(blob) is not None


_ACCESS_ID = regex("AKIA|ASIA")
_SECRET_OF_ID = regex(r"(?<![A-Za-z0-9+/=_.-])[A-Za-z0-9+/]{40}(?![A-Za-z0-9+/=_-])")  # of Amazon


# Unique prefixes: such a key is recognised even directly after a letter, or if its line was broken soon after the prefix.
_PREFIXES = words_of("prefixes of keys")
_MARKED = Anchors(*map(str.lower, _PREFIXES))
_GLUED = regex(rf"(?:{_FORMATS})")
_BROKEN = regex(
    rf"(?:{'|'.join(map(re.escape, _PREFIXES))})(?P<first>[A-Za-z0-9_-]{{0,80}})\\?\r?\n[ \t>|]{{0,16}}(?P<rest>[A-Za-z0-9_-]{{6,200}})(?![\w:(=])"
)


@tried_at(_MARKED, to_value_end=False)
def marked_keys(piece: Text) -> Iterator[Span]:
    """Find keys with a unique prefix that follow a letter directly (`\\x1b[0mghp_…` without its escape) or are broken into two
    lines.
    """
    text = piece.text
    for at in _MARKED.positions(piece):
        before = text[at - 1 : at].isalnum()
        if before and (glued := _GLUED.match(text, at)) and is_key(glued):
            yield Span(*glued.span(), "api_key")
        elif not before and (broken := _BROKEN.match(text, at)) and _is_one(broken):
            yield Span(*broken.span(), "api_key")


def _is_one(broken: re.Match[str]) -> bool:
    """Whether both lines form one key: the second mixes letters and digits, and the whole looks random."""
    joined, rest = broken["first"] + broken["rest"], broken["rest"]
    return len(joined) >= 16 and mixed(rest) and is_drawn(joined) and turns(rest) * 6 >= len(rest)


def is_key(match: re.Match[str]) -> bool:
    key = match[0]
    if key[0] != "_" and EXAMPLE.search(key):
        return False
    if _ID_BEFORE.search(match.string, max(0, match.start() - 40), match.start()):
        return False
    if _WHOLLY.match(key) and match.string[match.end() : match.end() + 1].isalnum():
        return False
    return (
        "/" in key[:60]
        or key[0] == "_"
        or (is_drawn(key) and (key[:2] != "00" or is_random(key.replace("-", "").replace("_", ""))))
    )


# A key of any issuer: short name parts, then a body that does not look like a name. Ids have the same form, so their names are
# listed.
ISSUED = regex(
    r"(?<![A-Za-z0-9_-])(?:(?P<issuer>(?:[a-z][a-z0-9]{1,11}[_-]){1,3}+)(?P<body>[A-Za-z0-9][A-Za-z0-9_-]{19,512})|(?P<upper>[A-Z][A-Z0-9]{1,7}[_-])(?P<run>[A-Za-z0-9]{24,128}))={0,2}(?![A-Za-z0-9])"
)
# An entity tag, and the public parts of a JSON Web Key.
_ID_BEFORE = regex(
    r"""(?i)(?:(?<![A-Za-z0-9])W/\\?["']|e-?tag\\?["']?[ ]?[:=][ ]?\\?["']{0,2}|public_?key["']?[ ]?[:=][ ]?["']?|sha\d{3}[=:-]|site-verification=|["'](?:kid|x5t|x5t#S256|jti|n|x|y)\\?["']\s{0,2}:\s{0,2}\\?["'])$"""
)
_KEYED = ("key", "keys", "token", "secret", "pat")
_MODES = frozenset(("live", "test", "prod", "dev", "sandbox"))


def is_issued(match: re.Match[str]) -> bool:
    if _ID_BEFORE.search(match.string, max(0, match.start() - 40), match.start()):
        return False
    parts, body = re.split("[_-]", (match["issuer"] or match["upper"])[:-1].lower()), match["body"] or match["run"]
    if parts[0] in IDS or (len(parts) > 1 and not _MODES.issuperset(parts[1:]) and not IDS.isdisjoint(parts)):
        return False
    if EXAMPLE.search(match[0][:200]) or parts[0] == "pk":  # `pk` marks a public key
        return False
    keyed = not KEY_PARTS.isdisjoint(parts) or any(part.endswith(_KEYED) for part in parts)
    if UUID_ALONE.fullmatch(body):
        return keyed
    run = max(RUN.findall(body), key=len, default="")
    if run != body and not keyed and _DIGEST.fullmatch(run):  # a name with a digest: the key of a cache or an artefact
        return False
    if is_random(run) or _is_restless(run):
        return len(body) >= 20 and len(run) >= 16
    return (
        len(run) >= 24
        and run.islower()
        and is_dense(run)
        and (keyed or (len(run) >= 32 and match[0][sum(map(len, parts)) + len(parts) - 1] == "_"))
    )


def _is_restless(run: str) -> bool:
    """Whether the run has only short runs of letters, although some of them may be words."""
    digits = sum(map(str.isdigit, run))
    return len(run) >= 20 and digits >= 3 and turns(run[:128]) * 4 >= len(run[:128]) and _LONG_WORD.search(run) is None


_LONG_WORD = regex(r"[a-z]{6}")
_DIGEST = regex(r"(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})")


# The name of a provider and its value: keys of most providers have no format of their own.
_OPAQUE = regex(r"(?<![A-Za-z0-9+/_.~-])[A-Za-z0-9][A-Za-z0-9+/_.~-]{14,200}={0,2}")
_SIGN = regex("[=:,>|]")
_SET_TO = regex(r"""(?<![A-Za-z])([A-Za-z][\w.-]{1,48}+)["'`\])]{0,2}[ \t]{0,4}(?::=|=>|->|[=:,>]|\|\|)[ \t"'`=(]{0,5}$""")
_PART = regex(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


@tried_at(BLOBS, to_value_end=False)
def of_providers(piece: Text) -> Iterator[Span]:
    """Find an opaque value under the name of a key issuer: `airtable = "…"`, `MY_DATADOG: …`."""
    for start, end in piece.blobs:
        for match in _OPAQUE.finditer(piece.text, start, end):
            at = match.start()
            if RUN.search(match[0]) is None:
                continue
            named = _SIGN.search(piece.text, max(0, at - 7), at) and _SET_TO.search(piece.text, max(0, at - 64), at)
            if named and is_provider(named[1]) and is_opaque_under(match[0]):
                yield Span(*match.span(), "api_key")


def is_opaque_under(value: str) -> bool:
    """Whether a value under a provider's name is a key: letters and digits in random order, a UUID, or hex."""
    if UUID_ALONE.fullmatch(value):
        return True
    bare = value.rstrip("=")
    return len(bare) >= 15 and is_strong_key(value) and max(map(len, RUN.findall(value)), default=0) >= 12


@lru_cache(maxsize=4096)
def is_provider(name: str) -> bool:
    parts = [part.lower() for part in _PART.findall(name[-48:])]
    if not parts or (parts[-1] in NAMES_OF_IDS and parts[-2:] != ["api", "hash"]):
        return False
    joined = [*parts, *(first + second for first, second in pairwise(parts))]
    return not PROVIDERS.isdisjoint(joined)
