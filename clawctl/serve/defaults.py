"""What a request does not name: its temperature and top-p, as the engine can train them."""

from dataclasses import replace
from typing import Any

from clawctl.config import Recipe
from clawctl.engines.requests import GenerationRequest
from clawctl.run.default_sampling import DefaultSampling, default_sampling
from clawctl.serve.versions import Versions


class Defaults:
    """The sampling of requests that name none (`clawctl.run.default_sampling`)."""

    def __init__(self, recipe: Recipe, versions: Versions) -> None:
        self._recipe, self._versions = recipe, versions
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

    def filled(self, request: GenerationRequest) -> GenerationRequest:
        """The request with a temperature and a top-p, and with the source of each value."""
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
        )

    def as_json(self) -> dict[str, Any]:
        """The values for `/health`: {"temperature": {"value": 0.6, "from": "model"}, …, "left_out": {"top_k": 20}}."""
        sampling = self.current()
        values = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        return {name: {"value": value, "from": sampling.sources[name]} for name, value in values.items()} | {
            "left_out": sampling.left_out
        }

    def __str__(self) -> str:
        sampling = self.current()
        text = f"requests that name no temperature are sampled at {sampling.temperature:g} ({sampling.sources['temperature']})"
        if not sampling.left_out:
            return text
        names = ", ".join(f"{name} {value:g}" for name, value in sampling.left_out.items())
        return f"{text}; the model's own {names} are left out, because turns that are sampled so cannot be trained"
