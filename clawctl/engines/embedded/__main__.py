"""The process that holds the models: `python -m clawctl.engines.embedded DESCRIPTOR`, started by `process.ModelProcess`."""

import gc
import sys

from clawctl.engines.patches.imports import begin_torch

if __name__ == "__main__":
    gc.disable()  # garbage collections would take a sixth of the time of the imports
    begin_torch()
    from clawctl.engines.embedded.worker import main

    gc.enable()
    main(int(sys.argv[1]))
