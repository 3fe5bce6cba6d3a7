"""Runs tests of the product in a copy of this checkout that lacks extensions.

`python -m scripts.without worlds,bucket tests/serve` leaves out the folders of both extensions and of their tests. What follows the
names is passed to pytest; without it, all tests run. Processes that the tests start lack the extensions too.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTENSIONS = sorted(folder.name for folder in (ROOT / "clawctl" / "extensions").iterdir() if (folder / "__init__.py").is_file())
# The finder of an editable installation would find the folders that are left out. Python runs this file in each process.
_NO_FINDER = 'import sys\n\nsys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in str(finder)]\n'
# In place of the extension `secrets`, without which a server that redacts does not start: a package whose finder finds nothing.
_NO_SECRETS = {
    "finds_nothing.py": """from clawctl.privacy.finders import Finder


class FindsNothing(Finder):
    def find(self, text, kinds):
        return ()


RULES = FindsNothing()
""",
    "finds_nothing-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: finds-nothing\nVersion: 1\n",
    "finds_nothing-1.dist-info/entry_points.txt": "[clawctl.finders]\nrules = finds_nothing:RULES\n",
}


def copy_without(names: list[str], folder: Path) -> dict[str, str]:
    """Copy the checkout into `folder`, without these extensions and their tests. Returns the environment of its processes."""
    left_out = {f"{place}/extensions/{name}/" for name in names for place in ("clawctl", "tests")}
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    for file in listed.stdout.splitlines():
        if not file.startswith(tuple(left_out)) and (ROOT / file).is_file():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, folder / file)
    for name, text in {"sitecustomize.py": _NO_FINDER, **(_NO_SECRETS if "secrets" in names else {})}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return {**os.environ, "PYTHONPATH": str(folder)}


def main() -> int:
    names = sys.argv[1].split(",") if len(sys.argv) > 1 else []
    if not names or set(names) - set(EXTENSIONS):
        print(f"name extensions to leave out, separated by commas: {', '.join(EXTENSIONS)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="clawctl-without-") as folder:
        environment = copy_without(names, Path(folder))
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(sys.argv[2:] or ["tests"])]
        return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
