"""Who takes part in the next step: one scheduler, for the engine, the simulator and your loop."""

from octavo.scheduling.scheduler import WATERMARK, Schedulable, Scheduler, Turn, check_watermark

__all__ = ["WATERMARK", "Schedulable", "Scheduler", "Turn", "check_watermark"]
