"""Token ids are searched as well: a secret in them removes them from the capture, and the turn from training."""

import argparse
from pathlib import Path
from typing import Any

import orjson

from clawctl.collect.redacted import redacted
from clawctl.config import Recipe
from clawctl.privacy.redaction import Redactor
from clawctl.run.model_files import IdReader
from scripts.benchmarks import hostile_ids
from tests.extension import needs
from tests.judge.made_turns import turn
from tests.privacy.made import exchange

ALWAYS = Recipe().privacy.redact
KEY = "sk-" + "proj-" + "a1B2c3D4e5F6g7H8i9J0" * 2


class Letters:
    """A tokenizer with one id per character, which counts the ids that it decodes."""

    def __init__(self) -> None:
        self.decoded = 0

    def __call__(self, ids: list[int]) -> str:
        self.decoded += len(ids)
        return "".join(map(chr, ids))


def ids(text: str) -> list[int]:
    return list(map(ord, text))


def captured(prompt: str, completion: str, redactor: Redactor) -> Any:
    made = exchange([], prompt_ids=ids(prompt), completion_ids=ids(completion), logprobs=[-0.5] * len(completion))
    return redactor.exchange(made)


@needs("secrets")
def test_ids_that_decode_to_a_secret_are_not_written_although_the_text_is_clean() -> None:
    redactor = Redactor(ALWAYS, decode=Letters())
    for prompt, completion in ((f"use {KEY}", "fine"), ("hi", f"take {KEY}"), (f"use {KEY[:20]}", KEY[20:])):
        clean = captured(prompt, completion, redactor)
        assert (clean.prompt_ids, clean.completion_ids, clean.logprobs) == (None, None, None)
        assert clean.untrainable_reason == "redacted"
    kept = captured("hi", "fine", redactor)
    assert kept.untrainable_reason is None
    assert bytes(kept.completion_ids) == b"fine"


@needs("secrets")
def test_a_history_that_is_sent_again_is_decoded_once() -> None:
    letters = Letters()
    redactor, history = Redactor(ALWAYS, decode=letters), "word " * 2000
    for number in range(10):
        history += f"turn {number}. "
        assert captured(history, "fine", redactor).untrainable_reason is None
    assert letters.decoded < 2 * len(history)
    assert captured(history + f"use {KEY}", "fine", redactor).untrainable_reason == "redacted"
    assert (
        captured(history + f"use {KEY}", "fine", redactor).untrainable_reason == "redacted"
    )  # nothing of it is remembered as clean
    for at in range(400, 2600, 97):  # wherever the remembered beginning ends
        assert captured(f"{history[:at]} {KEY}", "fine", redactor).prompt_ids is None


@needs("secrets")
def test_a_turn_of_own_code_is_looked_through_by_its_ids_too() -> None:
    original = turn([{"role": "user", "content": "hi"}], "fine", None, prompt_ids=ids(f"use {KEY}"))
    clean = redacted(original, Redactor(ALWAYS, decode=Letters()))
    assert (clean.prompt_ids, clean.trainable, clean.untrainable_reason) == (None, False, "redacted")


def test_without_a_tokenizer_nothing_is_decided(tmp_path: Path) -> None:
    assert IdReader(str(tmp_path))([1, 2, 3]) == ""
    reader = IdReader(Recipe().model_path)
    assert reader([]) == ""
    assert reader([5, -1, 1 << 40]) == reader([5])


@needs("secrets")
def test_no_form_of_a_planted_secret_is_kept_by_a_real_server(tmp_path: Path) -> None:
    rows = {
        row.metric: row.value for row in hostile_ids.rows(argparse.Namespace(quick=True, seed=0), tmp_path) if row.case == "ids"
    }
    assert rows["secrets_kept"] == 0
    assert rows["refused"] == 0
    assert rows["clean_captures_with_ids"] == 1


@needs("secrets")
def test_parts_of_every_kind_are_one_text() -> None:
    redactor = Redactor(ALWAYS)
    for parts in (
        [KEY[:12], KEY[12:]],
        [{"type": "text", "text": KEY[:12]}, {"type": "refusal", "refusal": KEY[12:]}],
        [{"type": "thinking", "thinking": KEY[:12]}, {"type": "text", "text": KEY[12:]}],
        [KEY[:12], {"type": "input_text", "text": KEY[12:]}],
    ):
        said = orjson.dumps(redactor.value({"role": "user", "content": parts})).decode()
        assert KEY[:10] not in said
        assert KEY[14:] not in said


@needs("secrets")
def test_a_name_and_its_value_in_two_fields_belong_together() -> None:
    clean = Redactor(ALWAYS).value({"env": [{"name": "DB_PASSWORD", "value": "blauwolke"}, {"name": "MODE", "value": "blauwolke"}]})
    assert [variable["value"] for variable in clean["env"]] == ["[redacted:password]", "blauwolke"]
