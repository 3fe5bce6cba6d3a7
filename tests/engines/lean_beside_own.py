"""Run by the Python that has vLLM, with the folder of what runs inside it on its path: says, as JSON, what vLLM's own functions
and ours in their place answer to the same questions. Each is [own, ours]."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import clawctl_lean
import numpy as np
import torch
from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponseStreamChoice, ChatCompletionStreamResponse
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.logprobs import Logprob
from vllm.tokenizers import get_tokenizer
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.outputs import LogprobsLists
from vllm.v1.sample.sampler import Sampler

FUNCTIONS = (
    (Sampler, "gather_logprobs", clawctl_lean.in_worker),
    (LogprobsProcessor, "_update_sample_logprobs", clawctl_lean.in_server),
    (OpenAIServingChat, "_create_chat_logprobs", clawctl_lean.in_server),
)


def main(model: str) -> None:
    own = [getattr(owner, name) for owner, name, _ in FUNCTIONS]
    for _, _, replace in FUNCTIONS:
        replace()
    ours = [getattr(owner, name) for owner, name, _ in FUNCTIONS]
    tokenizer = get_tokenizer(model)
    pairs = list(zip(own, ours, strict=True))
    told = {
        "replaced": [[True, one is not other] for one, other in pairs],
        "gathered": [[gathered(f, *question) for f in pairs[0]] for question in rows()],
        "updated": [[updated(f, tokenizer, *question) for f in pairs[1]] for question in steps(tokenizer)],
        "told": [[told_to_the_client(f, tokenizer, *question) for f in pairs[2]] for question in entries()],
    }
    print(json.dumps(told))


def rows() -> list[tuple[Any, int, Any]]:
    torch.manual_seed(0)
    some, tied = torch.randn(3, 50).log_softmax(-1), torch.tensor([[-1.0, -2.0, -1.0, float("-inf")]])
    few, many = torch.tensor([4, 0, 49]), torch.randn(2, 1 << 16).log_softmax(-1)
    return [(some, 0, few), (some, 2, few), (some[:1], 0, few[:1]), (tied, 0, torch.tensor([2])), (many, 0, torch.tensor([5, 6]))]


def gathered(f: Any, logprobs: Any, number: int, chosen: Any) -> Any:
    tensors = f(logprobs, number, chosen)[:3]
    return [[str(tensor.dtype), list(tensor.shape), tensor.tolist()] for tensor in tensors]


def steps(tokenizer: Any) -> list[tuple[int, bool, list[LogprobsLists]]]:
    """Of a text whose characters take up to four bytes each: one position a step, three at once, and beside a client that wants
    more alternatives."""
    tokens = tokenizer.encode("two pears, é 漢 🍐!", add_special_tokens=False)
    logprobs = [-0.125 * i for i in range(len(tokens))]

    def lists(start: int, end: int, width: int) -> LogprobsLists:
        columns = [[token] + [7 + i for i in range(width - 1)] for token in tokens[start:end]]
        values = [[logprob] + [-9.0] * (width - 1) for logprob in logprobs[start:end]]
        return LogprobsLists(np.array(columns, np.int32), np.array(values, np.float32), np.arange(1, end - start + 1))

    single = [lists(i, i + 1, 1) for i in range(len(tokens))]
    triple = [lists(i, min(i + 3, len(tokens)), 1) for i in range(0, len(tokens), 3)]
    wide = [lists(i, i + 1, 3) for i in range(len(tokens))]
    return [(0, True, single), (0, True, triple), (0, True, wide), (2, True, wide), (0, False, single)]


def updated(f: Any, tokenizer: Any, number: int, decoded: bool, given: list[LogprobsLists]) -> Any:
    processor = LogprobsProcessor(tokenizer if decoded else None, [], None, 0.0, number, None)
    for lists in given:
        f(processor, lists)
    positions = [[[token, e.logprob, e.rank, e.decoded_token] for token, e in each.items()] for each in processor.logprobs or []]
    return [processor.cumulative_logprob, positions]


def entries() -> list[tuple[list[int], list[Any], int | None, bool | None]]:
    plain = [{300: Logprob(-1.5, 2, 'é"\n')}, {301: Logprob(float("-inf"), 9, "")}]
    more = [{300: Logprob(-1.5, 2, "a"), 5: Logprob(-0.5, 1, "b")}]
    return [
        ([300, 301], plain, 0, None),
        ([300, 301], plain, None, None),
        ([300, 301], plain, 0, True),
        ([300], more, 1, None),
        ([300], more, 0, None),
        ([5], [{300: Logprob(-1.5, 2, "a")}], 0, None),
        ([300], [{300: Logprob(-1.5, 2, None)}], 0, None),
        ([300], [None], 0, None),
        ([], [], 0, None),
    ]


def told_to_the_client(f: Any, tokenizer: Any, tokens: list[int], top: list[Any], number: int | None, as_ids: bool | None) -> Any:
    serving = SimpleNamespace(return_tokens_as_token_ids=False, _get_decoded_token=OpenAIServingChat._get_decoded_token)
    serving._get_top_logprobs = OpenAIServingChat._get_top_logprobs.__get__(serving)
    logprobs = f(serving, token_ids=tokens, top_logprobs=top, tokenizer=tokenizer, num_output_top_logprobs=number,
                 logprob_token_ids=None, return_as_token_id=as_ids)  # fmt: skip
    choice = ChatCompletionResponseStreamChoice(index=0, delta=DeltaMessage(content="é"), logprobs=logprobs, token_ids=tokens)
    chunk = ChatCompletionStreamResponse(id="1", created=1, model="m", choices=[choice])
    return [chunk.model_dump_json(exclude_unset=True), chunk.model_dump_json(), repr(logprobs)]


if __name__ == "__main__":
    main(sys.argv[1])
