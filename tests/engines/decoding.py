"""Collects the tokens that a decoder samples."""

import asyncio
from typing import Any

from clawctl.engines.embedded.decoder import Decoder
from clawctl.engines.embedded.frames import Sampling, Token, TokenPiece
from clawctl.engines.embedded.sight import SeenPrompt


async def sample(
    decoder: Decoder,
    ids: list[int],
    longest: int = 24,
    seen: SeenPrompt | None = None,
    begun: asyncio.Event | None = None,
    **sampling: Any,
) -> list[Token]:
    """`begun` is set when the first token has come."""
    chosen = Sampling(**{"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": longest, **sampling})
    pieces: asyncio.Queue[TokenPiece] = asyncio.Queue()
    decoder.generate(ids, chosen, pieces.put_nowait, seen=seen)
    tokens: list[Token] = []
    while True:
        piece = await pieces.get()
        tokens += piece.tokens
        if begun is not None:
            begun.set()
        if piece.ended:
            assert piece.error is None
            return tokens
