"""The metrics at `/metrics` for Prometheus, in its text format (https://prometheus.io/docs/instrumenting/exposition_formats/).

Three kinds of metrics in one process and one event loop need no library. With prometheus_client a request costs 15 µs instead of
1.6 µs, and its text differs: whole counts are floats, labels are sorted, and each series has a `_created`.
"""

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from clawctl.privacy.finders import KINDS, default_finders
from clawctl.privacy.redaction import Redactor
from clawctl.serve.sampling import Enforced

_log = logging.getLogger("clawctl.serve")
_MAX_NAMES: Final = 256  # names of unknown fields, over all APIs; later ones are counted without their names
_MAX_IN_HEADER: Final = 16
_REST: Final = "(more)"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
Labels = tuple[str, ...]


@dataclass(slots=True)
class Histogram:
    """A histogram of seconds, by label."""

    buckets: dict[Labels, list[int]] = field(default_factory=dict)  # one count per bucket, and one for larger values
    sums: Counter[Labels] = field(default_factory=Counter)

    def observe(self, labels: Labels, seconds: float) -> None:
        counts = self.buckets.get(labels)
        if counts is None:
            counts = self.buckets[labels] = [0] * (len(_SECONDS) + 1)
        counts[bisect_left(_SECONDS, seconds)] += 1
        self.sums[labels] += seconds  # type: ignore[assignment]


class UnknownFields:
    """Unknown fields from clients: accepted, counted by API and name, and logged once."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._redactor = Redactor(KINDS, finders=default_finders())  # readers of /health and of the log need not have a key

    def count(self, api: str, names: Iterable[str]) -> None:
        for name in names:
            known = (api, name) in self._counts
            if not known and len(self._counts) < _MAX_NAMES:
                name = self._redactor.text(name)
                known = (api, name) in self._counts
            label = (api, name if known or len(self._counts) < _MAX_NAMES else _REST)
            self._counts[label] += 1
            if not known and label[1] != _REST:
                _log.warning("%s: a client sends the unknown field %r, which has no effect", api, name)

    def by_api(self) -> dict[str, dict[str, int]]:
        """{"chat": {"provider_x": 3}}, the most frequent field first."""
        counts: dict[str, dict[str, int]] = {}
        for (api, name), count in self._counts.most_common():
            counts.setdefault(api, {})[name] = count
        return counts


def unknown_header(names: tuple[str, ...]) -> list[tuple[bytes, bytes]]:
    """The header that reports unknown fields to the client. The names are printable ASCII, see `clawctl.serve.dialects.api`."""
    return [(b"x-clawctl-ignored", ", ".join(names[:_MAX_IN_HEADER]).encode())] if names else []


@dataclass(slots=True)
class Metrics:
    """Counters of the server. The number of labels is bounded: APIs and reasons are fixed, and keys are those that an operator
    added."""

    requests: Counter[Labels] = field(default_factory=Counter)  # (api, status, key)
    refused: Counter[Labels] = field(default_factory=Counter)  # (reason,)
    tokens_in: Counter[Labels] = field(default_factory=Counter)  # (api, key)
    tokens_out: Counter[Labels] = field(default_factory=Counter)
    first_token: Histogram = field(default_factory=Histogram)  # (api,)
    latency: Histogram = field(default_factory=Histogram)
    ratings: Counter[Labels] = field(default_factory=Counter)  # (outcome,): "kept", "lost"
    unknown: UnknownFields = field(default_factory=UnknownFields)
    enforced: Enforced = field(default_factory=lambda: Enforced(Counter(), Counter()))
    running: int = 0


def exposition(metrics: Metrics, now: Mapping[str, tuple[str, str, float | None]]) -> bytes:
    """The text for Prometheus. `now` maps name → (kind, help, value) for current values; a value of None is unknown."""
    lines: list[str] = []
    lines += _counted("clawctl_requests", "Requests answered.", ("api", "status", "key"), metrics.requests)
    lines += _counted("clawctl_refused", "Requests refused.", ("reason",), metrics.refused)
    lines += _counted("clawctl_prompt_tokens", "Prompt tokens.", ("api", "key"), metrics.tokens_in)
    lines += _counted("clawctl_completion_tokens", "Sampled tokens.", ("api", "key"), metrics.tokens_out)
    lines += _counted("clawctl_ratings", "Ratings from clients.", ("outcome",), metrics.ratings)
    changed: Counter[Labels] = Counter({(client, name): n for (client, name), n in metrics.enforced.settings.items()})
    lines += _counted(
        "clawctl_sampling_changed", "Requests whose sampling settings the server changed.", ("client", "setting"), changed
    )
    lines += _measured(
        "clawctl_time_to_first_token_seconds",
        "Time from the request to the first piece of a stream, or to the first token of a complete answer.",
        metrics.first_token,
    )
    lines += _measured("clawctl_request_seconds", "Time from the request to the end of its answer.", metrics.latency)
    for name, (kind, text, value) in now.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {'NaN' if value is None else _number(value)}"]
    return ("\n".join(lines) + "\n").encode()


def _counted(name: str, text: str, labels: Labels, counts: Counter[Labels]) -> Iterable[str]:
    yield f"# HELP {name}_total {text}"
    yield f"# TYPE {name}_total counter"
    for values, count in sorted(counts.items()):
        yield f"{name}_total{{{_labels(labels, values)}}} {count}"


def _measured(name: str, text: str, histogram: Histogram) -> Iterable[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} histogram"
    for values, counts in sorted(histogram.buckets.items()):
        label, below = _labels(("api",), values), 0
        for edge, count in zip((*map(_number, _SECONDS), "+Inf"), counts, strict=True):
            below += count
            yield f'{name}_bucket{{{label},le="{edge}"}} {below}'
        yield f"{name}_sum{{{label}}} {_number(histogram.sums[values])}"
        yield f"{name}_count{{{label}}} {below}"


def _labels(labels: Labels, values: Labels) -> str:
    escaped = (value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for value in values)
    return ",".join(f'{label}="{value}"' for label, value in zip(labels, escaped, strict=True))


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
