"""`clawctl play file.py:name`: plays episodes with the user's own code and publishes their turns.

An agent that uses this run's server does not need this: its calls are captured. This command is for code that samples on its own,
with `--generate file.py:name`. Each episode is one session and one shard, published whole when the episode ends.
"""

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, cast

from clawctl.collect.redacted import redacted
from clawctl.config import Recipe
from clawctl.cut_calls import CUT_CALL, Decode, has_cut_call
from clawctl.errors import ClawError
from clawctl.plugins import GENERATE, ROLLOUT, CustomGenerate, CustomRollout, Generation, load_function
from clawctl.privacy.redaction import redactor_of
from clawctl.run.directory import RunDir
from clawctl.run.model_files import IdReader, origin_of
from clawctl.run.rows import Message, Turn
from clawctl.run.shards import write_turns

log = logging.getLogger(__name__)

_NEEDED = ("generation", "messages", "next_state")
_OPTIONAL = ("tools", "outcome_reward", "task_id", "group_id")
_FIX = f"a turn is a mapping with {', '.join(_NEEDED)} and optionally {', '.join(_OPTIONAL)}"


def collect_custom(run: RunDir, recipe: Recipe, rollout: str, generate: str | None, episodes: int) -> int:
    """Play `episodes` episodes and return the number of published turns. Raises ClawError, before the first episode if a function
    does not fit.
    """
    play = cast(CustomRollout, load_function(rollout, "play", ROLLOUT))
    if generate is None:
        problem = "clawctl play needs --generate, which provides exact token ids"
        raise ClawError(problem, "add it, or connect the agent to `clawctl serve --intercept`, which captures its calls", 2)
    sample = _checked(cast(CustomGenerate, load_function(generate, "--generate", GENERATE)), generate)
    origin = origin_of(recipe.model.path, recipe.model_path)
    decode, published = IdReader(recipe.model_path), 0
    redactor = redactor_of(recipe.privacy, decode)
    for episode in range(episodes):
        played = _played(play, partial(sample, config=recipe.collect), episode, recipe, decode)
        turns = [redacted(turn, redactor) for turn in played]
        if turns:
            write_turns(run.turn_shard(f"{time.time_ns():020d}-{secrets.token_hex(3)}-custom"), turns, origin)
        published += len(turns)
        log.info("episode %d: %d turns, %d trainable", episode, len(turns), sum(turn.trainable for turn in turns))
    return published


def _checked(generate: CustomGenerate, spec: str) -> Callable[..., Generation]:
    def sample(messages: list[Message], tools: list[dict[str, Any]] | None = None, *, config: Any) -> Generation:
        generation = generate(messages, tools, config)
        if not isinstance(generation, Generation):
            names = ", ".join(field.name for field in fields(Generation))
            raise ClawError(f"--generate {spec} returned {type(generation).__name__}", f"return plugins.Generation({names})", 2)
        return generation

    return sample


def _played(play: CustomRollout, generate: Callable[..., Generation], episode: int, recipe: Recipe, decode: Decode) -> list[Turn]:
    session, turns = f"custom-{secrets.token_hex(8)}", list[Turn]()
    try:
        for row in play(episode, generate, recipe.collect):
            turns.append(_turn(row, session, turns[-1] if turns else None, f"episode {episode}, turn {len(turns)}", decode))
    except ClawError:
        raise
    except Exception as error:  # errors in user code are logged with their traceback
        problem = f"clawctl play failed in episode {episode}: {error!r}"
        log.error("%s", problem, exc_info=error)
        raise ClawError(problem, "fix the code; earlier episodes are kept") from error
    return turns


def _turn(row: Any, session: str, parent: Turn | None, where: str, decode: Decode) -> Turn:
    if not isinstance(row, Mapping) or not row.keys() >= set(_NEEDED) or not isinstance(row["generation"], Generation):
        received = sorted(row) if isinstance(row, Mapping) else type(row).__name__
        raise ClawError(f"clawctl play, {where}: got {received}", _FIX)
    if unknown := row.keys() - {*_NEEDED, *_OPTIONAL}:
        raise ClawError(f"clawctl play, {where}: unknown {', '.join(sorted(unknown))}", _FIX)
    sampled: Generation = row["generation"]
    optional: dict[str, Any] = {name: row.get(name) for name in _OPTIONAL}
    reason = _untrainable_reason(sampled, row["next_state"], optional["outcome_reward"])
    if has_cut_call(row.get("tools"), sampled.message, sampled.finish_reason, sampled.completion_ids, decode):
        reason = CUT_CALL
    try:
        return Turn(
            turn_id=secrets.token_hex(12), session_id=session, parent_turn_id=parent.turn_id if parent else None,
            turn_index=parent.turn_index + 1 if parent else 0, kind="main", source="custom", user="custom", created_at=time.time(),
            messages=list(row["messages"]), response=sampled.message, next_state=row["next_state"], prompt_ids=sampled.prompt_ids,
            completion_ids=sampled.completion_ids, logprobs=sampled.logprobs, policy_version=sampled.policy_version,
            policy_version_end=sampled.policy_version, temperature=sampled.temperature, top_p=1.0, top_k=0,
            finish_reason=sampled.finish_reason, feedback=None, trainable=reason is None, untrainable_reason=reason, **optional,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise ClawError(f"clawctl play, {where}: {error}", _FIX) from error


def _untrainable_reason(sampled: Generation, next_state: list[Message] | None, outcome: float | None) -> str | None:
    """Return the reason why the turn is not trained, or None."""
    if not (sampled.prompt_ids and sampled.completion_ids and sampled.logprobs):
        return "no token ids"
    if sampled.policy_version is None:
        return "no policy version"
    return "no next state" if next_state is None and outcome is None else None
