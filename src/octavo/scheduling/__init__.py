"""Who takes part in the next step: one scheduler, for the engine, the simulator and your loop."""

from octavo.scheduling.host import HostPages
from octavo.scheduling.order import PATIENCE
from octavo.scheduling.requests import WATERMARK, Schedulable, Turn, check_watermark
from octavo.scheduling.scheduler import Scheduler

__all__ = [
    "PATIENCE",
    "WATERMARK",
    "HostPages",
    "Schedulable",
    "Scheduler",
    "Turn",
    "check_watermark",
]
