"""Where an answer differs first, in words: which row, and which keys on which pages."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from octavo.attention.kernels.oracle import visible
from octavo.testing.conformance.scenes import SceneRow
from octavo.testing.conformance.trials import Trial


class Place(NamedTuple):
    """Where an answer differs first; fields as of `KernelMismatch`."""

    row: int
    token: int
    head: int
    position: int
    page: int
    expected: float
    actual: float


def place_of(trial: Trial, wrong: Any, expected: Any, actual: Any) -> Place:
    """The first token and head in ``wrong``, bool[T, H, ...]. O(T * H * dim).

    Args:
        expected, actual: [T, H, ...], both answers.
    """
    token, head = (int(n) for n in np.argwhere(wrong)[0][:2])
    row = int(np.searchsorted(trial.step.query_start, token, side="right")) - 1
    position = int(trial.step.positions[token])
    page = 0
    if position >= 0:
        page = int(trial.view.table[row, position // trial.case.page_size])
    both = np.atleast_1d(expected[token, head]), np.atleast_1d(actual[token, head])
    error = np.where(np.isfinite(both[1]), np.abs(both[0] - both[1]), np.inf)
    at = int(np.argmax(error))
    return Place(row, token, head, position, page, float(both[0][at]), float(both[1][at]))


def describe_place(trial: Trial, place: Place, what: str) -> str:
    """Two sentences: the query and its answer; the keys it may see, page by page. O(context)."""
    case, row = trial.case, trial.scene.rows[place.row]
    context = row.past + row.new
    about = f"{_kind(row)}, context {context}, page size {case.page_size}{_window(trial)}"
    return (
        f"row {place.row} ({about}): {what} of the query at position {place.position}, head "
        f"{place.head} is {place.actual:.6g} and should be {place.expected:.6g}; "
        f"it may see {_keys(trial, place)}"
    )


def _kind(row: SceneRow) -> str:
    if row.past < 0:
        return "queries before any key"
    kind = "decode" if row.new == 1 else "prefill" if row.past == 0 else "chunk of a prefill"
    return f"{kind}, first pages shared" if row.shares else kind


def _window(trial: Trial) -> str:
    window = trial.options.get("window")
    sinks = trial.options.get("sink_tokens", 0)
    text = "" if window is None else f", window {window}"
    return text + (f" and {sinks} sink tokens" if sinks else "")


def _keys(trial: Trial, place: Place) -> str:
    row = trial.scene.rows[place.row]
    every = np.arange(row.past + row.new)
    options = trial.options
    seen = visible(
        np.array([place.position]),
        every,
        causal=options.get("causal", True),
        window=options.get("window"),
        sink_tokens=options.get("sink_tokens", 0),
    )
    keys = every[seen[0]]
    if not keys.size:
        return "no key"
    table = trial.view.table[place.row]
    parts = [
        _stretch(keys_of_page, table, trial.case.page_size)
        for keys_of_page in _by_page(keys, trial)
    ]
    if len(parts) > 4:
        parts[2:-1] = [f"{len(parts) - 3} pages more"]
    return f"{keys.size} key{'s' * (keys.size > 1)}: " + ", ".join(parts)


def _by_page(keys: Any, trial: Trial) -> Iterator[Any]:
    """Runs of neighbouring keys on one page."""
    columns = keys // trial.case.page_size
    breaks = np.flatnonzero((np.diff(keys) != 1) | (np.diff(columns) != 0)) + 1
    yield from np.split(keys, breaks)


def _stretch(keys: Any, table: Any, page_size: int) -> str:
    first, last = int(keys[0]), int(keys[-1])
    page = int(table[first // page_size])
    if first == last:
        return f"{first} on page {page} (offset {first % page_size})"
    return f"{first}..{last} on page {page} (offsets {first % page_size}..{last % page_size})"
