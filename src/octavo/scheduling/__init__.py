"""Who takes part in the next step: one scheduler, for the engine, the simulator and your loop."""

from octavo.scheduling.order import PATIENCE
from octavo.scheduling.requests import Schedulable, Turn
from octavo.scheduling.scheduler import WATERMARK, Scheduler, check_watermark

__all__ = ["PATIENCE", "WATERMARK", "Schedulable", "Scheduler", "Turn", "check_watermark"]
