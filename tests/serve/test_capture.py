"""Many exchanges that end at once: each is written, in order, before its answer ends, also when serve ends."""

import asyncio
from itertools import count
from pathlib import Path

import orjson

from clawctl.config import PrivacyConfig
from clawctl.run.rows import Exchange
from clawctl.serve.capture import Capture


def exchange(i: int, key: str = "default") -> Exchange:
    return Exchange(
        exchange_id=str(i), created_at=0.0, finished_at=1.0, api="chat", key=key, status="ok", model="m",
        messages=[{"role": "user", "content": f"question {i}"}],
        tools=None, response=None, finish_reason=None, prompt_ids=None, completion_ids=None, logprobs=None, policy_version=None,
        policy_version_end=None, temperature=1.0, top_p=1.0, top_k=0, hints={}, untrainable_reason=None,
    )  # fmt: skip


def written(folder: Path) -> list[str]:
    """The exchanges of the whole lines: another one's line may be half written at the moment of reading."""
    whole = [path.read_bytes().rpartition(b"\n")[0] for path in folder.glob("*.jsonl")]
    return [orjson.loads(line)["exchange_id"] for text in whole for line in text.splitlines()]


def test_simultaneous_exchanges_are_written_in_order_and_before_their_answers_end(tmp_path: Path) -> None:
    capture = Capture(tmp_path, PrivacyConfig())

    async def one(i: int) -> bool:
        await capture.write(exchange(i))
        return str(i) in written(tmp_path)

    async def main() -> list[bool]:
        return await asyncio.gather(*(one(i) for i in range(50)))

    assert all(asyncio.run(main()))
    capture.close()
    assert written(tmp_path) == [str(i) for i in range(50)]


def test_exchanges_that_wait_when_the_loop_ends_are_written(tmp_path: Path) -> None:
    capture = Capture(tmp_path, PrivacyConfig())

    async def main() -> None:
        keeping = [asyncio.create_task(capture.write(exchange(i))) for i in range(5)]
        await asyncio.sleep(0)  # all have begun, none is awaited
        assert not any(task.done() for task in keeping)

    asyncio.run(main())
    capture.close()
    assert sorted(written(tmp_path)) == ["0", "1", "2", "3", "4"]


SLOW = """
import time
from clawctl.privacy.finders import Finder

class Slow(Finder):
    def find(self, text, kinds):
        time.sleep(0.003)
        return ()

SLOW = Slow()
"""


def test_a_key_that_never_pauses_does_not_keep_further_keys_from_a_thread(tmp_path: Path) -> None:
    finder = tmp_path / "slow.py"
    finder.write_text(SLOW)
    capture = Capture(tmp_path, PrivacyConfig(finders=[f"{finder}:SLOW"]))
    busy = [f"busy{number}" for number in range(32)]  # as many as there are threads
    numbers = count()

    async def main() -> None:
        async def ask(key: str) -> None:
            while True:
                await capture.write(exchange(next(numbers), key))

        asking = [asyncio.create_task(ask(key)) for key in busy for _ in range(4)]  # some wait whenever one is written
        while capture.written < len(busy):  # each thread has begun
            await asyncio.sleep(0.05)
        await capture.write(exchange(-1, "late"))
        async with asyncio.timeout(60):
            while "-1" not in written(tmp_path):
                await asyncio.sleep(0.05)
        for task in asking:
            task.cancel()

    asyncio.run(main())
    capture.close()
