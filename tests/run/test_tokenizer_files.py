"""A tokenizer is identified by the meaning of its ids."""

from pathlib import Path

import orjson

from clawctl.run.model_files import tokenizer_fingerprint
from tests.named_models import TEXT_MODEL


def test_a_fingerprint_is_of_the_meaning_and_not_of_the_layout_of_the_file(tmp_path: Path) -> None:
    content = orjson.loads((TEXT_MODEL / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer.json").write_bytes(orjson.dumps(dict(reversed(content.items())), option=orjson.OPT_INDENT_2))
    assert tokenizer_fingerprint(str(tmp_path)) == tokenizer_fingerprint(str(TEXT_MODEL))
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (tmp_path / "tokenizer.json").write_bytes(orjson.dumps(content))
    assert tokenizer_fingerprint(str(tmp_path)) != tokenizer_fingerprint(str(TEXT_MODEL))


def test_where_there_is_no_tokenizer_there_is_no_fingerprint(tmp_path: Path) -> None:
    assert tokenizer_fingerprint(str(tmp_path)) is None
    assert tokenizer_fingerprint("nobody/such-a-model-that-was-never-loaded") is None
    (tmp_path / "tokenizer.json").write_text("{")
    assert tokenizer_fingerprint(str(tmp_path)) is None


def test_a_tokenizer_in_loose_files_has_one_too(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    first = tokenizer_fingerprint(str(tmp_path))
    (tmp_path / "merges.txt").write_text("a b")
    assert first is not None
    assert tokenizer_fingerprint(str(tmp_path)) not in (None, first)
