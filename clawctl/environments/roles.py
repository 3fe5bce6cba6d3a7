"""Models besides the policy that an environment may use: a simulated user, and a judge with a rubric. Both ask the run's judge.

class Shop:
    def prepare(self, run, recipe, server):
        self.roles = Roles.of(run, recipe)

    async def play(self, task, endpoint):
        user = self.roles.user(task.spec["wishes"])
        said = await user.reply([])
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clawctl.asking import Refused, ask
from clawctl.config import Recipe
from clawctl.environments import EpisodeFailed
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import QUIET, Endpoint, own_endpoint

END = "###STOP###"  # what a simulated user says when its wishes are met
_PROMPTS: dict[str, str] = yaml.safe_load((Path(__file__).parent / "roles.yaml").read_text("utf-8"))
_ANSWER = re.compile(r"\\boxed\{\s*(yes|no)\s*\}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SimulatedUser:
    """A user with wishes that the agent does not see."""

    endpoint: Endpoint
    wishes: str

    async def reply(self, conversation: Sequence[Mapping[str, Any]]) -> str:
        """The user's next message, which contains END at the end. `conversation` has the messages of the agent and the user so far.

        Raises EpisodeFailed, because the policy is not to blame for a user that does not answer.
        """
        turned = {"user": "assistant", "assistant": "user"}
        seen = [message for message in conversation if message["role"] in turned and message.get("content")]
        messages = [{"role": "system", "content": _PROMPTS["user"].format(wishes=self.wishes, end=END)}]
        if not seen or seen[0]["role"] == "user":
            messages.append({"role": "user", "content": "Hello! How can I help you?"})
        messages += [{"role": turned[message["role"]], "content": str(message["content"])} for message in seen]
        return await _asked(self.endpoint, messages)


@dataclass(frozen=True, slots=True)
class Roles:
    """The endpoint of the judge, for the parts that an environment gives it."""

    endpoint: Endpoint

    @classmethod
    def of(cls, run: RunDir, recipe: Recipe) -> "Roles":
        """The recipe's judge: `judge.endpoint` and `judge.model`, or version 0 on the run's own server. Raises ClawError."""
        settings = recipe.judge
        urls = [*([settings.endpoint] if settings.endpoint else []), *settings.endpoints]
        model = settings.model or f"{recipe.model_name}@0"
        if urls:
            return cls(Endpoint(urls[0].rstrip("/"), settings.api_key or "none", model))
        server = own_endpoint(run, recipe)
        return cls(Endpoint(server.url, server.api_key, model, QUIET))

    def user(self, wishes: str) -> SimulatedUser:
        """A simulated user. `wishes` say what it wants and knows, and how it talks."""
        return SimulatedUser(self.endpoint, wishes)

    async def share_met(self, text: str, criteria: Sequence[str]) -> float:
        """The share of the criteria that the text meets, by one call each. An answer that cannot be read meets none.

        The text may try to persuade the judge: what can be computed should be. Raises EpisodeFailed, and ClawError if
        there are no criteria.
        """
        if not criteria:
            raise ClawError("a rubric without criteria has no share that a text meets", "name at least one in `share_met`", 2)
        fence = secrets.token_hex(8)
        met = 0
        for criterion in criteria:
            prompt = _PROMPTS["rubric"].format(fence=fence, criterion=criterion, text=text.replace("\\boxed", "\\ boxed"))
            answers = _ANSWER.findall(await _asked(self.endpoint, [{"role": "user", "content": prompt}]))
            met += bool(answers) and answers[-1].lower() == "yes"
        return met / len(criteria)


async def _asked(endpoint: Endpoint, messages: list[dict[str, Any]]) -> str:
    try:
        return (await ask(endpoint, messages)).strip()
    except Refused as refused:
        raise EpisodeFailed("server", f"the judge's endpoint did not answer: {refused}") from refused
