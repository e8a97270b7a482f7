"""The one front door of attention: a step prepared once, and a layer's attention checked and run.

    parameters = Parameters(...)               once per layer
    prepared = backend.prepare(step, ...)      once per step: all that depends on the step
    prepared.run(q, k, v, parameters)          a layer: shapes, element types, devices

`PreparedStep.paged_attention` is all three in one call. Knows no library's arrays: a backend says
by `_check_arrays` what it can read, and by `_attend` what comes out.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any, ClassVar, Generic, Literal, NamedTuple, NoReturn, Unpack, overload

from octavo.attention.parameters import PLAIN, Keywords, Parameters
from octavo.attention.registry import Backend
from octavo.attention.sizes import A, LayerArrays, Sizes, page_axis, sizes_of
from octavo.cache.step import Step
from octavo.checks import check_flag, check_int, check_number, check_positive
from octavo.errors import LengthError, PlanError, UnsupportedModel, uncopied
from octavo.index.rows import StepRows


class Attended(NamedTuple, Generic[A]):
    """What attention gives.

    Attributes:
        out: [T, H, v_dim], weighted values.
        lse: [T, H], natural log of the sum of exp(score) over the keys a query sees; the sink logit
            is not among them, so that results over disjoint keys can be merged. Float32, or float64
            where that is computed in.
    """

    out: A
    lse: A


class LayerCall(NamedTuple, Generic[A]):
    """One layer's attention, all of it checked.

    Attributes:
        arrays: its query and caches.
        parameters: how it attends.
        sizes: the sizes of the arrays.
        scale: factor of the scores, its default filled in.
        lse: whether the lse is wanted.
    """

    arrays: LayerArrays[A]
    parameters: Parameters
    sizes: Sizes
    scale: float
    lse: bool


class PreparedStep(Generic[A]):
    """A step prepared for one backend; made once per step and used by all layers of its group.

    Args:
        step: rows, lengths and page tables; copied, so the step may be reused.
        page_size: tokens per page.
        group: the group that has the page table; None: the first token group.
        device: where the keys and values are; None: the backend's own kind.

    Attributes:
        backend: the facts of the backend.
        rows: the step's rows in the group.
        tokens: query tokens.
        page_size: tokens per page.

    Raises:
        PlanError, LengthError, UnknownGroup: as `octavo.index.rows.StepRows`.

    Cost: O(rows * width).
    """

    __reduce__ = uncopied("it is prepared for one step; prepare makes another")

    backend: ClassVar[Backend]

    def __init__(
        self, step: Step, *, page_size: int, group: str | None = None, device: Any = None
    ) -> None:
        del device  # arrays of NumPy have none
        self.rows = StepRows(step, page_size=page_size, group=group)
        self.tokens, self.page_size = self.rows.tokens, self.rows.page_size

    @overload
    def run(
        self,
        query: A,
        key_cache: A,
        value_cache: A | None,
        parameters: Parameters = ...,
        *,
        return_lse: Literal[True],
    ) -> Attended[A]: ...

    @overload
    def run(
        self,
        query: A,
        key_cache: A,
        value_cache: A | None,
        parameters: Parameters = ...,
        *,
        return_lse: Literal[False] = ...,
    ) -> A: ...

    def run(
        self,
        query: A,
        key_cache: A,
        value_cache: A | None,
        parameters: Parameters = PLAIN,
        *,
        return_lse: bool = False,
    ) -> A | Attended[A]:
        """One layer's attention of the step's query tokens over their sequences' pages.

        Args:
            query: [T, H, k_dim].
            key_cache: one layer's keys in the order of ``parameters``, or latent rows.
            value_cache: likewise its values; None: latent attention.
            parameters: how the layer attends.
            return_lse: whether to return ``Attended`` and not ``out`` alone.

        Raises:
            UnsupportedModel: the backend's kernel lacks what is wanted, or cannot run here.
            PlanError: arrays of a type or device it does not take; a number beyond what is computed
                in; a scale that is missing or of the wrong shape.
            LengthError: sizes that do not fit each other or the step, a page that does not exist,
                or keys that a query sees and no page holds.

        Cost: the checks O(1); the rest is the backend's.
        """
        call = self.check(LayerArrays(query, key_cache, value_cache), parameters, lse=return_lse)
        out, lse = self.attend(call)
        return Attended(out, lse) if return_lse else out

    def check(
        self, arrays: LayerArrays[A], parameters: Parameters = PLAIN, *, lse: bool = False
    ) -> LayerCall[A]:
        """What `run` checks of a layer, for `attend`, which checks nothing.

        Layers whose arrays are alike need but one check of a step: give `attend` the call with
        ``call._replace(arrays=...)``.

        Raises:
            UnsupportedModel, PlanError, LengthError: as `run`.

        Cost: O(1).
        """
        self._accept(arrays, parameters)
        return self._checked(arrays, parameters, lse=lse)

    def attend(self, call: LayerCall[A]) -> tuple[A, Any]:
        """What `run` computes, of a call that `check` made for this step.

        Returns:
            The output [T, H, v_dim], and the lse, which may be None unless ``call.lse``.
        """
        return self._attend(call)

    def repeated(self, call: LayerCall[A]) -> Callable[[LayerArrays[A]], A]:
        """What `attend` computes, of layers whose arrays are like those of ``call``.

        Args:
            call: one that `check` made for this step, without sink logits and without the lse.

        Returns:
            A function of a layer's arrays, with strides as in ``call`` but the query's, which gives
            the output [T, H, v_dim]. For one thread at a time.
        """
        return lambda arrays: self._attend(call._replace(arrays=arrays))[0]

    @overload
    @classmethod
    def paged_attention(
        cls,
        query: A,
        key_cache: A,
        value_cache: A | None,
        step: "Step | PreparedStep[A]",
        *,
        return_lse: Literal[True],
        **keywords: Unpack[Keywords],
    ) -> Attended[A]: ...

    @overload
    @classmethod
    def paged_attention(
        cls,
        query: A,
        key_cache: A,
        value_cache: A | None,
        step: "Step | PreparedStep[A]",
        *,
        return_lse: Literal[False] = ...,
        **keywords: Unpack[Keywords],
    ) -> A: ...

    @classmethod
    def paged_attention(
        cls,
        query: A,
        key_cache: A,
        value_cache: A | None,
        step: "Step | PreparedStep[A]",
        *,
        group: str | None = None,
        return_lse: bool = False,
        **keywords: Any,
    ) -> A | Attended[A]:
        """Attention of a step's query tokens over their sequences' pages, in one call.

        Args:
            query, key_cache, value_cache, return_lse: as `run` takes them.
            step: the step, or what ``prepare`` made of it (which has its group).
            group: the group that has the page table; None: the first token group.
            keywords: those of `Parameters`.

        Raises:
            PlanError: no step, or a ``group`` beside a prepared one.
            UnknownGroup: no such group.
            others: as `Parameters`, `StepRows` and `run` raise them.

        Cost: O(rows * width) unless the step is prepared, and `run`'s.
        """
        parameters = Parameters(**keywords)
        arrays = LayerArrays(query, key_cache, value_cache)
        cls._accept(arrays, parameters)
        if not isinstance(step, cls):
            size = key_cache.shape[page_axis(arrays, parameters.order)]
            device = getattr(query, "device", None)
            step = cls(step, page_size=size, group=group, device=device)  # type: ignore[arg-type]
        elif group is not None:
            right = f"a {cls.__name__} is made for its group; give it there"
            raise PlanError("group", group, right)
        out, lse = step.attend(step._checked(arrays, parameters, lse=return_lse))
        return Attended(out, lse) if return_lse else out

    @classmethod
    def _accept(cls, arrays: LayerArrays[A], parameters: Parameters) -> None:
        """Refuse what the backend's kernel lacks, by the facts, and arrays it cannot read. O(1)."""
        facts, kv_dtype = cls.backend, parameters.kv_dtype
        if arrays.values is None and not facts.latent:
            cls._refuse("latent attention", "the kernel takes keys and values as two tensors")
        if parameters.order not in facts.orders:
            right = f"the kernel reads {' and '.join(facts.orders)}-major pages"
            cls._refuse(f"order {parameters.order}", right)
        if kv_dtype is not None and kv_dtype not in facts.kv_dtypes:
            why = f"the {facts.name} backend reads no quantised caches"
            raise UnsupportedModel(f"kv_dtype {kv_dtype}", why)
        cls._check_arrays(arrays, parameters)

    def _checked(
        self, arrays: LayerArrays[A], parameters: Parameters, *, lse: bool
    ) -> LayerCall[A]:
        """What `check` returns, of arrays that were accepted."""
        check_flag("return_lse", lse)
        sizes = sizes_of(arrays, parameters)
        if sizes.tokens != self.tokens:
            why = "those of the step"
            raise LengthError("tokens of query", sizes.tokens, self.tokens, self.tokens, why)
        size = self.page_size
        check_int("page_size of key_cache", sizes.page_size, size, size, "the step's")
        self.rows.require(arrays.keys.shape[0])
        self.rows.require_seen(parameters.window, parameters.sink_tokens)
        scale = self._scale(parameters, sizes, self._computed_in(arrays.query))
        return LayerCall(arrays, parameters, sizes, scale, lse)

    @staticmethod
    def _scale(parameters: Parameters, sizes: Sizes, dtype: str) -> float:
        """The factor of the scores, which ``dtype`` must hold, and the softcap too."""
        if parameters.softcap is not None:
            check_positive("softcap", parameters.softcap, dtype)
        if parameters.scale is None:
            return 1 / sqrt(sizes.k_dim)
        return check_number("scale", parameters.scale, dtype)

    @classmethod
    def _refuse(cls, what: str, why: str) -> NoReturn:
        """Raise UnsupportedModel: the backend's kernel lacks ``what``."""
        raise UnsupportedModel(f"{what} in the {cls.backend.name} backend", why)

    @classmethod
    def _check_arrays(cls, arrays: LayerArrays[A], parameters: Parameters) -> None:
        """Refuse arrays that the backend cannot read. O(1)."""

    def _computed_in(self, query: A) -> str:
        """What scores are computed in: float64 or float32."""
        raise NotImplementedError

    def _attend(self, call: LayerCall[A]) -> tuple[A, Any]:
        """What `attend` returns."""
        raise NotImplementedError
