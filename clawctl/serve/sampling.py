"""Sampling settings of clients, the recipe's changes to them, and settings that make a turn untrainable."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import yaml

from clawctl.config.serve import Ignorable, SamplingConfig, SamplingRule
from clawctl.engines.requests import GenerationRequest
from clawctl.run.default_sampling import MIN_TEMPERATURE


@dataclass(frozen=True, slots=True)
class EngineField:
    """A row of `engine_fields.yaml`, which explains the fields."""

    reason: str | None = None
    neutral: Sequence[Any] = ()
    test: Any = None
    note: str | None = None


ENGINE_FIELDS: Final[dict[str, EngineField]] = {
    name: EngineField(**row)
    for name, row in yaml.safe_load((Path(__file__).parent / "engine_fields.yaml").read_text("utf-8")).items()
}


def engine_fields(body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a chat completion's body that are passed to an upstream unchanged."""
    return {name: body[name] for name in ENGINE_FIELDS if body.get(name) is not None}


def altered_fields(temperature: float, top_p: float, top_k: int, tool_choice: Any, fields: dict[str, Any]) -> str | None:
    """Why logprobs are not the policy's own, or None. The trainer accounts for temperature, but not for a truncated or altered
    distribution."""
    if temperature < MIN_TEMPERATURE:
        return "greedy"
    if top_p < 1:
        return "top_p"
    if top_k > 0:
        return "top_k"
    if tool_choice == "required" or isinstance(tool_choice, dict):
        return "forced tool choice"
    for name, value in fields.items():
        field = ENGINE_FIELDS[name]
        if field.reason is not None and value not in field.neutral:
            return field.reason
    return None


def unsupported_field(tool_choice: Any, fields: dict[str, Any], steers: bool) -> str | None:
    """The first parameter that the embedded engine cannot honour, or None. `steers`: the engine has logits processors and supports
    grammars."""
    if not steers and (tool_choice == "required" or isinstance(tool_choice, dict)):
        return "tool_choice"
    beyond = _BENDING - _STEERED if steers else _BENDING
    return next((name for name in fields if name in beyond and fields[name] not in ENGINE_FIELDS[name].neutral), None)


_BENDING: Final = frozenset(name for name, field in ENGINE_FIELDS.items() if field.reason is not None) | {"stop_token_ids"}
_STEERED: Final = frozenset(
    ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_p", "response_format")
)


# ---- changes by the recipe ---------------------------------------------------------------------------------------------------


class Settings(NamedTuple):
    """Requested sampling settings. None: not set; the server's default applies."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int = 0  # 0: off
    fields: Mapping[str, Any] = {}  # see `engine_fields`


def settings_of(request: GenerationRequest) -> Settings:
    return Settings(request.temperature, request.top_p, request.top_k, request.engine_fields)


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs from the request."""

    name: str
    asked: Any  # None: not set
    used: Any  # None: ignored

    def __str__(self) -> str:
        if self.used is None:
            return f"{self.name} ignored"
        return f"{self.name} {self.used:g} instead of " + ("the default" if self.asked is None else f"{self.asked:g}")


def enforce(requested: Settings, rule: SamplingRule, default_temperature: float) -> tuple[Settings, list[Change]]:
    """The settings to sample with, and the changes. `default_temperature` applies if the request sets none."""
    changes: list[Change] = []
    temperature = _temperature(requested.temperature, rule, default_temperature)
    if temperature != requested.temperature:
        changes.append(Change("temperature", requested.temperature, temperature))
    ignored = get_args(Ignorable) if rule.ignore == "all" else rule.ignore or ()
    used = requested._replace(temperature=temperature, fields={n: v for n, v in requested.fields.items() if n not in ignored})
    if "top_p" in ignored and requested.top_p not in (None, 1):
        changes.append(Change("top_p", requested.top_p, None))
    if "top_k" in ignored and requested.top_k > 0:
        changes.append(Change("top_k", requested.top_k, None))
    changes += [
        Change(name, value, None)
        for name, value in requested.fields.items()
        if name in ignored and value not in ENGINE_FIELDS[name].neutral
    ]
    if "top_p" in ignored:
        used = used._replace(top_p=None)
    return (used._replace(top_k=0) if "top_k" in ignored else used), changes


def _temperature(requested: float | None, rule: SamplingRule, default: float) -> float | None:
    if rule.temperature is None:
        return requested
    effective = default if requested is None else requested
    enforced = rule.temperature.always if rule.temperature.at_least is None else max(effective, rule.temperature.at_least)
    return requested if enforced == effective else enforced


def rule_for(config: SamplingConfig, key: str, client: str, agent: str) -> SamplingRule:
    """The rule for a request. Each setting comes from the key's rule, else the client's, else the general one. `client` is the name
    of a known client, `agent` the client's own name."""
    by_client = config.per_client.get(client)
    if by_client is None:
        named = [name for name in config.per_client if name and agent.startswith(name.lower())]
        by_client = config.per_client[max(named, key=len)] if named else None
    rules = [rule for rule in (config.per_key.get(key), by_client, config) if rule is not None]
    return SamplingRule(
        temperature=next((rule.temperature for rule in rules if rule.temperature is not None), None),
        ignore=next((rule.ignore for rule in rules if rule.ignore is not None), None),
    )


def changes_nothing(config: SamplingConfig) -> bool:
    """Whether the recipe changes no request of any client."""
    return all(
        rule.temperature is None and not rule.ignore for rule in (config, *config.per_client.values(), *config.per_key.values())
    )


@dataclass(slots=True)
class Enforced:
    """Number of requests per client whose sampling settings were changed, by setting."""

    requests: Counter[str]
    settings: Counter[tuple[str, str]]  # (client, setting)

    def count(self, client: str, changes: list[Change]) -> list[Change]:
        """Count the changes of one request; returns those that are new for this client."""
        self.requests[client] += 1
        new = [change for change in changes if not self.settings[client, change.name]]
        self.settings.update((client, change.name) for change in changes)
        return new

    def by_client(self) -> dict[str, dict[str, int]]:
        """{"aider": {"requests": 12, "temperature": 12}}, the client with the most requests first."""
        return {
            client: {"requests": count} | {name: n for (owner, name), n in sorted(self.settings.items()) if owner == client}
            for client, count in self.requests.most_common()
        }
