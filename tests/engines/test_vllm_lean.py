"""What stands in the place of vLLM's own functions says what they say, and stands there only if they are the ones it was written
beside."""

import importlib
import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from vllm_served import PYTHON, has_vllm

from clawctl.config import DEMO_MODEL, environment_with
from clawctl.engines.vllm import inside

INSIDE = Path(inside.__file__).parent
BESIDE = Path(__file__).with_name("lean_beside_own.py")


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """Of vLLM's own functions and of ours, to the same questions."""
    if not has_vllm():
        pytest.skip(f"vLLM is not installed for {PYTHON}; CLAWCTL_VLLM_PYTHON names another Python")
    environment = environment_with({"PYTHONPATH": str(INSIDE), "OMP_NUM_THREADS": "1"})
    done = subprocess.run([PYTHON, str(BESIDE), str(DEMO_MODEL)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_the_installed_vllm_is_the_one_they_were_written_beside(answers: dict[str, Any]) -> None:
    """If not, nothing is wrong but the speed: look at vLLM's functions anew, then at the digests."""
    assert answers["replaced"] == [[True, True]] * 3


@pytest.mark.parametrize(("what", "count"), [("gathered", 5), ("updated", 5), ("told", 9)])
def test_they_answer_to_the_bit_what_vllms_own_answer(answers: dict[str, Any], what: str, count: int) -> None:
    assert len(answers[what]) == count
    for own, ours in answers[what]:
        assert ours == own


def test_a_token_of_half_a_character_has_the_text_that_vllm_finds_for_it(answers: dict[str, Any]) -> None:
    """Worked by hand: the bytes of the pear are told with the last of them, and those before it say nothing."""
    _, ours = answers["updated"][0]
    assert [text for position in ours[1] for *_, text in position][-5:] == ["", "", "", "🍐", "!"]


OTHER = """
class Sampler:
    @staticmethod
    def gather(x):
        return x

    def tell(self, x):
        return x
"""


def test_a_method_is_replaced_only_where_its_source_is_the_one_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine_of_tomorrow.py").write_text(textwrap.dedent(OTHER))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(INSIDE))
    lean = importlib.import_module("clawctl_lean")
    sampler = importlib.import_module("engine_of_tomorrow").Sampler

    def doubling(own: Any) -> Any:
        return lambda *given: 2 * own(*given)

    lean.replace("engine_of_tomorrow", "Sampler", "gather", doubling, "0" * 16)
    lean.replace("engine_of_tomorrow", "Sampler", "absent", doubling, "0" * 16)
    lean.replace("engine_of_tomorrow", "Absent", "gather", doubling, "0" * 16)
    lean.replace("engine_of_yesterday", "Sampler", "gather", doubling, "0" * 16)
    assert (sampler.gather(3), sampler().tell(3)) == (3, 3)
    lean.replace("engine_of_tomorrow", "Sampler", "gather", doubling, lean.digest(sampler.gather))
    lean.replace("engine_of_tomorrow", "Sampler", "tell", doubling, lean.digest(sampler.tell))
    assert (sampler.gather(3), sampler().gather(3), sampler().tell(3)) == (6, 6, 6)
    assert lean.digest(len) is None
