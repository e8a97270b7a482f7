"""The planner: a model's spec and a memory budget to a pool of pages, explained to the byte.

Exact integers only; no float on the way to a byte count. Knows no device and allocates nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeGuard, get_args

from octavo.errors import BudgetTooSmall, PlanError
from octavo.model.dtypes import DType
from octavo.model.layers import Cross, LayerKind
from octavo.model.spec import ModelSpec
from octavo.planner.budget import MAX_BYTES, available_memory
from octavo.planner.components import Order, read_elements
from octavo.planner.figures import amount, counted, exact
from octavo.planner.layouts import Layout
from octavo.planner.plan import GroupPlan, Plan, as_plan
from octavo.planner.pools import MAX_PAGES, PlanRequest, PoolPlan, largest, parents
from octavo.planner.sharding import shard, stages_of

__all__ = ["GroupPlan", "Plan", "memory_for", "plan"]

_PAGE_SIZE = 16  # tokens per page where nobody says


def plan(
    spec: ModelSpec,
    memory: int | str | Sequence[int | str] | None = None,
    *,
    page_size: int = _PAGE_SIZE,
    dtype: str | DType = "bf16",
    scales: str | None = None,
    state_dtype: str | DType = "fp32",
    conv_dtype: str | DType | None = None,
    indexer_dtype: str | DType = "fp8",
    max_length: int | None = None,
    sequences: int | None = None,
    order: Order = "token",
    layout: Layout | None = None,
    draft: ModelSpec | None = None,
    kernel: str | None = None,
    max_step_tokens: int = 2048,
    tp: int = 1,
    pp: int = 1,
    input_tokens: int | None = None,
    utilization: float | str = 1,
    weights: int | str | None = None,
    activations: int | str = 0,
    other: int | str = 0,
) -> Plan:
    """How many pages of ``spec`` fit into ``memory``, and where each byte goes.

    Args:
        spec: what the model's layers keep; a window that holds the longest sequence is none.
        memory: of one rank, in bytes, as text such as ``"16GiB"`` (1024s) or ``"16GB"`` (1000s), or
            as a GPU such as ``"H100-80GB"`` (`octavo.planner.gpus.GPUS`); of several ranks the one
            with the least counts. None: exactly as much as ``sequences`` of ``max_length`` need.
        page_size: tokens per page, at most the longest sequence. In the flat layouts pages
            grow until they cover a state.
        dtype: element type of the stored keys and values.
        scales: of quantised keys and values: ``none``, ``tensor``, ``token`` or ``head``; None:
            ``head`` for int8 and int4, else ``none``.
        state_dtype: element type of recurrent tensors.
        conv_dtype: element type of convolution inputs; None: as keys and values.
        indexer_dtype: element type of an indexer's keys: ``fp8``, with a scale for each 128
            elements, or one of 16 bits or more.
        max_length: longest sequence in tokens, which must fit; None: the model's own, or as many
            tokens as fit beside a step of ``max_step_tokens`` if that is less.
        sequences: so many of ``max_length`` (else of one token) must fit at once, beside what a
            step of ``max_step_tokens`` holds in flight; None: one, in the steady state.
        order: ``token``: a page is (page_size, kv_heads, dim); ``head``: (kv_heads, page_size,
            dim).
        layout: ``component``, ``slab`` or ``packed``; None: packed where groups differ.
        draft: a draft model: its layers keep pages beside the model's, on every rank.
        kernel: name of the attention kernel that will read the pages; its demands are checked.
        max_step_tokens: most tokens per step.
        tp: ranks that share each layer's heads: it divides the key/value heads or is a multiple of
            them. pp: ranks that each take some of the layers.
        input_tokens: positions of the other input that cross attention sees; None: as many as the
            model says, and where it does not say they are left out.
        utilization: share of ``memory`` that may be used.
        weights, activations, other: bytes of it that are not the cache's; weights as None are not
            given, and the plan says so.

    Raises:
        PlanError: an argument out of range; it names the argument and what would be right.
        BudgetTooSmall: the memory does not hold the null page and these sequences; it names every
            term, and its ``need`` is exactly enough.

    Cost: O(layers + sizes of a parent tried).
    """
    from octavo.planner.solve import plan_ranks  # here: engines with their own storage need none

    _check_words(spec, draft, order, layout)
    if input_tokens is not None:
        spec = _with_inputs(spec, _check("input_tokens", input_tokens, MAX_PAGES))
    spec = spec.in_context()
    wanted = None if max_length is None else _check("max_length", max_length, MAX_PAGES)
    if memory is None and (wanted or spec.max_length) is None:
        raise PlanError(
            "max_length", None, "without memory, give the length of a sequence (--max-len)"
        )
    tp = _check("tp", tp, None)
    request = PlanRequest(
        memory=available_memory(memory, utilization, weights, activations, other),
        page_size=_check_page_size(page_size, wanted, spec.max_length),
        elements=read_elements(dtype, scales, state_dtype, conv_dtype, indexer_dtype),
        wanted=wanted,
        sequences=None if sequences is None else _check("sequences", sequences, None),
        order=order,
        layout=layout,
        draft=None if draft is None else shard(draft.in_context(), tp),
        max_step_tokens=_check("max_step_tokens", max_step_tokens, None),
        tp=tp,
        stages=stages_of(shard(spec, tp), _check("pp", pp, len(spec.layers))),
        spec=spec,
    )
    if kernel is not None:
        from octavo.planner.kernels import check_kernel

        check_kernel(kernel, request.page_size, order, request.stages)
    if memory is None:
        request = _with_enough(request._replace(wanted=wanted or spec.max_length))
    made = plan_ranks(request)
    if made is None:
        raise _too_small(request)
    made = _at_its_longest(made, request)
    if kernel is not None:
        from octavo.planner.kernels import check_reach

        check_reach(kernel, [tensor for one in made.stages or (made,) for tensor in one.tensors])
    return as_plan(made)


def _at_its_longest(made: PoolPlan, request: PlanRequest) -> PoolPlan:
    """The plan; where the model's own length does not run, the one for the longest that does."""
    from octavo.planner.solve import longest_alone, plan_ranks

    own = request.stages[0].max_length
    wished = request.wanted is not None or request.sequences is not None
    if wished or own is None or (made.max_length or own) >= own or not made.packed:
        return made
    longest = longest_alone(made, in_flight=True)
    longer = plan_ranks(request._replace(wanted=longest, sequences=1))
    return made if longer is None else replace(longer, _request=request)


def memory_for(spec: ModelSpec, *, sequences: int, length: int, **options: Any) -> int:
    """The fewest bytes of memory in which ``sequences`` of ``length`` tokens fit at once.

    Prompts computed in steps of ``max_step_tokens`` fit too: what windows hold in flight is in it.

    Args:
        spec: what the model's layers keep.
        sequences: how many.
        length: tokens of each.
        options: others of `plan`; with ``utilization``, ``weights`` and the like the answer is the
            memory of a device.

    Raises:
        PlanError: an argument out of range, or more pages than an int32 can number.

    Cost: some fifty plans.
    """
    made = plan(spec, max_length=length, sequences=sequences, **options)
    assert made.memory is not None
    return made.memory.device


def _with_inputs(spec: ModelSpec, length: int) -> ModelSpec:
    """The model with cross inputs of so many positions.

    Raises:
        PlanError: it has no cross attention.
    """

    def told(kind: LayerKind) -> LayerKind:
        return replace(kind, length=length) if isinstance(kind, Cross) else kind

    layers = tuple(
        tuple(map(told, item)) if isinstance(item, tuple) else told(item) for item in spec.layers
    )
    if layers == spec.layers and not any(isinstance(kind, Cross) for _, kind in spec.kinds()):
        raise PlanError("input_tokens", length, f"{spec.name} has no cross attention")
    return replace(spec, layers=layers)


def _check_words(spec: object, draft: object, order: object, layout: object) -> None:
    for name, model in (("spec", spec), ("draft", draft)):
        if not isinstance(model, ModelSpec) and (name == "spec" or model is not None):
            raise PlanError(name, model, "it must be a ModelSpec, as of ModelSpec.from_config")
    if order not in get_args(Order):
        raise PlanError("order", order, "it must be 'token' or 'head'")
    if layout is not None and layout not in get_args(Layout):
        raise PlanError("layout", layout, f"it must be one of {', '.join(get_args(Layout))}")


def _with_enough(request: PlanRequest) -> PlanRequest:
    """The request with the least memory of a device that is enough for it.

    Raises:
        PlanError: none is.
    """
    memory, need = request.memory, _least(request)
    if need is None:
        of = "the model's longest" if request.wanted is None else f"{request.wanted:,} tokens"
        right = f"sequences of {of} take more than 2**31 token slots, or 2**63 bytes"
        raise PlanError("sequences", request.sequences or 1, right)
    device = memory.device_for(need)
    left = available_memory(
        device, memory.utilization, memory.weights, memory.activations, memory.other
    )
    return request._replace(memory=left._replace(given=memory.given))


def _too_small(request: PlanRequest) -> PlanError:
    """What to raise where a request does not fit: how much would do, and what takes it."""
    from octavo.planner.solve import plan_ranks

    larger = _with_enough(request)
    enough = plan_ranks(larger)
    assert enough is not None
    terms, memory, device = _terms(enough, request), request.memory, larger.memory.device
    if memory.available != memory.device:
        terms = f"{memory.formula}; {terms}"
    return BudgetTooSmall(device, memory.device, f"{amount(device, up=True)}; {terms}")


def _terms(enough: PoolPlan, request: PlanRequest) -> str:
    """What takes the memory of a plan that is just large enough."""
    assert enough.budget is not None
    size, null, used = enough.page_bytes, enough.budget.null_page, enough.usable_pages
    many = counted(request.sequences or 1, "sequence")
    length = f" of {counted(request.wanted or 1, 'token')}"
    if enough.packed:
        parents = f"{counted(used, 'parent')} of {exact(size)}"
        return f"{exact(null)} of null pages and {parents} for {many}{length}"
    pages = f"{used + 1:,} pages (the null page and {used:,}) of {enough.page_size} tokens"
    return f"{pages}, {exact(size)} each, and alignment, for {many}{length}"


def _least(request: PlanRequest) -> int | None:
    """The fewest bytes for the cache that are enough; None: none are.

    Looked for around what the sequences take of a larger memory, which mostly is the answer.
    """
    from octavo.planner.solve import plan_ranks

    def planned(size: int) -> PoolPlan | None:
        return plan_ranks(request._replace(memory=request.memory._replace(available=size)))

    def falls_short(size: int) -> bool:
        return planned(size) is None

    low, high = 0, 2**16
    while (made := planned(high)) is None:
        if high == MAX_BYTES:
            return None
        low, high = high, min(2 * high, MAX_BYTES)
    guess = max(low + 1, high - _spare(made, request))
    step = 1
    if falls_short(guess):
        low = guess
        while guess + step < high and falls_short(guess + step):
            low, step = guess + step, 2 * step
        high = min(high, guess + step)
    else:
        high = guess
        while guess - step > low and not falls_short(guess - step):
            high, step = guess - step, 2 * step
        low = max(low, guess - step)
    return 1 + largest(falls_short, high - 1, low)


def _spare(made: PoolPlan, request: PlanRequest) -> int:
    """Bytes of a plan's memory that the sequences wanted do not take."""
    assert made.budget is not None
    many, in_flight = request.sequences or 1, request.sequences is not None
    taken = parents(made, many, request.wanted or 1, in_flight=in_flight)
    return made.budget.remainder + (made.usable_pages - taken) * made.page_bytes


def _check_page_size(value: object, wanted: int | None, own: int | None) -> int:
    """Tokens per page, at most those of the longest sequence: asked for, or the model's own."""
    if value == _PAGE_SIZE and wanted is not None and wanted < _PAGE_SIZE:
        right = f"it must be at least {_PAGE_SIZE}, a page's tokens; or give a smaller page_size"
        raise PlanError("max_length", wanted, right)
    return _check("page_size", value, wanted or own)


def _check(name: str, value: object, high: int | None) -> int:
    upper = "" if high is None else f" and at most {high}"
    upper += ", the longest sequence" if high is not None and name == "page_size" else ""
    if not _is_int(value) or value < 1 or (high is not None and value > high):
        raise PlanError(name, value, f"it must be an int of at least 1{upper}")
    return value


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
