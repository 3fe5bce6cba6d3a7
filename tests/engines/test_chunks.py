"""The chunks of an upstream are shown as they arrive, and the sampled tokens are captured exactly."""

import asyncio
import contextlib
import time
from typing import Any

import orjson
import pytest

from clawctl.engines import THERE_AND_BACK, EngineFailure, Sampled
from clawctl.engines.requests import CallDelta, CallStart, Extras, ReasoningDelta, Refusal, Shown, TextDelta
from clawctl.engines.upstream.chunks import UpstreamReply
from clawctl.engines.upstream.tokens import Clock
from clawctl.serve.dialects.writing import chat_logprobs

# ---- chunks --------------------------------------------------------------------------------------------------------------


def chunk(delta: dict[str, Any], ids: list[int] | None = None, logprobs: list[float | None] | None = None, **more: Any) -> bytes:
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": more.pop("finish_reason", None)}
    if ids is not None:
        choice["token_ids"] = ids
    if logprobs is not None:
        choice["logprobs"] = {"content": [{"token": "x", "logprob": logprob, "top_logprobs": []} for logprob in logprobs]}
    return b"data: " + orjson.dumps({"choices": [choice], **more}) + b"\n\n"


def usage(prompt: int, completion: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": {"cached_tokens": 1}}
    return b"data: " + orjson.dumps({"choices": [], "usage": counts}) + b"\n\n"


FIRST = chunk({"role": "assistant", "content": ""}, prompt_token_ids=[7, 8])
DONE = b"data: [DONE]\n\n"


def read(*pieces: bytes, clock: Clock | None = None, error: str | None = None) -> tuple[UpstreamReply, list[Shown]]:
    async def main() -> tuple[UpstreamReply, list[Shown]]:
        reply = UpstreamReply(Sampled(1.0, 1.0, 0), clock or Clock(3), show_logprobs=False, expect_ids=True)
        for piece in pieces:
            reply.feed(piece)
        reply.ended(error)
        return reply, [shown async for shown in reply]

    return asyncio.run(main())


def test_the_captured_text_equals_the_stream_however_it_is_cut() -> None:
    body = (
        FIRST
        + chunk({"reasoning": "hm"}, [1], [-0.5])
        + chunk({"content": "a"}, [2, 3], [-0.25, -1.5])
        + chunk({}, [4], [0.0], finish_reason="stop")
        + usage(2, 4)
        + DONE
    )
    for size in (1, 7, 64, len(body)):
        reply, shown = read(*(body[i : i + size] for i in range(0, len(body), size)))
        sampled = reply.sampled
        assert (sampled.prompt_ids, sampled.completion_ids) == ([7, 8], [1, 2, 3, 4])
        assert sampled.logprobs == [-0.5, -0.25, -1.5, 0.0]
        assert (sampled.version, sampled.version_end, sampled.untrainable) == (3, 3, None)
        assert (sampled.prompt_tokens, sampled.completion_tokens, sampled.cached_tokens) == (2, 4, 1)
        assert sampled.finish_reason == "stop"
        assert [event for piece in shown for event in piece.events] == [ReasoningDelta("hm"), TextDelta("a")]


def test_calls_come_as_they_are_sampled() -> None:
    def call(index: int, **function: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "id": "theirs", "function": function}]}

    _, shown = read(
        FIRST,
        chunk(call(0, name="f"), [1], [0.0])
        + chunk(call(0, arguments='{"a"'), [2], [0.0])
        + chunk(call(0, arguments=": 1}"), [3], [0.0]),
        chunk(call(1, name="g", arguments="{}"), [4], [0.0], finish_reason="tool_calls") + DONE,
    )
    events = [event for piece in shown for event in piece.events]
    assert events == [CallStart("f"), CallDelta('{"a": 1}'), CallStart("g"), CallDelta("{}")]


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ((chunk({"content": "a"}), usage(2, 1)), "no token ids"),
        ((FIRST, chunk({"content": "a"}), usage(2, 1)), "no token ids"),
        ((FIRST, chunk({"content": "a"}, [1])), "no logprobs"),
        ((FIRST, chunk({"content": "a"}, [1, 2], [-1.0])), "ids and logprobs differ in number"),
        ((FIRST, chunk({"content": "a"}, [1, 2], [-1.0, None])), "a logprob is missing"),
        ((FIRST, chunk({"content": "a"}, [1], [-9999.0])), "no logprobs"),
        (
            (FIRST, chunk({"content": "a"}, [1], [-1.0], finish_reason="stop"), usage(2, 2)),
            "the engine's token count differs from its ids",
        ),
    ],
)
def test_nothing_is_filled_in(pieces: tuple[bytes, ...], reason: str) -> None:
    reply, _ = read(*pieces, DONE)
    assert reply.sampled.untrainable == reason
    ids, logprobs = reply.sampled.completion_ids, reply.sampled.logprobs
    assert logprobs is None or len(ids or []) == len(logprobs)


@pytest.mark.parametrize(("passes", "reason"), [(True, None), (False, "sampled by a version that was refused")])
def test_an_answer_that_ends_during_the_canary_check_waits_for_its_result(passes: bool, reason: str | None) -> None:
    async def main() -> None:
        clock = Clock(2)
        clock.unverified = 2
        reply = UpstreamReply(Sampled(1.0, 1.0, 0), clock, show_logprobs=False, expect_ids=True)
        reply.feed(FIRST + chunk({"content": "a"}, [1], [-1.0]) + DONE)
        reply.ended(None)
        pieces = [await anext(aiter := reply.__aiter__())]
        last = asyncio.ensure_future(anext(aiter, None))
        await asyncio.sleep(0.05)
        assert not last.done()
        if not passes:
            clock.refused.add(2)
        clock.unverified = None
        assert await last is None
        assert len(pieces) == 1
        assert reply.sampled.untrainable == reason

    asyncio.run(main())


@pytest.mark.parametrize("how", ["cancelled", "broken off"])
def test_a_cancelled_answer_does_not_wait_for_the_canary_check(how: str) -> None:
    async def main() -> None:
        clock = Clock(2)
        clock.unverified = 2
        reply = UpstreamReply(Sampled(1.0, 1.0, 0), clock, show_logprobs=False, expect_ids=True)
        reply.feed(FIRST + chunk({"content": "a"}, [1], [-1.0]))
        if how == "cancelled":
            reply.cancel()
        else:
            reply.ended("the connection was lost")
        async with asyncio.timeout(1):
            with contextlib.suppress(EngineFailure):
                assert len([shown async for shown in reply]) == 1
        assert reply.sampled.untrainable == "sampled before the version passed its canary check"

    asyncio.run(main())


@pytest.mark.parametrize(("refused", "reason"), [({2}, "sampled by a version that was refused"), (set(), THERE_AND_BACK)])
def test_an_answer_across_swaps_that_end_where_they_began_is_not_trained(refused: set[int], reason: str) -> None:
    async def main() -> None:
        clock = Clock(1)
        reply = UpstreamReply(Sampled(1.0, 1.0, 0), clock, show_logprobs=False, expect_ids=True)
        reply.feed(FIRST + chunk({"content": "a"}, [1], [-1.0]))
        clock.version = 2
        reply.feed(chunk({"content": "b"}, [2], [-1.0]))
        clock.version = 1
        reply.feed(chunk({"content": "c"}, [3], [-1.0]) + DONE)
        clock.refused |= refused
        reply.ended(None)
        assert [shown async for shown in reply]
        assert (reply.sampled.version, reply.sampled.version_end) == (1, 1)
        assert reply.sampled.untrainable == reason

    asyncio.run(main())


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ((FIRST, chunk({"content": "a"}, [1], [-1.0])), None),
        ((FIRST, b'data: {"error": {"message": "out of memory"}}\n\n'), None),
        ((FIRST, b"data: {oops\n\n"), None),
        ((FIRST, b"data: [1]\n\n"), None),
        ((FIRST, b'data: {"choices": [3]}\n\n'), None),
        ((FIRST, b'data: {"choices": [{"delta": {"content": [3]}}]}\n\n'), None),
        ((FIRST, b'data: {"choices": [{"token_ids": ["a"]}]}\n\n'), None),
        ((FIRST,), "the connection was lost"),
    ],
)
def test_a_stream_that_breaks_off_is_the_engines_failure(pieces: tuple[bytes, ...], error: str | None) -> None:
    with pytest.raises(EngineFailure):
        read(*pieces, error=error)


# ---- whole answers -------------------------------------------------------------------------------------------------------


def read_whole(*pieces: bytes, cancel: bool = False) -> tuple[UpstreamReply, list[Shown]]:
    """As for a client that waits for all of it: shown once, at the end."""

    async def main() -> tuple[UpstreamReply, list[Shown]]:
        reply = UpstreamReply(Sampled(1.0, 1.0, 0), Clock(3), show_logprobs=False, expect_ids=True, live=False)
        task = asyncio.create_task(collect(reply))
        for piece in pieces:
            reply.feed(piece)
            await asyncio.sleep(0)
            assert not task.done()
        reply.cancel() if cancel else reply.ended(None)
        return reply, await task

    async def collect(reply: UpstreamReply) -> list[Shown]:
        return [shown async for shown in reply]

    return asyncio.run(main())


def test_a_whole_answer_is_put_together_from_its_stream() -> None:
    call = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]}
    more = {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}
    body = chunk({"content": "b"}, [3], [-1.0]) + chunk(call, [4], [0.0]) + chunk(more, [5], [0.0], finish_reason="tool_calls")
    pieces = [FIRST, chunk({"reasoning": "hm"}, [1], [-0.5]), chunk({"content": "a"}, [2], [-0.25]), body, usage(2, 5) + DONE]
    reply, shown = read_whole(*pieces)
    sampled = reply.sampled
    assert [piece.events for piece in shown] == [[ReasoningDelta("hm"), TextDelta("ab"), CallStart("f"), CallDelta("{}")]]
    assert (sampled.completion_ids, sampled.logprobs) == ([1, 2, 3, 4, 5], [-0.5, -0.25, -1.0, 0.0, 0.0])
    assert (sampled.finish_reason, sampled.untrainable, sampled.version) == ("tool_calls", None, 3)


def test_the_tokens_of_an_abandoned_whole_answer_are_kept() -> None:
    before = time.time()
    reply, shown = read_whole(
        FIRST, chunk({"content": "a"}, [1], [-0.5]), chunk({"content": "b"}, [2, 3], [-1.0, 0.0]), cancel=True
    )
    sampled = reply.sampled
    assert [piece.events for piece in shown] == [[TextDelta("ab")]]
    assert (sampled.prompt_ids, sampled.completion_ids, sampled.logprobs) == ([7, 8], [1, 2, 3], [-0.5, -1.0, 0.0])
    assert (sampled.finish_reason, sampled.version, sampled.version_end) == (None, 3, 3)
    assert sampled.first_at is not None
    assert before <= sampled.first_at <= time.time()


def test_no_first_token_is_recorded_before_it_is_sent() -> None:
    reply, _ = read_whole(FIRST, cancel=True)
    assert (reply.sampled.first_at, reply.sampled.completion_ids) == (None, None)


# ---- what else may stand in a stream --------------------------------------------------------------------------------------


def test_unknown_fields_of_a_chunk_are_kept_next_to_known_ones() -> None:
    head = {"system_fingerprint": "fp", "obfuscation": "xyz"}
    reply, shown = read(
        FIRST,
        chunk({"content": "a", "refusal": "I "}, [1], [-1.0], **head),
        chunk({"refusal": "won't", "annotations": [1]}, [2], [-1.0], **head),
        b'data: {"choices": [{"index": 0, "delta": {"annotations": [2]}, "finish_reason": "stop", "stop_reason": "END"}]}\n\n',
        b'data: {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 2, "odd": 5}, "service_tier": "flex"}\n\n',
        DONE,
    )
    sampled = reply.sampled
    assert [event for piece in shown for event in piece.events] == [TextDelta("a")]
    assert (sampled.completion_ids, sampled.untrainable, sampled.stop_sequence) == ([1, 2], None, "END")
    assert sampled.extras == Extras(
        {"system_fingerprint": "fp", "service_tier": "flex"}, {"stop_reason": "END"}, {"refusal": "I won't", "annotations": [1, 2]}
    )
    assert sampled.usage == {"prompt_tokens": 2, "completion_tokens": 2, "odd": 5}


@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_events_are_read_however_they_are_written(size: int) -> None:
    plain = FIRST + chunk({"content": "a\\n\n"}, [1], [-1.0])
    odd = plain.replace(b"\n", b"\r\n") + b": still here\n\nevent: x\n" + chunk({"content": "b"}, [2], [-1.0]).replace(b": ", b":")
    body = odd + b": ping\n\n\n" + chunk({"content": "c"}, [3], [-1.0], finish_reason="stop") + b"data:[DONE]"
    reply, shown = read(*(body[i : i + size] for i in range(0, len(body), size)))
    assert "".join(event.text for piece in shown for event in piece.events if isinstance(event, TextDelta)) == "a\\n\nbc"
    assert (reply.sampled.completion_ids, reply.sampled.untrainable) == ([1, 2, 3], None)


def test_an_upstream_that_cannot_stream_is_read_whole() -> None:
    calls = [{"id": "a", "function": {"name": name, "arguments": "{}"}} for name in ("f", "g")]
    message = {"role": "assistant", "reasoning": "hm", "content": "a", "refusal": None, "tool_calls": calls}
    entries = [{"token": "x", "logprob": logprob, "bytes": None, "top_logprobs": []} for logprob in (-0.5, 0.0)]
    choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [1, 2], "logprobs": {"content": entries}}
    counts = {"prompt_tokens": 2, "completion_tokens": 2}
    reply, shown = read(orjson.dumps({"id": "i", "choices": [choice], "prompt_token_ids": [7, 8], "usage": counts}))
    assert (reply.sampled.completion_ids, reply.sampled.logprobs) == ([1, 2], [-0.5, 0.0])
    said = [ReasoningDelta("hm"), TextDelta("a"), CallStart("f"), CallDelta("{}"), CallStart("g"), CallDelta("{}")]
    assert [event for piece in shown for event in piece.events] == said


@pytest.mark.parametrize("code", [400, "400"])
def test_a_refusal_within_the_upstreams_stream_is_passed_to_the_client(code: int | str) -> None:
    refusal = {"error": {"message": "no such grammar", "type": "BadRequestError", "param": None, "code": code}}
    with pytest.raises(Refusal, match="no such grammar") as refused:
        read(b"data: " + orjson.dumps(refusal) + b"\n\n" + DONE)
    assert refused.value.status == 400
    with pytest.raises(EngineFailure):  # an answer that has begun cannot be refused
        read(FIRST, chunk({"content": "a"}, [1], [-1.0]), b"data: " + orjson.dumps(refusal) + b"\n\n")


def test_a_client_gets_requested_logprobs_exactly_as_the_upstream_sent_them() -> None:
    entry = {
        "token": "\ufffd",
        "logprob": -1,
        "bytes": [240, 159],
        "top_logprobs": [{"token": "a", "logprob": -1.0, "bytes": [97]}],
    }
    choice = {"index": 0, "delta": {"content": "a"}, "token_ids": [1], "logprobs": {"content": [entry]}}

    async def main() -> list[Shown]:
        reply = UpstreamReply(Sampled(1.0, 1.0, 0), Clock(3), show_logprobs=True, expect_ids=True)
        reply.feed(b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n" + DONE)
        reply.ended(None)
        return [shown async for shown in reply]

    assert chat_logprobs(asyncio.run(main())[0].tokens) == [entry]
