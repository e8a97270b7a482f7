"""``octavo simulate --calibrate``: how long steps of octavo's engine take, on this machine.

Needs PyTorch and transformers, which it alone of `octavo simulate` imports.
"""

import argparse
from typing import Any

import octavo
from octavo import simulation
from octavo.checkpoints import hub
from octavo.cli import pull
from octavo.cli.generate import set_up_libraries
from octavo.cli.waiting import ProgressBar
from octavo.simulation import Fit, table
from octavo.simulation.times import FASTEST

_ROOM = (4, 1100)  # sequences and their tokens that the steps are measured on
_OPTIONS = {
    "step-ms": "milliseconds of every step",
    "prefill-rate": "prompt tokens per second",
    "decode-rate": "decoded tokens per second",
    "prefill-context-rate": "positions that prompt tokens attend to, per second",
    "decode-context-rate": "positions that decoded tokens attend to, per second",
}
"""The options that say what was measured, and what their numbers count."""


def calibrate(options: argparse.Namespace, limits: simulation.TimeModel, bar: ProgressBar) -> Fit:
    """Run the model for a while, and fit the model of time to its steps.

    Args:
        options: of the command; ``dtype`` is set to what the model was loaded in.
        limits: whose limits the engine has.
        bar: says what is waited for.
    """
    pull.require_engine()
    hub.find(options.calibrate)  # before PyTorch is imported, which takes seconds
    bar("loading PyTorch and transformers")
    set_up_libraries()
    from octavo.checkpoints import loading

    bar(f"loading {options.calibrate}")
    loaded = loading.load(options.calibrate, options.dtype or "auto")
    options.dtype = loaded.dtype
    return _fit(loaded, _plan(loaded, options), limits, bar)


def _plan(loaded: Any, options: argparse.Namespace) -> octavo.Plan:
    longest = loaded.spec.max_length
    sequences, length = _ROOM[0], min(_ROOM[1], longest or _ROOM[1])
    return octavo.plan(
        loaded.spec,
        sequences=sequences,
        max_length=length,
        page_size=options.page_size or 16,
        dtype=loaded.dtype,
        order="head",
    )


def _fit(loaded: Any, plan: octavo.Plan, limits: simulation.TimeModel, bar: ProgressBar) -> Fit:
    from octavo.engine import Engine
    from octavo.engine.calibration import measure

    options = {name: getattr(limits, name) for name in ("max_step_tokens", "max_sequences")}
    with Engine(loaded.model, plan, **options) as engine:
        steps = measure(
            engine,
            max_step_tokens=limits.max_step_tokens,
            progress=lambda done, whole: bar("measuring steps", done, whole),
        )
    return simulation.fit(steps, limits)


def lines(model: str, dtype: str, found: Fit) -> list[str]:
    """What was measured, how well it is told, and how to use it again."""
    times = found.model.to_dict() | {"step_ms": 1000 * found.model.step_seconds}
    given = {name: times[name.replace("-", "_")] for name in _OPTIONS}
    unsaid = simulation.TimeModel().to_dict()  # what an option is when it is not given
    words = {
        name: f"--{name} {value:.6g}"
        for name, value in given.items()
        if value < FASTEST or unsaid[name.replace("-", "_")] < FASTEST
    }
    width = max(map(len, words.values()))
    errors = f"{100 * found.mean_error:.0f} % off on average, {100 * found.worst_error:.0f} %"
    return [
        f"{model} in {dtype} on this machine. {table.about(found.model)}",
        f"{found.steps} kinds of steps were measured; this is {errors} at most.",
        "Times are of this machine's load meanwhile: measure when it is as busy as it will be.",
        *(f"  {word:<{width}}  {_OPTIONS[name]}" for name, word in words.items()),
        f"For another run: octavo simulate TRACE --timing {' '.join(words.values())}",
    ]
