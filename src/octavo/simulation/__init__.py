"""Traffic replayed on the real `octavo.Cache`: what will it hit, evict, refuse, and how long wait.

`read_trace` or `generate` make a `Trace`; `replay` runs it one request at a time, `serve` under a
`TimeModel`, which `fit` makes from steps that were measured; both return a `Run`. Needs NumPy
alone; `octavo.simulation.charts` needs matplotlib.
"""

from octavo.lazy import on_use
from octavo.simulation.replay import replay
from octavo.simulation.report import Outcome, Run, as_dict
from octavo.simulation.requests import Trace, TraceRequest
from octavo.simulation.routers import ROUTERS
from octavo.simulation.server import serve
from octavo.simulation.settings import Setting
from octavo.simulation.times import Fit, MeasuredStep, StepWork, TimeModel, fit
from octavo.simulation.traces import read_trace
from octavo.simulation.workloads import WORKLOADS, generate

__all__ = [
    "ROUTERS",
    "WORKLOADS",
    "Fit",
    "MeasuredStep",
    "Outcome",
    "Run",
    "Setting",
    "StepWork",
    "TimeModel",
    "Trace",
    "TraceRequest",
    "as_dict",
    "fit",
    "generate",
    "read_trace",
    "replay",
    "serve",
]

__getattr__ = on_use(__name__)
