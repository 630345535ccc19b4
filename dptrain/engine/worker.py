"""The entry of every rank: open, set up, run, close. `python -m dptrain.engine.worker RUN_DIR`, or called by submitit."""

from __future__ import annotations

import sys
import warnings

from dptrain.engine.context import disconnect
from dptrain.engine.session import leave_failed, open_session, start_session
from dptrain.engine.watch import Requests, Watch


def main(run_dir: str) -> None:
    """Do this rank's share of the run in `run_dir`; returns after the last record, exits non-zero otherwise."""
    paths, attempt, env, events = open_session(run_dir)
    watch = Watch(events, setup_timeout_s=600, stall_timeout_s=600)
    requests = Requests(events, watch)
    requests.install()
    watch.start()
    # plan says it before the queue, and names the ranks.
    warnings.filterwarnings("ignore", message="Only .* ranks have patches to process")
    try:
        session = start_session(paths, attempt, env, events, watch, requests)
        if session.intent.task == "train":
            from dptrain.engine.trainer import run
        else:
            from dptrain.engine.reconstruct import run
        tiles = run(session)
        session.enter("close")
        session.final(tiles)
        disconnect()
    except BaseException as error:
        leave_failed(error, events, watch)
    watch.close()
    events.close()


if __name__ == "__main__":
    main(sys.argv[1])
