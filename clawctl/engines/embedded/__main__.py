"""The process that holds the models: `python -m clawctl.engines.embedded DESCRIPTOR`, started by `process.ModelProcess`."""

import sys

from clawctl.engines.patches.imports import begin_torch

if __name__ == "__main__":
    begin_torch()
    from clawctl.engines.embedded.worker import main

    main(int(sys.argv[1]))
