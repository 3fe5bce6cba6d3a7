"""How requests are sampled: what the recipe changes, and the temperature and top-p of a request that names none."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clawctl.config import Recipe
from clawctl.engines.requests import GenerationRequest
from clawctl.run.default_sampling import DefaultSampling, default_sampling
from clawctl.serve.episodes import sampling_rule
from clawctl.serve.hints import agent_of, client_of
from clawctl.serve.request_context import RequestContext
from clawctl.serve.sampling import Enforced, changes_nothing, enforce, rule_for, settings_of
from clawctl.serve.versions import Versions

_log = logging.getLogger("clawctl.serve")


class Defaults:
    """The sampling of requests that name none (`clawctl.run.default_sampling`)."""

    def __init__(self, recipe: Recipe, versions: Versions) -> None:
        self._recipe, self._versions = recipe, versions
        self._changes_nothing = changes_nothing(recipe.serve.sampling)
        self._read: DefaultSampling | None = None

    def current(self) -> DefaultSampling:
        """The values for the next request. They are read once the engine is ready: until then it may download the model."""
        live = self._versions.live
        waits = live.waiting_for() is not None
        sampling = self._read or default_sampling(self._recipe)
        if not waits:
            self._read = sampling
        if sampling.sources["temperature"] != "model" or live.capabilities.processed is not False or waits:
            return sampling
        # The engine returns logprobs before temperature, so that a turn can be trained only at temperature 1.
        left_out = {"temperature": sampling.temperature, **sampling.left_out}
        return replace(sampling, temperature=1.0, sources={**sampling.sources, "temperature": "default"}, left_out=left_out)

    def enforced(
        self, request: GenerationRequest, headers: Mapping[str, str], context: RequestContext, counts: Enforced
    ) -> GenerationRequest:
        """The request with `serve.sampling` applied, or the sampling of its episode."""
        if self._changes_nothing and context.episode is None:
            return request
        client, default = client_of(headers, request.sent_messages), self.current().temperature
        if context.episode is not None:
            rule = sampling_rule(self._recipe.serve, context.episode.measurement, default)
        else:
            rule = rule_for(self._recipe.serve.sampling, context.key, client, agent_of(headers))
        used, changes = enforce(settings_of(request), rule, default)
        if not changes:
            return request
        context.sampling = "; ".join(map(str, changes))
        if new := counts.count(client, changes):
            named = "; ".join(map(str, new))
            _log.info("serve.sampling: requests of %s are sampled with %s (/health counts them)", client, named)
        return replace(
            request, temperature=used.temperature, top_p=used.top_p, top_k=used.top_k, engine_fields=dict(used.fields),
            overridden={change.name: change.asked if isinstance(change.asked, float | int | None) else True for change in changes},
        )  # fmt: skip

    def filled(self, request: GenerationRequest, session: str | None) -> GenerationRequest:
        """The request with its session, a temperature and a top-p, and with the source of each value."""
        sampling = self.current()
        named = {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k or None}
        sources = {name: source if named[name] is None else "request" for name, source in sampling.sources.items()}
        if "temperature" in request.overridden:
            sources["temperature"] = "recipe"
        return replace(
            request,
            temperature=sampling.temperature if request.temperature is None else request.temperature,
            top_p=sampling.top_p if request.top_p is None else request.top_p,
            sampling_from=sources,
            session=session,
        )

    def as_json(self) -> dict[str, Any]:
        """The values for `/health`: {"temperature": {"value": 0.6, "from": "model"}, …, "left_out": {"top_k": 20}}."""
        sampling = self.current()
        values = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        shown: dict[str, Any] = {name: {"value": value, "from": sampling.sources[name]} for name, value in values.items()}
        return {**shown, "left_out": sampling.left_out}

    def __str__(self) -> str:
        sampling = self.current()
        text = f"requests that name no temperature are sampled at {sampling.temperature:g} ({sampling.sources['temperature']})"
        if not sampling.left_out:
            return text
        names = ", ".join(f"{name} {value:g}" for name, value in sampling.left_out.items())
        return f"{text}; the model's own {names} are left out, because turns that are sampled so cannot be trained"
