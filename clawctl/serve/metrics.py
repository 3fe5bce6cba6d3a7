"""The metrics at `/metrics`, which prometheus_client writes. Plain counters are also read by `/health`."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from clawctl.privacy.finders import KINDS, default_finders
from clawctl.privacy.redaction import Redactor
from clawctl.serve.sampling import Enforced

_log = logging.getLogger("clawctl.serve")
_MAX_NAMES: Final = 256  # names of unknown fields, over all APIs; later ones are counted without their names
_REST: Final = "(more)"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
Labels = tuple[str, ...]
_histogram = partial(Histogram, labelnames=("api",), buckets=_SECONDS, registry=None)


class UnknownFields:
    """Unknown fields from clients: accepted, counted by API and name, and logged once."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._redactor = Redactor(KINDS, finders=default_finders())  # readers of /health and of the log need not have a key

    def count(self, api: str, names: Iterable[str]) -> None:
        for name in names:
            is_counted = (api, name) in self._counts
            if not is_counted and len(self._counts) < _MAX_NAMES:
                name = self._redactor.text(name)
                is_counted = (api, name) in self._counts
            label = (api, name if is_counted or len(self._counts) < _MAX_NAMES else _REST)
            self._counts[label] += 1
            if not is_counted and label[1] != _REST:
                _log.warning("%s: a client sends the unknown field %r, which has no effect", api, name)

    def by_api(self) -> dict[str, dict[str, int]]:
        """{"chat": {"provider_x": 3}}, the most frequent field first."""
        counts: dict[str, dict[str, int]] = {}
        for (api, name), count in self._counts.most_common():
            counts.setdefault(api, {})[name] = count
        return counts


@dataclass(slots=True)
class Metrics:
    """Counters of the server. The number of labels is bounded: APIs and reasons are fixed, and keys are those that an operator
    added."""

    requests: Counter[Labels] = field(default_factory=Counter)  # (api, status, key)
    refused: Counter[Labels] = field(default_factory=Counter)  # (reason,)
    tokens_in: Counter[Labels] = field(default_factory=Counter)  # (api, key)
    tokens_out: Counter[Labels] = field(default_factory=Counter)
    first_token: Histogram = field(
        default_factory=lambda: _histogram(
            "clawctl_time_to_first_token_seconds",
            "Time from the request to the first piece of a stream, or to the first token of a complete answer.",
        )
    )
    latency: Histogram = field(
        default_factory=lambda: _histogram("clawctl_request_seconds", "Time from the request to the end of its answer.")
    )
    ratings: Counter[Labels] = field(default_factory=Counter)  # (outcome,): "kept", "lost"
    unknown: UnknownFields = field(default_factory=UnknownFields)
    enforced: Enforced = field(default_factory=lambda: Enforced(Counter(), Counter()))
    running: int = 0


class _Counts(Collector):
    def __init__(self, metrics: Metrics, now: Mapping[str, tuple[str, str, float | None]], key: str | None) -> None:
        self._metrics, self._now, self._key = metrics, now, key

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        metrics = self._metrics
        counters: tuple[tuple[str, str, Labels, Counter[Labels]], ...] = (
            ("requests", "Requests answered.", ("api", "status", "key"), metrics.requests),
            ("refused", "Requests refused.", ("reason",), metrics.refused),
            ("prompt_tokens", "Prompt tokens.", ("api", "key"), metrics.tokens_in),
            ("completion_tokens", "Sampled tokens.", ("api", "key"), metrics.tokens_out),
            ("ratings", "Ratings from clients.", ("outcome",), metrics.ratings),
            ("sampling_changed", "Requests whose sampling settings the server changed.", ("client", "setting"),
             Counter({(client, name): n for (client, name), n in metrics.enforced.settings.items()})),
        )  # fmt: skip
        for name, text, labels, counts in counters:
            family = CounterMetricFamily(f"clawctl_{name}", text, labels=labels)
            for values, count in counts.items():
                if self._key in (None, values[-1]) or labels[-1] != "key":
                    family.add_metric(values, count)
            yield family
        for name, (kind, text, value) in self._now.items():
            current = float("nan") if value is None else value
            yield (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, text, value=current)


def exposition(metrics: Metrics, now: Mapping[str, tuple[str, str, float | None]], key: str | None = None) -> bytes:
    """The text for Prometheus. `now` maps name → (kind, help, value) for current values; a value of None is unknown. `key`: counts
    by key are shown of this one alone; None: of all."""
    disable_created_metrics()
    registry = CollectorRegistry()
    for collector in (_Counts(metrics, now, key), metrics.first_token, metrics.latency):
        registry.register(collector)
    return generate_latest(registry)
