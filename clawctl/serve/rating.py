"""`POST /v1/feedback` and the `X-Feedback` header: what a client thinks of an answer, kept beside the captures."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clawctl.config import Recipe
from clawctl.feedback import BadRating, FeedbackFile, rating_in_header, read_rating
from clawctl.privacy.consent import may_capture
from clawctl.privacy.redaction import Redactor
from clawctl.serve.dialects import Refusal

_log = logging.getLogger("clawctl.serve")


class Rating:
    """Writes ratings. With `folder` None conversations are not captured, and there is nothing to rate. `counts` holds how many were
    kept and lost."""

    def __init__(self, folder: Path | None, recipe: Recipe, counts: Counter[tuple[str, ...]]) -> None:
        self._file = None if folder is None else FeedbackFile(folder)
        self._recipe, self._redactor, self._counts = recipe, Redactor(recipe.privacy.redact), counts
        self._writing = asyncio.Lock()  # one line after the other

    async def keep(self, body: Any, key: str) -> dict[str, Any]:
        """Write one rating of `key`; returns when the kernel has it. Raises Refusal, also where it is lost: who rates is told."""
        try:
            feedback = read_rating(body, key, time.time())
        except BadRating as bad:
            raise Refusal(400, str(bad), bad.field) from bad
        if self._file is None:
            raise Refusal(409, "nothing is captured here, so nothing can be rated: serve with --intercept", code="not_captured")
        if not may_capture(self._recipe.privacy, key, self._recipe.model_name):
            raise Refusal(409, "this key's conversations are not captured, so they cannot be rated", code="not_captured")
        try:
            async with self._writing:
                if feedback.comment:
                    feedback = replace(feedback, comment=await asyncio.to_thread(self._redactor.text, feedback.comment))
                await asyncio.to_thread(self._file.append, feedback)
        except OSError as error:
            self._counts["lost",] += 1
            _log.error("a rating was not kept: %s", error)
            raise Refusal(503, "the rating could not be kept; send it again later", code="not_kept") from error
        self._counts["kept",] += 1
        return {"object": "feedback", "id": feedback.feedback_id, "turn_id": feedback.turn_id, "rating": feedback.rating}

    def hint(self, headers: Mapping[str, str]) -> dict[str, float]:
        """Of an `X-Feedback` header: a rating of the turn that the request answers. One that is no rating is counted as lost: the
        request is answered all the same."""
        try:
            rating = rating_in_header(headers.get("x-feedback"))
        except BadRating:
            self._counts["lost",] += 1
            return {}
        return {} if rating is None else {"feedback": rating}
