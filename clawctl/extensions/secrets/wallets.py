# ruff: noqa: E501 - expressions stay lines
"""Finds the secrets of cryptocurrency wallets: seed phrases, and private keys, which look like any hash."""

import re
from collections.abc import Iterator

from clawctl.extensions.secrets.forms import alternatives_of
from clawctl.extensions.secrets.text import BLOBS, Anchors, Span, Text, phrases, regex, tried_at
from clawctl.extensions.secrets.values import is_random, mixed

_WALLETS = Anchors(*phrases("wallets"))
_ELEVEN = regex(
    r"[:\n\"'`(=>«][ ]{0,2}(?P<value>[a-z]{3,8}(?:[ ,]{1,2}[a-z]{3,8}){11,23}+|1[.):][ ]{0,2}[a-z]{3,8}(?:[\s,]{1,4}\d{1,2}[.):][ ]{0,2}[a-z]{3,8}){11,23}+)(?=[\"'`.)]|[ \t]*(?:\n|$))"
)
_NO_WORDS_OF_WALLETS = frozenset(
    ["the", "and", "for", "with", "are", "was", "from", "not", "but", "has", "were", "def", "var", "int"]
)
_SEED = regex(
    r"(?i)(?:phrase|mnemonic|seed|words)s?(?:[ ][a-z]{1,12}){0,5}?(?:[ ]{0,2}(?:(?&is)|are|:|=)){0,2}[\s\"'`:]{1,4}(?P<value>(?:[a-z]{3,8}[ ,]{1,2}){11,23}[a-z]{3,8})"
)
_B58 = "[1-9A-HJ-NP-Za-km-z]"
_WALLET = regex(rf"(?<![A-Za-z0-9+/=_-])(?:5[HJK]{_B58}{{49}}|[KLc]{_B58}{{51}})(?![A-Za-z0-9+/=_-])")
_HEX = regex(r"(?<![A-Za-z0-9])(?:0x)?[0-9a-fA-F]{64}(?![A-Za-z0-9])")
_NAMED = Anchors("key", "account", "wallet", "signer", "pair", "transaction", "seed", "deployer", "funder", "private")
_KEYS = regex(rf"(?ix)(?:{alternatives_of('places of wallet keys')})$")


@tried_at(_WALLETS, BLOBS)
def in_wallets(piece: Text) -> Iterator[Span]:
    """Find seed phrases (`phrase: twelve words`), WIF keys, `accounts: ["0x…"]`, `new Wallet("…")`."""
    text = piece.text
    done = -1
    for at in _WALLETS.positions(piece):
        if match := _SEED.match(text, at):
            yield Span(*match.span("value"), "password")
        elif at >= done:
            done = at + 100
            if (match := _ELEVEN.search(text, at, at + 400)) and match.start() < at + 160:
                words = re.findall("[a-z]+", match["value"])
                if len(words) % 3 == 0 and len(set(words)) > 9 and _NO_WORDS_OF_WALLETS.isdisjoint(words):
                    yield Span(*match.span("value"), "password")
    last, unnamed = -1, not piece.present & _NAMED.bit
    for start, end in piece.blobs:
        if end - start < 51:
            continue
        for match in _WALLET.finditer(text, start, end):
            if is_random(match[0]):
                yield Span(*match.span(), "password")
        for match in () if unnamed else _HEX.finditer(text, start, end):
            listed = last >= 0 and _NEXT_OF_LIST.fullmatch(text, last, match.start()) is not None
            if mixed(match[0][2:]) and (listed or _KEYS.search(text, max(0, match.start() - 130), match.start())):
                last = match.end()
                yield Span(*match.span(), "password")


_NEXT_OF_LIST = regex(r"""["'`]?,?\s{0,12}(?:\(?\d{1,2}[).:][ ]{1,3})?["'`]?""")
