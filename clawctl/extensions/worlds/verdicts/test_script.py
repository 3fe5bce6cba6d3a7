"""Verdicts in Harbor's format: `tests/test.sh` writes a number to `/logs/verifier/reward.txt`.

The script itself is trusted, but the processes that it starts are not. Nothing is installed: programs that the script needs must be
on this machine, and `run_tests.py` replaces `pytest`. Before the script writes its reward, all processes that it started are
killed, and reward files that they wrote are removed.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from clawctl.extensions.worlds.sandbox import TOOLS, Limits, SandboxKind, SandboxOver, kind_of, open_sandbox
from clawctl.extensions.worlds.sandbox.tars import tar_of
from clawctl.extensions.worlds.verdicts import Graded, inside, nothing, shortened

PYTEST = ("pytest", "_pytest", "pluggy", "py", "iniconfig", "packaging", "pygments")
_LOGS = "/logs/verifier"
_SHELL = f"{TOOLS}/shell"  # an unreadable copy of bash, so other processes of the same user cannot access its memory
# The trap runs before each command of the script. `kill -9 -1` kills everything except the script and process 1.
_GUARD = f"""unset BASH_ENV
guard() {{
  case "$1" in *{_LOGS}*|*reward*) kill -9 -1 2>/dev/null; chmod -R u+rwX {_LOGS} 2>/dev/null;; esac
  case "$1" in *">"*reward*) chmod u+rwx {_LOGS} 2>/dev/null; rm -rf {_LOGS}/reward.*;; esac
}}
trap 'guard "$BASH_COMMAND"' DEBUG
"""
_INSTALL = """#!/bin/bash
case " $* " in *" install "*) ;; *) exit 0;; esac
missing=0
for name in "$@"; do
  case "$name" in -*|install) continue;; esac
  [ -e "/usr/share/doc/$name" ] || command -v "$name" >/dev/null && continue
  echo "E: no network, and $name is not on this machine" >&2
  missing=100
done
exit $missing
"""


def programs(kind: SandboxKind) -> dict[str, bytes]:
    """Programs that come first on the path of a test script, by path."""
    python = kind.python()
    tests = f'exec {python} {" ".join(kind.test_options())} {TOOLS}/run_tests.py "$@"\n'
    runner = """#!/bin/bash
words=()
while [ $# -gt 0 ]; do
  case "$1" in run|--quiet|-q|tool) shift;; --with|-p|--python|--from|-w) shift 2;; -*) shift;; *) break;; esac
done
[ $# -gt 0 ] || exit 0
exec "$@"
"""
    interpreter = f"""#!/bin/bash
if [ "$1" = -m ] && [ "$2" = pytest ]; then shift 2; {tests.strip()}; fi
if [ "$1" = -m ] && [ "$2" = pip ]; then exit 0; fi
GIVEN_PYTHONPATH=$PYTHONPATH PYTHONPATH={TOOLS}/python exec {python} -P -s "$@"
"""
    nothing_to_do = "#!/bin/bash\nexit 0\n"
    texts = {
        "pytest": f"#!/bin/bash\n{tests}", "py.test": f"#!/bin/bash\n{tests}", "uvx": runner, "uv": runner, "python": interpreter,
        "python3": interpreter, "apt-get": _INSTALL, "apt": _INSTALL, "curl": nothing_to_do, "pip": nothing_to_do,
        "pip3": nothing_to_do, "sudo": '#!/bin/bash\nexec "$@"\n',
    }  # fmt: skip
    return {f"{TOOLS}/bin/{name}": text.encode() for name, text in texts.items()} | {
        f"{TOOLS}/run_tests.py": inside("run_tests.py"),
        f"{TOOLS}/python/sitecustomize.py": inside("sitecustomize.py"),
        f"{TOOLS}/guard.sh": _GUARD.encode(),
        _SHELL: Path("/bin/bash").read_bytes(),
    }


async def run_script(
    tests: Mapping[str, bytes],
    snapshot: bytes,
    folder: str,
    limits: Limits,
    timeout: float,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Graded:
    """Run `tests/test.sh` on a snapshot. `variables` are the task's variables. Raises SandboxFailed."""
    written = {name: tests[name] for name in _turned(tests)}
    fixed = {**programs(kind_of(limits)), **{f"/tests/{name}": content for name, content in tests.items() if name not in written}}
    digests = {f"/tests/{name}": sha256(content).hexdigest() for name, content in written.items()}
    fixed[f"{TOOLS}/tests.json"] = json.dumps(digests).encode()
    limits = replace(limits, seconds=timeout + 30, network=False)
    async with open_sandbox(folder, limits, fixed, PYTEST, folders=("/tests",)) as sandbox:
        try:
            await sandbox.put(tar_of(written), "/tests")
            await sandbox.put(snapshot)
        except ValueError as error:
            return nothing(f"the snapshot does not fit: {error}")
        sandbox.define({name: value for name, value in variables.items() if name not in ("BASH_ENV", "TEST_DIR", "HOME")})
        try:
            await sandbox.run("mkdir -p $HOME/.local/bin; : > $HOME/.local/bin/env")
            variables = {"BASH_ENV": f"{TOOLS}/guard.sh", "TEST_DIR": "/tests", "PYTHONNOUSERSITE": "1"}
            ran = await sandbox.run([_SHELL, "/tests/test.sh"], timeout=timeout, environment=variables)
            if ran.timed_out:
                return nothing(f"the tests did not end within {timeout:.0f} s\n{shortened(ran.output)}")
            if ran.code < 0:
                return nothing(f"something ended the tests with signal {-ran.code}\n{shortened(ran.output)}")
            alive = await sandbox.run([sandbox.kind.python(), "-I", "-S", "-c", _OTHERS])
            if alive.output.strip() != "0":
                return nothing(f"processes were left running after the tests\n{shortened(ran.output)}")
            for name in _reward_files(tests):
                verdict_text = await sandbox.run(["/bin/cat", f"{_LOGS}/{name}"], timeout=5, output=65536, joined=False)
                if verdict_text.code == 0:
                    break
        except SandboxOver as error:
            return nothing(f"the tests ended the sandbox: {error}")
    score = _number(verdict_text.output) if verdict_text.code == 0 else None
    if score is None:
        return nothing(f"the tests wrote no reward from 0 to 1\n{shortened(ran.output)}")
    return Graded(score, shortened(ran.output))


def _turned(tests: Mapping[str, bytes]) -> set[str]:
    """The test files that `run_tests.py` has to rewrite for pytest. Others are read-only, so the graded code cannot edit them."""
    scripts = [content.decode(errors="replace") for name, content in tests.items() if not name.endswith(".py")]
    asked = "\n".join(line for script in scripts for line in script.replace("\\\n", " ").splitlines() if "pytest" in line)
    test_files = {name for name in tests if Path(name).name.startswith("test_") or name.endswith("_test.py")}
    return {name for name in tests if name.endswith(".py") and asked and (name in test_files or Path(name).name in asked)}


def _reward_files(tests: Mapping[str, bytes]) -> tuple[str, ...]:
    """The files that may hold the reward. A file that the tests never mention was not written by them and does not count."""
    names = ("reward.txt", "reward.json")
    return tuple(name for name in names if any(name.encode() in content for content in tests.values())) or names


_OTHERS = """import os
others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]
print(sum(open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()[0] != "Z" for name in others))
"""


def _number(text: str) -> float | None:
    """The reward in a text: "1", {"reward": 1}, or {"a": 1, "b": 0} (the mean). None if it is not a number from 0 to 1."""
    try:
        reward = json.loads(text)
        if isinstance(reward, dict):
            reward = reward["reward"] if "reward" in reward else sum(reward.values()) / len(reward)
        value = float(reward)
    except (ValueError, TypeError, KeyError, ZeroDivisionError):
        return None
    return value if 0 <= value <= 1 else None
