"""Slurm without a cluster."""

import os
import stat
from pathlib import Path

import pytest

SBATCH = """#!/bin/bash
count=$(cat {folder}/count 2>/dev/null || echo 0)
cat > {folder}/script-$count
if grep -q nix {folder}/script-$count; then
  echo "sbatch: error: invalid partition specified: nix" >&2
  echo "sbatch: error: Batch job submission failed: Invalid partition name specified" >&2
  exit 1
fi
echo $((count + 1)) > {folder}/count
echo $((count + 1))
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands as scripts that answer as Slurm 22.05 did. The benchmark `launch` uses the real ones."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {
        "sbatch": SBATCH,
        "srun": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
        "sinfo": "#!/bin/bash\nprintf 'gpu\\ncpu\\ngpu\\n'\n",
        "scancel": '#!/bin/bash\necho "$@" >> {folder}/cancelled\n',
        "squeue": "#!/bin/bash\nfor n in $(seq 1 $(cat {folder}/count)); do\n"
        '  grep -qw $n {folder}/cancelled 2>/dev/null && echo "$n|CANCELLED|0|" || echo "$n|RUNNING|0|node$n"\ndone\n',
    }
    for name, text in programs.items():
        (folder / name).write_text(text.replace("{folder}", str(folder)))
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder
