"""A kernel as it is called: arguments converted, answers read, and nothing written on the way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import PlanError, UnsupportedModel
from octavo.testing.conformance.cases import FEATURES, KEYWORDS, Case
from octavo.testing.conformance.trials import Trial
from octavo.testing.conformance.words import KernelMismatch

Convert = Callable[[Any], Any]
REFUSALS = (NotImplementedError, UnsupportedModel)


@dataclass(frozen=True)
class Kernel:
    """How a kernel is called.

    Attributes:
        fn, index, to, back: as of `check_kernel`.
    """

    fn: Callable[..., Any]
    index: Callable[..., Any] | None
    to: Convert
    back: Convert

    def features(self) -> frozenset[str]:
        """Those of `FEATURES` that ``fn`` has a parameter for; all, where it cannot be seen.

        Functions of `octavo.index` refuse rows with more queries than keys.
        """
        found = FEATURES if self.index is None else FEATURES - {"keyless"}
        try:
            parameters = signature(self.fn).parameters
        except (TypeError, ValueError):
            return found
        if any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
            return found
        return found - (KEYWORDS - set(parameters))

    def __call__(self, trial: Trial) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Its answer to ``trial`` as arrays.

        Raises:
            KernelMismatch: it raises, answers in another form, or changes what it is given.
            NotImplementedError, UnsupportedModel: it raises one of these: it refuses the case. The
                first is also raised where ``index`` refuses the plan with a PlanError.
        """
        case, keywords = trial.case, trial.keywords
        at = self._addresses(trial, keywords)
        keywords = {
            name: self.to(value) if isinstance(value, np.ndarray) else value
            for name, value in keywords.items()
        }
        values = None if trial.values is None else self.to(trial.values)
        arrays = (self.to(trial.query), self.to(trial.keys), values)
        before = self._copies(trial, arrays)
        try:
            with np.errstate(all="ignore"):  # NaN is there on purpose
                answer = self.fn(*arrays, at, **keywords)
        except REFUSALS:
            raise
        except Exception as error:
            told = f"it raised {type(error).__name__}: {error}"
            raise KernelMismatch(case, told, told) from error
        self._check_unchanged(case, before, self._copies(trial, arrays))
        return self._read(case, answer)

    def _addresses(self, trial: Trial, keywords: dict[str, Any]) -> Any:
        """The step, or what ``index`` makes of it; ``group`` is then told."""
        if self.index is None:
            return trial.step
        try:
            return self.index(trial.step, keywords.pop("group", None), plan=trial.scene.plan)
        except PlanError as error:
            raise NotImplementedError(f"index refuses: {error}") from error

    def _copies(self, trial: Trial, arrays: Sequence[Any]) -> dict[str, NDArray[Any]]:
        """Copies of all that a kernel may read and must not change."""
        named = zip(("query", "key_cache", "value_cache"), arrays, strict=True)
        found = {name: np.array(self.back(array)) for name, array in named if array is not None}
        for name in ("counts", "positions", "query_start", "past", "context", "last"):
            found[f"step.{name}"] = getattr(trial.step, name).copy()
        found["the page table"] = trial.view.table.copy()
        return found

    def _check_unchanged(
        self, case: Case, before: dict[str, NDArray[Any]], after: dict[str, NDArray[Any]]
    ) -> None:
        for name, array in before.items():
            if not np.array_equal(array, after[name], equal_nan=array.dtype.kind == "f"):
                told = f"it has written into {name}, which it may only read"
                raise KernelMismatch(case, told, told)

    def _read(self, case: Case, answer: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
        if not case.lse:
            return np.asarray(self.back(answer)), None
        if not isinstance(answer, tuple) or len(answer) != 2:
            told = f"with return_lse it gave {type(answer).__name__}, not (out, lse)"
            raise KernelMismatch(case, told, told)
        out, lse = answer
        return np.asarray(self.back(out)), np.asarray(self.back(lse))
