"""Who takes part in the next step: one scheduler, for the engine, the simulator and your loop."""

from octavo.scheduling.scheduler import Schedulable, Scheduler, Turn

__all__ = ["Schedulable", "Scheduler", "Turn"]
