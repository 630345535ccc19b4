"""Runs a module of the engine for plan or launch: `python -m dptrain.engine.program MODULE PID`, ended when the process PID ends.

That is arranged before the module is read: loading its libraries takes seconds, in which the other process may be killed.
"""

from __future__ import annotations

import runpy
import sys

from dptrain.records.process import end_with_parent

if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
