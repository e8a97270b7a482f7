"""What ``octavo doctor`` tries: the cache's laws, attention's answers, and how fast memory is read.

Some ten seconds in all. NumPy alone is enough; with PyTorch its backends for CPUs are tried too.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import octavo
from octavo import index
from octavo.attention import Backend, backends
from octavo.planner.figures import counted
from octavo.testing import check_kernel, stress
from octavo.testing.conformance.cases import FEATURES

_VERBS, _SEED = 1000, 0
_TRIED = {"window", "sink_tokens", "prefill", "order", "return_lse", "scale"}
_SHAPES: dict[str, Any] = {"page_sizes": (16,), "heads": ((8, 2),), "dims": ((16, 16),)}
_BYTES = 64 * 2**20  # more than caches of processors hold
_PASSES, _PATIENCE = 8, 0.5  # the fastest of so many calls counts, of fewer after so many seconds
_HEADS, _DIM, _PAGE = 8, 128, 16


def tests() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(name, what a person reads, figures) of every test, as it ends.

    A test that fails has ``fault`` among its figures: what went wrong, in a line.
    """
    yield _guarded("cache", _try_cache)
    yield _guarded("oracle", _try_oracle)
    yield _guarded("memory", _read_memory)
    for backend in filter(_can_be_tried, backends()):
        yield _guarded(backend.name, partial(_try_backend, backend))


def _can_be_tried(backend: Backend) -> bool:
    """Whether it works here, on the CPU, and is not what the others are compared with."""
    if "torch" not in backend.requires or "cpu" not in (backend.devices or ("cpu",)):
        return False
    try:
        return backend.missing is None
    except Exception:  # noqa: BLE001  # which the report of backends tells
        return False


def _guarded(
    name: str, test: Callable[[], tuple[str, dict[str, Any]]]
) -> tuple[str, str, dict[str, Any]]:
    """The test's outcome; whatever it raises is a fault."""
    try:
        return name, *test()
    except Exception as error:  # noqa: BLE001  # whatever is broken here is what is looked for
        fault = " ".join(f"{type(error).__name__}: {error}".split())
        return name, f"FAULT: {fault}", {"fault": fault}


def _try_cache() -> tuple[str, dict[str, Any]]:
    """Random verbs on small caches of every kind, all laws checked after each."""
    stress(_VERBS, _SEED)
    return f"{_VERBS:,} random verbs on caches of every kind: every law held", {"verbs": _VERBS}


def _try_oracle() -> tuple[str, dict[str, Any]]:
    """The oracle's answers beside those of a second way to compute them."""
    cases = _compared(_plain, index=index.vllm, orders=("token",))
    return f"{counted(cases, 'answer')} agree with a second way to compute them", {"cases": cases}


def _compared(fn: Callable[..., Any], **options: Any) -> int:
    """How many answers of a kernel agree with the oracle's.

    Raises:
        KernelMismatch: one does not.
    """
    without = sorted(FEATURES - _TRIED)
    return check_kernel(fn, dtypes=("fp32",), without=without, **_SHAPES, **options).cases


def _plain(
    query: NDArray[Any],
    key_cache: NDArray[Any],
    value_cache: NDArray[Any],
    at: index.Vllm,
    *,
    window: int = 2**30,
) -> NDArray[Any]:
    """Attention token by token, written without the oracle's ways."""
    out = np.zeros((*query.shape[:2], value_cache.shape[3]))
    page_size, repeats = key_cache.shape[1], query.shape[1] // key_cache.shape[2]
    rows = np.repeat(np.arange(len(at.seq_lens)), np.diff(at.query_start_loc))
    for token, (row, position) in enumerate(zip(rows, at.positions, strict=True)):
        seen = np.arange(max(0, position + 1 - window), position + 1)
        slots = at.block_table[row, seen // page_size], seen % page_size
        keys, values = (c[slots].repeat(repeats, axis=1) for c in (key_cache, value_cache))
        scores = np.einsum("hd,khd->hk", query[token], keys) / query.shape[2] ** 0.5
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[token] = np.einsum("hk,khd->hd", weights / weights.sum(1, keepdims=True), values)
    return out


def _read_memory() -> tuple[str, dict[str, Any]]:
    """How fast one thread copies memory, read and written bytes counted once each."""
    source = np.ones(_BYTES // 8)
    target = np.empty_like(source)
    rate = 2 * _BYTES / _fastest(lambda: np.copyto(target, source))
    return f"{_shown(rate)} read and written by one thread", {"bytes_per_second": int(rate)}


def _try_backend(backend: Backend) -> tuple[str, dict[str, Any]]:
    """A backend's answers beside the oracle's, and how fast it reads keys and values."""
    import torch

    attend, order = backend.load().paged_attention, backend.orders[0]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small arrays; several threads would wait for each other
    try:
        cases = _compared(attend, to=torch.from_numpy, orders=(order,))
    finally:
        torch.set_num_threads(threads)
    rate = _BYTES / _fastest(_decode(attend, order))
    told = (
        f"{counted(cases, 'answer')} agree with the oracle's; a decode step reads {_shown(rate)} "
        f"of keys and values with {counted(threads, 'thread')}"
    )
    return told, {"cases": cases, "bytes_per_second": int(rate), "threads": threads}


def _decode(attend: Callable[..., object], order: str) -> Callable[[], object]:
    """One token's attention over `_BYTES` of fp32 keys and values in pages."""
    import torch

    length = _BYTES // (2 * 4 * _HEADS * _DIM)
    pages = length // _PAGE
    cache = octavo.Cache(octavo.Plan.from_pages(pages + 1, _PAGE))
    row = cache.admit([0] * length)
    cache.commit(cache.extend([row], length - 1))
    step = cache.extend([row])
    axes = (_HEADS, _PAGE) if order == "head" else (_PAGE, _HEADS)
    query, shape = torch.ones(1, _HEADS, _DIM), (pages + 1, *axes, _DIM)
    keys, values = torch.ones(shape), torch.ones(shape)
    return lambda: attend(query, keys, values, step, order=order)


def _fastest(call: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls, after one that warms up."""
    call()
    seconds: list[float] = []
    while len(seconds) < _PASSES and sum(seconds) < _PATIENCE:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _shown(rate: float) -> str:
    return f"{rate / 1e9:.1f} GB/s"
