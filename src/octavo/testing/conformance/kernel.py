"""A kernel as it is called: arguments converted, answers read, and nothing written on the way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import KernelMismatch, PlanError, UnsupportedModel
from octavo.testing.conformance.cases import FEATURES, KEYWORDS, Case
from octavo.testing.conformance.trials import Trial, arrays_of

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
        arrays = {"query": trial.query, "key_cache": trial.keys, "value_cache": trial.values}
        numbers = {name: each for name, each in keywords.items() if isinstance(each, np.ndarray)}
        given = {
            name: self.to(array) for name, array in (arrays | numbers).items() if array is not None
        }
        places = [given.get(name) for name in arrays]
        keywords |= {name: given[name] for name in numbers}
        before = self._copies(trial, given)
        try:
            with np.errstate(all="ignore"):  # NaN is there on purpose
                answer = self.fn(*places, at, **keywords)
        except REFUSALS:
            raise
        except Exception as error:
            why = f"it raised {type(error).__name__}: {error}"
            raise KernelMismatch(case, why, why) from error
        self._check_unchanged(case, before, self._copies(trial, given))
        return self._read(case, answer)

    def _addresses(self, trial: Trial, keywords: dict[str, Any]) -> Any:
        """The step, or what ``index`` makes of it; ``group`` is then left out."""
        if self.index is None:
            return trial.step
        try:
            return self.index(trial.step, keywords.pop("group", None), plan=trial.scene.plan)
        except PlanError as error:
            raise NotImplementedError(f"index refuses: {error}") from error

    def _copies(self, trial: Trial, given: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Copies of all that a kernel may read and must not change."""
        found = {name: np.array(self.back(array)) for name, array in given.items()}
        return found | {name: array.copy() for name, array in arrays_of(trial.step).items()}

    def _check_unchanged(
        self, case: Case, before: dict[str, NDArray[Any]], after: dict[str, NDArray[Any]]
    ) -> None:
        for name, array in before.items():
            now, floats = after.get(name), array.dtype.kind == "f"
            if now is None or not np.array_equal(array, now, equal_nan=floats):
                why = f"it has written into {name}, which it may only read"
                raise KernelMismatch(case, why, why)

    def _read(self, case: Case, answer: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
        if not case.lse:
            if isinstance(answer, tuple | list):
                why = f"it gave {type(answer).__name__} of {len(answer)}, and only out was asked"
                raise KernelMismatch(case, why, why)
            return self._array(case, "out", answer), None
        if not isinstance(answer, tuple) or len(answer) != 2:
            why = f"with return_lse it gave {type(answer).__name__}, not (out, lse)"
            raise KernelMismatch(case, why, why)
        out, lse = answer
        return self._array(case, "out", out), self._array(case, "lse", lse)

    def _array(self, case: Case, what: str, answer: Any) -> NDArray[Any]:
        """A copy, as a kernel may answer twice in the same memory."""
        try:
            found = np.array(self.back(answer))
        except Exception as error:
            why = f"its {what}, {type(answer).__name__}, is no array: {error}"
            raise KernelMismatch(case, why, why) from error
        if found.dtype.kind != "f" and found.dtype.name != "bfloat16":
            why = f"its {what} is {type(answer).__name__} of {found.dtype.name}, and no floats"
            raise KernelMismatch(case, why, why)
        return found
