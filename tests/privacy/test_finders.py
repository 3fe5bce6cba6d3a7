"""Finders of the user, and clawctl without its own one."""

import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import orjson
import pytest
import yaml

from clawctl.config import PrivacyConfig
from clawctl.errors import ClawError
from clawctl.privacy.finders import DEFAULT, FINDERS
from clawctl.privacy.redaction import redactor_of
from clawctl.privacy.search import NAMED
from tests.extension import needs

BADGES = """
import re
from clawctl.privacy.finders import Finder, Secret

class Badges(Finder):
    def find(self, text, kinds):
        for match in re.finditer("badge-[0-9]{6}", text):
            yield Secret(*match.span(), "token", "the number of a badge")

BADGES = Badges()
"""
TEXT = "badge-004711 opens it, and my password is hunter2!x"
KEY = "sk-" + "proj-" + "a1B2c3D4e5F6g7H8i9J0" * 2


@pytest.fixture
def badges(tmp_path: Path) -> str:
    (tmp_path / "badges.py").write_text(BADGES)
    return f"{tmp_path / 'badges.py'}:BADGES"


@needs("secrets")
def test_a_finder_of_the_user_replaces_clawctls_own_or_joins_it(badges: str) -> None:
    alone, both = (redactor_of(PrivacyConfig(finders=names)) for names in ([badges], ["rules", badges]))
    assert alone.text(TEXT) == "[redacted:token] opens it, and my password is hunter2!x"
    assert both.text(TEXT) == "[redacted:token] opens it, and my password is [redacted:password]"
    assert alone.value({"password": "hunter2!x"}) == {"password": "hunter2!x"}
    assert both.value({"password": "hunter2!x"}) == {"password": "[redacted:password]"}


@needs("secrets")
def test_a_finder_of_the_user_searches_escaped_and_encoded_text_too(badges: str) -> None:
    redactor = redactor_of(PrivacyConfig(finders=["rules", badges]))
    assert redactor.text("it is badge-\\u0030\\u00304711 now") == "it is [redacted:token] now"
    encoded = b64encode(b"badge-004711 opens the door").decode()
    assert redactor.text(f"it is {encoded} now") == "it is [redacted:token] now"


def test_a_finding_of_an_unwanted_kind_stays(badges: str) -> None:
    assert redactor_of(PrivacyConfig(redact=["card"], finders=[badges])).text(TEXT) == TEXT


def test_a_finders_span_beyond_the_text_hides_nothing_that_another_finder_found(tmp_path: Path, badges: str) -> None:
    (tmp_path / "wide.py").write_text(
        "from clawctl.privacy.finders import Finder, Secret\n"
        "class Wide(Finder):\n"
        "    def find(self, text, kinds):\n"
        "        yield Secret(5, 2, 'token')\n"
        "        yield Secret(-3, 3, 'token')\n"
        "        yield Secret(len(text) - 1, 10**9, 'token')\n"
        "WIDE = Wide()\n"
    )
    text = f"xxxx {TEXT} yyyy"
    alone = redactor_of(PrivacyConfig(finders=[badges])).text(text)
    both = redactor_of(PrivacyConfig(finders=[badges, f"{tmp_path / 'wide.py'}:WIDE"])).text(text)
    assert alone.startswith("xxxx ")
    assert both == f"[redacted:token]{alone[3:-1]}[redacted:token]"


@needs("secrets")
def test_a_finder_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ClawError, match=r"privacy\.finders: there is no finder 'rulez'"):
        redactor_of(PrivacyConfig(finders=["rulez"]))


def test_values_in_json_count_under_a_rule_of_the_default_finder() -> None:
    rules = pytest.importorskip("clawctl.extensions.secrets").RULES
    assert NAMED in {rule.name for rule in rules}
    assert set(DEFAULT) <= set(FINDERS.names())


def without_the_extension(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python as if the folder of the extension were removed."""
    code = f"import sys; sys.modules['clawctl.extensions.secrets'] = None\n{command}"
    return subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=folder, check=False)


def test_without_a_finder_a_stage_refuses_to_redact(tmp_path: Path) -> None:
    conversation = {"messages": [{"role": "user", "content": f"my key is {KEY}"}, {"role": "assistant", "content": "Thanks."}]}
    (tmp_path / "turns.jsonl").write_bytes(orjson.dumps(conversation))
    (tmp_path / "off.yaml").write_text(yaml.safe_dump({"privacy": {"redact": []}}))
    for arguments in (["serve", "--intercept", "--run", "a"], ["import", "turns.jsonl", "--run", "b"]):
        done = without_the_extension(f"sys.argv[1:] = {arguments}; from clawctl.cli import main; main()", tmp_path)
        assert done.returncode == 2, done.stderr
        assert "the finder 'rules' is not installed\n  reinstall clawctl with clawctl/extensions/secrets" in done.stderr
        assert "turn redaction off: privacy.redact: []" in done.stderr
    assert not (tmp_path / "a").exists()
    arguments = ["import", "turns.jsonl", "--run", "c", "--recipe", "off.yaml"]
    done = without_the_extension(f"sys.argv[1:] = {arguments}; from clawctl.cli import main; main()", tmp_path)
    assert done.returncode == 0, done.stderr


def test_without_a_finder_the_server_and_its_logs_work(tmp_path: Path) -> None:
    code = """
from clawctl.process import harmless
from clawctl.serve.metrics import UnknownFields
fields = UnknownFields()
fields.count("chat", ["color"])
print(harmless("a message"), fields.by_api())
"""
    done = without_the_extension(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "a message {'chat': {'color': 1}}\n"), done.stderr


@needs("secrets")
def test_a_log_line_compiles_few_of_the_expressions() -> None:
    code = """
import gc
from clawctl.process import harmless
from clawctl.extensions.secrets.text import _Uncompiled
harmless("http://127.0.0.1:30000/v1 serves smollm2, version 0")
made = [each for each in gc.get_objects() if isinstance(each, _Uncompiled)]
print(len(made), sum(len(vars(each)) > 2 for each in made))
"""
    made, compiled = map(int, subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split())
    assert compiled * 10 < made
