"""`train/spending.jsonl`: the cost of training at a service, and the limit.

One line is written before each step is sent: {"step": 7, "time": …, "to": "https://…", "prefill_tokens": 5120, "train_tokens":
4096, "cost": 0.002}. So a step that was killed, refused or discarded counts too, and a limit holds across restarts. `cost` is null
without a price.
"""

import logging
import time
from dataclasses import dataclass

import orjson

from clawctl.config import ServiceConfig, TrainConfig
from clawctl.config.train import AtService
from clawctl.errors import ClawError
from clawctl.run.checksums import sealed
from clawctl.run.directory import RunDir
from clawctl.run.lines import append_lines, read_lines
from clawctl.train.advantages import likeliest
from clawctl.train.sample import Batch

log = logging.getLogger("clawctl.train")

CANARY_TOKENS = 40  # approximate size of the canary prompts, which are read once per version


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens that a service computes for one step."""

    prefill: int  # tokens read by the policy before the step, and by the teacher
    train: int

    def cost(self, service: ServiceConfig) -> float | None:
        price = service.price
        return None if price is None else (self.prefill * price.prefill + self.train * price.train) / 1e6


def usage_of(batch: Batch, config: TrainConfig) -> Usage:
    """With a method over the K likeliest tokens, a hinted turn is read once more for their names, as is each of its hinted prompts.
    Each of the K tokens is then read and trained as a sequence of its own."""
    k = likeliest(config)
    read = train = sum(len(sample.prompt_ids) + len(sample.completion_ids) for sample in batch.samples)
    hinted = [s for s in batch.samples if s.teacher_prompt_ids is not None and s.teacher_logprobs is None and config.uses_hints]
    teacher = sum(len(sample.teacher_prompt_ids or ()) + len(sample.completion_ids) for sample in hinted)
    if k is not None:
        prompts = [(prompt, s) for s in hinted for prompt in (s.teacher_prompt_ids or (), *s.other_prompts)]
        plain = sum(len(s.prompt_ids) + len(s.completion_ids) for s in hinted)
        teacher = (1 + k) * (plain + sum(len(prompt) + len(s.completion_ids) for prompt, s in prompts))
        train += k * plain
    return Usage(read + teacher + CANARY_TOKENS, train)


class Spending:
    """The cost of a run. The local trainer costs nothing."""

    def __init__(self, run: RunDir, config: TrainConfig) -> None:
        self.run, self.config, self._shown = run, config, False

    @property
    def total(self) -> float:
        return sum(row["cost"] or 0.0 for row in read_lines(self.run.spending, _warn))

    def pay(self, batch: Batch) -> float | None:
        """Record a step that is about to be sent and return its cost. Above the limit, raises ClawError and records nothing."""
        if not isinstance(backend := self.config.backend, AtService) or not backend.send_conversations:
            return None
        service = self.config.service
        usage = usage_of(batch, self.config)
        cost, spent = usage.cost(service), self.total
        if not self._shown:
            self._shown = True
            costs = "without train.service.price its cost is not known" if cost is None else f"it costs about {cost:.4g}"
            log.info("step %d sends %d tokens to train on and %d to read; %s", batch.step, usage.train, usage.prefill, costs)
        if cost is not None and service.limit is not None and spent + cost > service.limit:
            raise ClawError(
                f"step {batch.step} would cost about {cost:.4g}, and {spent:.4g} of the limit of {service.limit:g} is spent",
                "raise train.service.limit; the turns stay available",
            )
        sent = {"step": batch.step, "time": time.time(), "to": service.url or backend.kind}
        line = {**sent, "prefill_tokens": usage.prefill, "train_tokens": usage.train, "cost": cost}
        append_lines(self.run.spending, [sealed(orjson.dumps(line))])
        return cost


def _warn(_: int, error: Exception) -> None:
    log.error("skipped a row of train/spending.jsonl: %s", error)
