"""Requests are measured before any loop over them, and a slow one delays no other client."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from one_conversation import AS_CHAT, AS_MESSAGES, AS_RESPONSES
from served import Server

from clawctl.collect.documents import read_file
from clawctl.engines.requests import Refusal
from clawctl.errors import ClawError
from clawctl.serve.dialects import chat, messages, responses
from clawctl.serve.hints import read_claims
from clawctl.serve.intake import LongBodyChecker
from clawctl.serve.request_sizes import ValueCount, check_request, is_plain, largest_body
from clawctl.serve.work_queues import KeyedLock
from scripts.benchmarks.hostile_stall import attacks
from tests.named_models import TEXT_MODEL

DIALECTS = {"chat": (chat, AS_CHAT), "responses": (responses, AS_RESPONSES), "messages": (messages, AS_MESSAGES)}


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 1000])
def test_values_are_counted_however_the_text_is_cut_and_not_within_strings(cut: int) -> None:
    value = {"a": [1, 2, {"b": 'x,{[\\","', "c\\": [[]]}], "\\": "\\\\", '"': ",,,"}
    count, raw = ValueCount(), orjson.dumps(value)
    for at in range(0, len(raw), cut):
        count.feed(raw[at : at + cut])
    assert count.values == 10  # 5 commas and 5 openings, none of them in a string


def test_a_long_text_that_fits_is_plain_and_many_values_images_and_longer_texts_are_not() -> None:
    words = orjson.dumps({"messages": [{"role": "user", "content": "some, words {[ " * 5000}]})
    many = orjson.dumps({"messages": [{"role": "user", "content": "a"}] * 3000})
    image = orjson.dumps({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]})
    assert [is_plain(body, 32_768) for body in (words, many, image)] == [True, False, False]
    assert not is_plain(words, len(words) // 5)
    assert not is_plain(words, None)


def test_a_body_without_images_is_no_larger_than_its_context_allows() -> None:
    assert largest_body(32, 65536, False) == (1 << 20) + 32 * 65536
    assert largest_body(32, 65536, None) == largest_body(32, None, False) == 32 << 20
    assert largest_body(32, 200_000, False) > 6 << 20  # an agent's request of 2 MB is ordinary


TOO_MUCH: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {"stop": ["x"] * 65}, "stop"),
    ("chat", {"stop": "x" * 257}, "stop"),
    ("messages", {"stop_sequences": ["x"] * 65}, "stop_sequences"),
    ("chat", {"guided_grammar": "x" * 300_000}, "guided_grammar"),
    ("chat", {"logit_bias": {str(i): 1 for i in range(60_000)}}, "logit_bias"),
    ("responses", {"metadata": {"a": "x" * 70_000}}, "metadata"),
    (
        "chat",
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {str(i): i for i in range(20_001)}}}]},
        "tools",
    ),
    ("messages", {"tools": [{"name": f"f{i}", "input_schema": {"a": [i]}} for i in range(5_000)]}, "tools"),
]


@pytest.mark.parametrize(("api", "change", "param"), TOO_MUCH)
def test_too_much_is_a_400_that_names_the_field(api: str, change: dict[str, Any], param: str) -> None:
    module, body = DIALECTS[api]
    with pytest.raises(Refusal) as refused:
        check_request(module.read(body | change, "m"))
    assert (refused.value.status, refused.value.param) == (400, param)


def test_arguments_that_are_json_in_a_string_are_counted_as_values() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" + "1," * 30_000 + "1]"}}
    said = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]}]}
    with pytest.raises(Refusal, match="arguments of one call"):
        check_request(chat.read(said, "m"))
    call["function"] = {"name": "f", "arguments": orjson.dumps({"text": "a, b, " * 30_000}).decode()}
    check_request(chat.read(said, "m"))


def test_a_prompt_far_beyond_the_context_is_refused_without_counting_it_to_its_end() -> None:
    counted = list[int]()

    def count(text: str) -> int:
        counted.append(len(text))
        return len(text) // 4

    ask = chat.read({"messages": [{"role": "user", "content": "word " * 60_000}]}, "m")
    check_request(ask, 75_000, count)
    del counted[:]
    with pytest.raises(Refusal, match="maximum context length is 20000 tokens") as refused:
        check_request(ask, 20_000, count)
    assert (refused.value.code, sum(counted)) == ("context_length_exceeded", 3 << 16)
    with pytest.raises(Refusal, match="at least"):
        check_request(chat.read({"messages": [{"role": "user", "content": "x" * (3 << 20)}]}, "m"), 1000)


def grows_linearly(work: Callable[[int], object], size: int) -> bool:
    """Whether eight times the size takes at most thirty times as long (of processor time, the best of three)."""

    def best(n: int) -> float:
        times = []
        for _ in range(3):
            began = time.process_time()
            work(n)
            times.append(time.process_time() - began)
        return min(times)

    return best(8 * size) <= 30 * best(size) + 0.05


def test_reading_many_items_takes_time_in_proportion() -> None:
    thought = {"type": "reasoning", "summary": [{"text": "x" * 300}]}
    said = {"role": "assistant", "content": "x" * 300}
    offered = [{"type": "function", "name": f"f{i}"} for i in range(16_000)]
    for item in (thought, said):
        assert grows_linearly(lambda n, item=item: responses.read({"input": [item] * n}, "m"), 2000)
    assert grows_linearly(lambda n: responses.read({"input": "x", "tools": offered[:n], "tool_choice": {
        "type": "allowed_tools", "tools": offered[:n]}}, "m"), 2000)  # fmt: skip
    assert grows_linearly(lambda n: read_claims({}, [{"role": "system", "content": "Runtime: sessionId\n" * n}]), 10_000)


def test_pieces_of_an_answer_are_joined_as_they_came() -> None:
    def thought(*texts: str) -> dict[str, Any]:
        return {"type": "reasoning", "summary": [{"text": text} for text in texts]}

    def said(text: str, role: str = "assistant") -> dict[str, Any]:
        return {"role": role, "content": text}

    items = [thought("a", "b"), said("c"), thought("d"), said("e"), said("f", "user")]
    first, _ = responses.read({"input": items}, "m").sent_messages
    assert (first["content"], first["reasoning_content"]) == ("ce", "abd")


def test_keys_take_turns() -> None:
    order = list[str]()

    async def main() -> None:
        turns = KeyedLock()

        async def work(key: str) -> None:
            async with turns.of(key):
                order.append(key)
                await asyncio.sleep(0)

        async with turns.of("first"):
            waiting = [asyncio.create_task(work(key)) for key in "aaaabc"]
            await asyncio.sleep(0)
            waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with turns.of("last"):
            pass

    asyncio.run(main())
    assert order == ["a", "b", "c", "a", "a"]


def test_long_bodies_are_checked_in_another_process_which_is_replaced_when_it_dies() -> None:
    tokenizer = Path(str(TEXT_MODEL)) / "tokenizer.json"

    async def main() -> None:
        vetting = LongBodyChecker("m", tokenizer)
        plain = orjson.dumps({"messages": [{"role": "user", "content": "some words " * 20_000}]})
        await vetting.check("anna", "chat", plain, 65536)
        with pytest.raises(Refusal, match="maximum context length is 1000"):
            await vetting.check("anna", "chat", plain, 1000)
        with pytest.raises(Refusal, match="the body is not JSON"):
            await vetting.check("anna", "messages", b"[" * 50_000, 65536)
        process = vetting._process
        assert process is not None
        process.kill()
        with pytest.raises(Refusal, match="too complex"):
            await vetting.check("anna", "chat", plain, 65536)
        await vetting.check("anna", "chat", plain, 65536)
        last = vetting._process
        assert last is not None
        vetting.stop()
        await last.wait()
        await process.wait()
        await asyncio.sleep(0.1)  # both pipes close

    asyncio.run(main())


def test_no_field_of_any_dialect_that_grows_is_our_fault_and_ordinary_long_ones_are_answered(server: Server) -> None:
    headers = {"authorization": "Bearer key"}
    with httpx.Client(timeout=120, headers=headers) as client:
        for attack in attacks(quick=False, sizes_mb=(0.3,))[::2]:
            answer = client.post(f"{server.url}/{attack.path}", content=attack.body())
            assert answer.status_code < 500, (attack.name, answer.text[:300])
        many = [{"role": "user", "content": "hi"}] * 40
        long = {"messages": many, "max_tokens": 1, "metadata": {"a": "word " * 100_000}}
        assert client.post(f"{server.url}/chat/completions", json=long).status_code == 200
        squeezed = client.post(f"{server.url}/chat/completions", content=b"x", headers={"content-encoding": "gzip"})
        assert squeezed.status_code == 400
    assert "Traceback" not in server.log.read_text()


def test_a_file_that_decompresses_to_a_hundred_times_its_size_is_not_held(tmp_path: Path) -> None:
    import gzip

    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(b" " * (64 << 20)))
    with pytest.raises(ClawError, match="decompresses to more than 32 MB"):
        read_file(bomb)
