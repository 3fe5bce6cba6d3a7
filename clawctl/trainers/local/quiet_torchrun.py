"""torchrun for `clawctl train --gpus`: SIGTERM and Ctrl-C end it after its ranks, without a traceback of its own."""

import logging
import signal

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.run import main

if __name__ == "__main__":
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel("ERROR")
    try:
        main()
    except SignalException as error:  # each rank received the signal, finished its step and ended
        raise SystemExit(0 if error.sigval in (signal.SIGTERM, signal.SIGINT) else 1) from None
