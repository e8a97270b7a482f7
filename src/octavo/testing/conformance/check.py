"""`check_kernel`: any paged attention beside the oracle, over the whole grid."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.attention import Attended
from octavo.attention.parameters import KV_DTYPES
from octavo.checks import check_int
from octavo.errors import KernelMismatch, PlanError
from octavo.testing.conformance import settings
from octavo.testing.conformance.cases import FEATURES, Case, Grid
from octavo.testing.conformance.faults import suspects
from octavo.testing.conformance.kernel import REFUSALS, Convert, Kernel
from octavo.testing.conformance.place import describe_place, place_of
from octavo.testing.conformance.trials import Trial, build_trial

Answer = tuple[NDArray[Any], NDArray[Any] | None]

TOLERANCES = {"fp64": 1e-10, "fp32": 5e-6, "fp16": 5e-3, "bf16": 3e-2}
"""Largest |actual - expected| / (1 + |expected|) by the query's element type."""


class KernelReport(NamedTuple):
    """What `check_kernel` has tried.

    Attributes:
        cases: calls compared.
        refused: how often the kernel raised NotImplementedError or UnsupportedModel, by its words.
        left_out: features that the kernel lacks, of `cases.FEATURES`, sorted.
        errors: largest |actual - expected| / (1 + |expected|) by the query's element type, of those
            that were compared.
        tolerance: how large it might be, by the same.
    """

    cases: int
    refused: Mapping[str, int]
    left_out: tuple[str, ...]
    errors: dict[str, float]
    tolerance: dict[str, float]

    def __str__(self) -> str:
        errors = [f"{n} {e:.1e} of {self.tolerance[n]:.0e}" for n, e in self.errors.items()]
        lines = [f"{self.cases} cases agree; largest error: {', '.join(errors)}"]
        lines += [f"{count} cases refused: {why}" for why, count in self.refused.items()]
        lines += [f"left out: {', '.join(self.left_out)}"] * bool(self.left_out)
        return "\n".join(lines)


def check_kernel(
    fn: Callable[..., Any],
    *,
    index: Callable[..., Any] | None = None,
    to: Convert = lambda array: array,
    back: Convert = np.asarray,
    without: Sequence[str] = (),
    page_sizes: Sequence[int] = (1, 3, 16, 32),
    orders: Sequence[str] = ("token", "head"),
    dtypes: Sequence[str] = ("fp32", "fp64"),
    heads: Sequence[tuple[int, int]] = ((1, 1), (4, 4), (9, 3), (8, 2), (8, 1)),
    dims: Sequence[tuple[int, int]] = ((16, 16), (8, 24)),
    kv_dtypes: Sequence[str] = KV_DTYPES,
    tolerance: float | None = None,
    rounds: int = 1,
) -> KernelReport:
    """Compare ``fn`` with the oracle on steps that real caches make, until an answer differs.

    Steps mix decodes, prefills, chunks of prefills and rows that sit out, with contexts around
    multiples of a page, on pages that are scattered, used before and shared between rows. Slots
    that are in no row's context hold NaN, the null page zeros. In some cases queries, keys and
    values of the contexts are NaN too: it counts for who sees it, and for nobody else.

    Args:
        fn: called as ``fn(query, key_cache, value_cache, step, **options)``, as
            `octavo.attention.kernels.oracle.paged_attention` is, with the options that are not at
            their defaults. An option it has no parameter for is not tried; without ``order`` it is
            token-major.
        index: from a step to what ``fn`` takes in its place: a function of `octavo.index`, or one
            called the same way. ``fn`` gets no ``group`` then. Where it raises PlanError,
            for a page size its kernel does not take, the case counts as refused.
        to: from a NumPy array to an array of the kernel's library, such as ``torch.from_numpy``.
            In dtype bf16 it is given float32 and makes it bfloat16.
        back: from the kernel's array to a NumPy array; it must not share its memory with caches.
        without: features the kernel lacks although it has their parameters, of `FEATURES`:
            keywords, ``v_dim`` for latent caches, ``order`` for head-major pages, ``prefill`` for
            rows of several queries, ``strided`` for pages that lie apart, ``keyless`` for queries
            that see no key (index functions refuse those), ``nan`` for NaN in queries and contexts.
        page_sizes: tokens per page.
        orders: of the caches' axes, ``token`` or ``head``.
        dtypes: the element types, of `TOLERANCES`.
        heads: pairs of query and key/value heads.
        dims: pairs of k_dim and v_dim.
        kv_dtypes: element types of quantised caches: int8, fp8, int4.
        tolerance: largest |actual - expected| / (1 + |expected|); None: as `TOLERANCES` has it.
        rounds: each combines all rules, scenes and page sizes once, with other heads, dims, orders,
            dtypes and layouts than the round before.

    Returns:
        What was tried, to be printed.

    Raises:
        KernelMismatch: the first case whose answer differs, in words; also where ``fn`` raises
            anything but NotImplementedError and UnsupportedModel, which refuse the case.
        PlanError, LengthError: an argument is none of these, or nothing is left to try.

    Cost: ``rounds`` times 22 to 38 rules, 4 scenes, and ``page_sizes``; about 10 ms a case beside
    the kernel's own time.
    """
    settings.functions(fn=fn, to=to, back=back, **({} if index is None else {"index": index}))
    kernel = Kernel(fn, index, to, back)
    features = kernel.features() - set(settings.names("without", without, FEATURES))
    orders = settings.names("orders", orders, {"token", "head"})
    dtypes = settings.names("dtypes", dtypes, TOLERANCES)
    if "order" not in features and "token" not in orders:
        right = "with 'token', or fn with a parameter `order`: without it is token-major"
        raise PlanError("orders", orders, right)
    kv_dtypes = settings.names("kv_dtypes", kv_dtypes, KV_DTYPES)
    page_sizes = settings.sizes("page_sizes", page_sizes)
    heads, dims = settings.head_pairs("heads", heads), settings.pairs("dims", dims)
    allowed = {name: TOLERANCES[name] for name in dtypes}
    if tolerance is not None:
        allowed = dict.fromkeys(dtypes, settings.tolerance(tolerance))
    axes = (page_sizes, orders, dtypes, heads, dims, kv_dtypes)
    grid = Grid(*axes, features, check_int("rounds", rounds, 1))
    errors, refused, cases = dict[str, float](), Counter[str](), 0
    for case in grid.cases():
        try:
            error = check_case(kernel, case, allowed[case.dtype])
        except REFUSALS as refusal:
            refused[str(refusal)] += 1
        else:
            cases, errors[case.dtype] = cases + 1, max(error, errors.get(case.dtype, 0.0))
    if not cases:
        why = f"nothing is left to try; refused: {dict(refused)}"
        raise PlanError("page_sizes, orders, dtypes, heads, dims", axes[:5], why)
    compared = {name: errors[name] for name in dtypes if name in errors}
    return KernelReport(cases, refused, tuple(sorted(FEATURES - features)), compared, allowed)


def check_case(kernel: Kernel, case: Case, tolerance: float) -> float:
    """The largest error of one case.

    Raises:
        KernelMismatch: it is beyond ``tolerance``. NotImplementedError, UnsupportedModel: refused.

    Cost: two answers; to explain a difference, some twenty more.
    """
    trial = build_trial(case)
    expected = trial.reference()  # before the kernel can touch anything
    answer = kernel(trial)
    largest = 0.0
    for what, actual, right in zip(("out", "lse"), answer, expected, strict=True):
        if actual is None:
            continue
        if actual.shape != right.shape:
            text = f"{what} is of shape {actual.shape} and should be {right.shape}"
            raise KernelMismatch(case, text, text)
        errors = _errors(actual, right)
        if (errors > tolerance).any():
            place = place_of(trial, errors > tolerance, right, actual)
            fault = _explained(kernel, trial, answer, tolerance)
            text = describe_place(trial, place, what) + (
                f".\nThe kernel {fault}." if fault else "."
            )
            raise KernelMismatch(case, what, text, fault, **place._asdict())
        largest = max(largest, float(errors.max(initial=0.0)))
    return largest


def _errors(actual: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.float64]:
    """|actual - expected| / (1 + |expected|); inf where only one of them is no number."""
    wide = actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        errors = np.abs(wide - expected) / (1 + np.abs(expected))
    same = (wide == expected) | (np.isnan(wide) & np.isnan(expected))
    return np.where(same, 0.0, np.where(np.isnan(errors), np.inf, errors))


def _agree(answer: Answer, expected: Attended[Any], tolerance: float) -> bool:
    out, lse = answer
    if out.shape != expected.out.shape or (_errors(out, expected.out) > tolerance).any():
        return False
    return lse is None or not (_errors(lse, expected.lse) > tolerance).any()


def _explained(kernel: Kernel, trial: Trial, answer: Answer, tolerance: float) -> str | None:
    """What `_diagnose` finds; None too where the kernel fails in it: the difference stands."""
    try:
        return _diagnose(kernel, trial, answer, tolerance)
    except Exception:  # noqa: BLE001 - of a foreign function, and it must not hide the difference
        return None


def _diagnose(kernel: Kernel, trial: Trial, answer: Answer, tolerance: float) -> str | None:
    """What the kernel seems to do, by trying plainer calls of it and the oracle with faults."""

    def passes(plainer: Trial) -> bool:
        try:
            return _agree(kernel(plainer), plainer.reference(), tolerance)
        except (KernelMismatch, *REFUSALS):
            return False

    if trial.case.strided and passes(trial.together()):
        return "takes pages to lie next to each other: it passes where they do"
    if trial.case.rule.nan and (found := _misplaced(answer, trial.reference())):
        return found
    if not np.isnan(answer[0]).any():
        return _named(trial, answer, tolerance)
    seeing = np.isfinite(trial.reference().lse)
    if not np.isnan(answer[0][seeing]).any():
        return "gives NaN where a query sees no key"
    reads = "reads slots that are in no row's context"
    tame = build_trial(trial.case, poison=0.0)
    if passes(tame):
        return f"{reads} and weighs them by 0, which is NaN where they hold NaN"
    named = _named(tame, kernel(tame), tolerance)
    return f"{reads} and {named}" if named else reads


def _misplaced(answer: Answer, expected: Attended[Any]) -> str | None:
    """What became of NaN; None: it is where it should be."""
    pairs = [(a, e) for a, e in zip(answer, expected, strict=True) if a is not None]
    if any((np.isnan(actual) & ~np.isnan(right)).any() for actual, right in pairs):
        return "lets NaN reach queries that do not see it, or channels that do not hold it"
    if any((np.isnan(right) & ~np.isnan(actual)).any() for actual, right in pairs):
        return "loses NaN that a query sees"
    return None


def _named(trial: Trial, answer: Answer, tolerance: float) -> str | None:
    """The faults with which the oracle gives the same answer."""
    found = [name for name, wrong in suspects(trial) if _agree(answer, wrong, tolerance)]
    return " or ".join(found) or None
