"""Rotary positions: how far each pair of channels turns a position, plain or scaled.

Knows a config's rope parameters and no graph. Sources: RoFormer (arXiv 2104.09864), YaRN
(arXiv 2309.00071), and for what they leave open what transformers 5.24 computes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor, log, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.checks import check_positive
from octavo.errors import ConfigError, UnsupportedField

Floats = NDArray[np.floating[Any]]
Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rotary:
    """How positions turn the first channels of a query or key head; the others stay.

    Attributes:
        frequencies: radians per position, one per pair of channels.
        magnitude: factor of cosines and sines (YaRN's attention factor).

    Raises:
        PlanError: a frequency that is no finite number above 0, or such a magnitude; none at all.
    """

    frequencies: tuple[float, ...]
    magnitude: float = 1.0

    def __post_init__(self) -> None:
        for value in self.frequencies or (0.0,):
            check_positive("frequencies", value)
        check_positive("magnitude", self.magnitude)

    @classmethod
    def plain(cls, channels: int, theta: float = 10000.0) -> "Rotary":
        """Pair i of ``channels / 2`` turns by theta^(-2i / channels). O(channels)."""
        return cls(tuple(_plain(channels, theta).tolist()))

    @property
    def channels(self) -> int:
        """Channels of a head that are turned."""
        return 2 * len(self.frequencies)

    def tables(self, positions: int) -> tuple[Floats, Floats]:
        """Cosines and sines, [positions, channels / 2] each. O(their size)."""
        angles = np.arange(positions)[:, None] * np.array(self.frequencies)
        return np.cos(angles) * self.magnitude, np.sin(angles) * self.magnitude


def _plain(channels: int, theta: float) -> Floats:
    found: Floats = theta ** -(np.arange(0, channels, 2) / channels)
    return found


def read_rotary(parameters: Parameters, head_dim: int, longest: int, name: str) -> Rotary:
    """The rotary positions that a config's rope parameters say.

    Args:
        parameters: with ``rope_theta``; their ``rope_type`` is by default ``default``.
        head_dim: channels of a head.
        longest: ``max_position_embeddings``; positions beyond it are never turned here, so
            ``dynamic`` scaling, which begins there, changes nothing.
        name: of the field, for errors.

    Raises:
        UnsupportedField: a type or a parameter that is not computed here.
        ConfigError: a parameter is missing or no number of its range.

    Cost: O(head_dim).
    """
    given = {key: value for key, value in parameters.items() if value is not None}
    kind = given.get("rope_type", given.get("type", "default"))
    if not isinstance(kind, str) or kind not in _TYPES:
        right = f"computed here are {', '.join(_TYPES)}"
        raise UnsupportedField(f"{name}.rope_type", kind, right)
    scaling, known = _TYPES[kind]
    for key, value in given.items():
        if key not in _COMMON and key not in known:
            raise UnsupportedField(
                f"{name}.{key}", value, f"rope type {kind} has no such parameter"
            )
    numbers = _Numbers(given, name)
    part = numbers.above("partial_rotary_factor", 1.0)
    channels = int(head_dim * part)
    if part > 1 or channels < 2 or channels % 2:
        right = f"it must leave an even number of the {head_dim} channels of a head"
        raise ConfigError(f"{name}.partial_rotary_factor", part, right)
    theta = numbers.above("rope_theta")
    if theta <= 1:
        raise ConfigError(f"{name}.rope_theta", theta, "it must be above 1")
    frequencies, magnitude = scaling(_plain(channels, theta), numbers, theta, longest)
    return Rotary(tuple(frequencies.tolist()), magnitude)


class _Numbers:
    """The parameters as numbers, each refused by its name."""

    def __init__(self, given: Parameters, name: str) -> None:
        self._given, self._name = given, name

    def above(self, key: str, default: float | None = None) -> float:
        """``key`` as a finite number above 0; required where there is no default."""
        value = self._given.get(key, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < float("inf"):
            raise ConfigError(f"{self._name}.{key}", value, "it must be a finite number above 0")
        return float(value)

    def optional(self, key: str) -> float | None:
        """The same; None where it is left out."""
        return self.above(key) if key in self._given else None

    def flag(self, key: str, *, default: bool) -> bool:
        """``key`` as a bool."""
        value = self._given.get(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self._name}.{key}", value, "it must be true or false")
        return value


_Scaled = tuple[Floats, float]


def _as_it_is(frequencies: Floats, numbers: _Numbers, theta: float, longest: int) -> _Scaled:
    del numbers, theta, longest
    return frequencies, 1.0


def _dynamic(frequencies: Floats, numbers: _Numbers, theta: float, longest: int) -> _Scaled:
    numbers.above("factor")
    return _as_it_is(frequencies, numbers, theta, longest)


def _linear(frequencies: Floats, numbers: _Numbers, theta: float, longest: int) -> _Scaled:
    del theta, longest
    return frequencies / numbers.above("factor"), 1.0


def _llama3(frequencies: Floats, numbers: _Numbers, theta: float, longest: int) -> _Scaled:
    """Long waves are stretched by ``factor``, short ones not, those between in part."""
    del theta
    factor = numbers.above("factor")
    low, high = numbers.above("low_freq_factor"), numbers.above("high_freq_factor")
    before = numbers.above("original_max_position_embeddings", longest)
    if high <= low:
        right = f"it must be above low_freq_factor, {low}"
        raise ConfigError("rope_parameters.high_freq_factor", high, right)
    turns = before * frequencies / (2 * pi)  # within the length the model was first trained for
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (kept + (1 - kept) / factor), 1.0


def _yarn(frequencies: Floats, numbers: _Numbers, theta: float, longest: int) -> _Scaled:
    """Pairs that turn often are kept, those that turn seldom stretched, with a ramp between."""
    before = numbers.above("original_max_position_embeddings", longest)
    factor = numbers.above("factor", longest / before)
    channels = 2 * len(frequencies)

    def pair(turns: float) -> float:
        """Which pair, as a real number, turns so often within ``before`` positions."""
        return channels * log(before / (turns * 2 * pi)) / (2 * log(theta))

    first = pair(numbers.above("beta_fast", 32.0))
    last = pair(numbers.above("beta_slow", 1.0))
    if numbers.flag("truncate", default=True):
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, channels - 1)
    last += 0.001 if first == last else 0
    stretched = np.clip((np.arange(channels // 2) - first) / (last - first), 0, 1)
    scaled = frequencies * (1 - stretched) + frequencies / factor * stretched
    return scaled, _attention_factor(numbers, factor)


def _attention_factor(numbers: _Numbers, factor: float) -> float:
    given = numbers.optional("attention_factor")
    if given is not None:
        return given
    scale, whole = numbers.optional("mscale"), numbers.optional("mscale_all_dim")
    if scale is None or whole is None:
        return _magnitude(factor, 1.0)
    return _magnitude(factor, scale) / _magnitude(factor, whole)


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * log(factor) + 1.0


_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_BEFORE = "original_max_position_embeddings"
_MSCALES = ("attention_factor", "mscale", "mscale_all_dim")
_TYPES: dict[str, tuple[Callable[[Floats, _Numbers, float, int], _Scaled], tuple[str, ...]]] = {
    "default": (_as_it_is, ()),
    "linear": (_linear, ("factor",)),
    "dynamic": (_dynamic, ("factor",)),
    "llama3": (_llama3, ("factor", "low_freq_factor", "high_freq_factor", _BEFORE)),
    "yarn": (_yarn, ("factor", _BEFORE, "beta_fast", "beta_slow", "truncate", *_MSCALES)),
}
"""By ``rope_type``: what scales the frequencies, and the parameters it has."""
