"""Imported turns: text without ids and logprobs, which no model of this run sampled.

The ids come from the model's own template. The logprobs come from the weights that are about to be trained and are computed once
the batch is selected. An imported turn therefore does not go stale while it waits, and its ratio starts at 1.
"""

from dataclasses import replace
from typing import Any

import torch

from clawctl.control_tokens import Guarded, guard
from clawctl.run.rows import Turn, is_plain
from clawctl.train.sample import Batch
from clawctl.trainers.local.batches import lay_out, share_out
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.teacher import template_error
from clawctl.trainers.local.trees import make_branch


class Unrenderable(Exception):
    """The model's template does not show this turn as the file has it."""


def rendered(tokenizer: Any, turn: Turn) -> Turn:
    """The turn with the ids of its prompt and of its answer, the end token included. Raises Unrenderable.

    The answer's ids are those of the text that the template writes behind the prompt, as a server would have fed and sampled them.
    """
    if turn.response is None or is_plain(turn.messages):  # a template would make another prompt of a plain one
        raise Unrenderable
    if any(isinstance(message.get("content"), list) for message in (*turn.messages, turn.response)):
        raise Unrenderable
    safe = guard(tokenizer, [*turn.messages, turn.response], turn.tools)
    try:
        prompt = _text(tokenizer, safe.messages[:-1], safe, add_generation_prompt=True)
        whole = _text(tokenizer, safe.messages, safe)
    except (ValueError, TypeError, KeyError, AttributeError, template_error()) as error:  # a template may refuse any conversation
        raise Unrenderable from error
    content, end = safe.messages[-1].get("content") or "", tokenizer.eos_token
    answer, found, behind = whole[len(prompt) :].rpartition(end)
    if not whole.startswith(prompt) or not found or behind.strip() or not answer or content.strip() not in answer:
        raise Unrenderable  # a template that rewrites the messages would train other text
    prompt_ids, completion_ids = (safe.encode(text) for text in (prompt, answer + end))
    return replace(turn, prompt_ids=prompt_ids, completion_ids=completion_ids)


@torch.no_grad()
def scored(policy: PolicyModel, batch: Batch, tokens: int) -> Batch:
    """The batch with the logprobs of its imported turns under the weights as they are: those that the step starts from."""
    waiting = [sample for sample in batch.samples if sample.logprobs is None]
    branches = [make_branch(sample.prompt_ids, sample.completion_ids, sample.temperature) for sample in waiting]
    found: dict[str, list[float]] = {}
    for group in share_out(branches, policy.merge, tokens).groups if branches else []:
        laid = lay_out([branches[index] for index in group], policy.merge, policy.device)
        values = policy.logprobs(laid).float().split(laid.lengths)
        found.update({waiting[index].turn_id: value.tolist() for index, value in zip(group, values, strict=True)})
    samples = [replace(sample, logprobs=found[sample.turn_id]) if sample.turn_id in found else sample for sample in batch.samples]
    return replace(batch, samples=samples)


def _text(tokenizer: Any, messages: list[dict[str, Any]], safe: Guarded, **settings: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tools=safe.tools, tokenize=False, **settings))
