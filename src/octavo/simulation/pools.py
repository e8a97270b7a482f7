"""How large the simulated pool is, by memory and model or by pages; and the settings of a sweep."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from octavo.cache.policies import POLICIES
from octavo.errors import BudgetTooSmall, LengthError, PlanError
from octavo.model.spec import ModelSpec
from octavo.planner.budget import parse_memory
from octavo.planner.figures import amount
from octavo.planner.request import Plan, memory_for, plan
from octavo.simulation.requests import Trace
from octavo.simulation.settings import Setting

Sweep = Literal["memory", "page-size", "policy"]
UNBOUNDED = "unbounded"
PAGE_SIZES = (16, 32, 64, 128, 256, 512)
_FEWEST, _MOST = 6, 10  # sizes of a sweep that names none, each twice the one before
_TOGETHER = 8  # sequences that its middle holds
_DEVICE = ("utilization", "weights", "activations", "other")
_PROBE = 2**50


@dataclass(frozen=True)
class Pool:
    """What a replica's plan is made from.

    Attributes:
        spec: the model; None: pages without bytes.
        memory: bytes; None: ``pages`` says how large it is.
        pages: pages, beside the one that a prompt's own token takes in a serial replay of hash ids;
            None with no ``memory``: as many as are ever computed.
        page_size: tokens per page; None: 512 for hash ids without a model, else 16.
        max_length: longest sequence in tokens; None: the model's own.
        dtype: element type of keys and values.
        max_step_tokens: most tokens of a step.
        options: others of `octavo.plan`.
        model: the model's name, for whoever reads the result.
    """

    spec: ModelSpec | None = None
    memory: int | None = None
    pages: int | None = None
    page_size: int | None = None
    max_length: int | None = None
    dtype: str = "bf16"
    max_step_tokens: int = 2048
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""

    def size_of_page(self, trace: Trace) -> int:
        """Tokens a page holds for this trace."""
        if self.page_size is not None:
            return self.page_size
        return trace.block or 16 if self.spec is None else 16

    def plan(self, trace: Trace, *, serial: bool) -> Plan:
        """The plan of one replica.

        Raises:
            PlanError, BudgetTooSmall: it cannot be made; memory was given without a model.
        """
        size = self.size_of_page(trace)
        if self.memory is not None:
            return self._from_memory(self.memory, size, self.options)
        pages = trace.most_pages(size, serial=serial) if self.pages is None else self.pages
        pages += self.own_page(trace, serial=serial)
        if self.spec is None:
            return Plan.from_pages(pages + 1, size, max_length=self.max_length)
        inside = {name: value for name, value in self.options.items() if name not in _DEVICE}
        probe = self._from_memory(_PROBE, size, inside)
        if probe.packed and self.pages is not None:
            right = (
                "the groups of this model have pages of different sizes: give bytes, such as 16GiB"
            )
            raise PlanError("pages", self.pages, right)
        return self._from_memory((pages + 1) * probe.page_bytes, size, inside)

    def own_page(self, trace: Trace, *, serial: bool) -> int:
        """Pages added for the token of its own that a prompt of hash ids ends with."""
        return int(serial and trace.padded and self.pages is not None)

    def setting(self, base: Setting, trace: Trace, *, serial: bool) -> Setting:
        """``base`` with the plan of this pool."""
        return replace(
            base,
            plan=self.plan(trace, serial=serial),
            max_length=self.max_length,
            model=self.model,
            own_page=self.own_page(trace, serial=serial),
        )

    def _from_memory(self, memory: int, size: int, options: Mapping[str, Any]) -> Plan:
        if self.spec is None:
            raise PlanError("memory", amount(memory), "it takes a model to turn it into pages")
        return plan(
            self.spec,
            memory,
            page_size=size,
            dtype=self.dtype,
            max_length=self.max_length,
            max_step_tokens=self.max_step_tokens,
            **options,
        )

    def sized(self, text: str) -> "Pool":
        """A pool of another size: pages as ``3000``, bytes as ``16GiB``, or ``unbounded``.

        Raises:
            PlanError: it is none of them.
        """
        if text == UNBOUNDED:
            return replace(self, memory=None, pages=None)
        if text.isdecimal():
            return replace(self, memory=None, pages=_whole("pages", text))
        return replace(self, memory=parse_memory(text), pages=None)

    def paged(self, size: int, trace: Trace) -> "Pool":
        """With another page size; a pool counted in pages holds as many tokens as before."""
        pages = self.pages
        if pages is not None:
            pages = max(1, pages * self.size_of_page(trace) // size)
        return replace(self, page_size=size, pages=pages)


class TooSmall(NamedTuple):
    """A value of a sweep that is too small to run.

    Attributes:
        at: its place among the sweep's values.
        label: the value.
        why: what would do.
    """

    at: int
    label: str
    why: str


def settings(
    trace: Trace,
    pool: Pool,
    base: Setting,
    sweep: Sweep | None = None,
    values: Sequence[str] = (),
    *,
    serial: bool,
) -> Iterator[Setting | TooSmall]:
    """The settings of a sweep over ``values``, or the one setting there is without.

    Args:
        trace: what will run.
        pool: size of each replica's pool.
        base: policy, replicas and router; its plan and label are replaced.
        sweep: what is varied; None: nothing.
        values: what it takes in turn; none: a range around what ``pool`` says.
        serial: whether the replay will be serial.

    Raises:
        PlanError: a value is none of the sweep's, or a plan cannot be made, of a sweep none.
    """
    if sweep is None:
        yield pool.setting(replace(base, label=_size_label(pool)), trace, serial=serial)
        return
    first: Exception | None = None
    made = 0
    for at, value in enumerate(values or _usual(sweep, pool, trace, serial=serial)):
        labelled, varied = replace(base, label=value), pool
        if sweep == "policy":
            labelled = replace(labelled, policy=value)
        else:
            varied = pool.sized(value) if sweep == "memory" else _paged(pool, value, trace)
        try:
            setting = varied.setting(labelled, trace, serial=serial)
        except (BudgetTooSmall, LengthError) as error:
            first = first or error
            own = varied.own_page(trace, serial=serial)
            yield TooSmall(at, value, _enough(error, beside=1 + own))
        else:
            made += 1
            yield setting
    if first is not None and not made:
        raise first


def _enough(error: BudgetTooSmall | LengthError, beside: int) -> str:
    """What would do; ``beside``: pages that are there beside those wanted."""
    if isinstance(error, BudgetTooSmall):
        return f"at least {amount(error.need)} needed"
    return str(error) if error.low is None else f"at least {error.low - beside:,} pages needed"


def _paged(pool: Pool, value: str, trace: Trace) -> Pool:
    return pool.paged(_whole("page size", value), trace)


def _usual(sweep: Sweep, pool: Pool, trace: Trace, *, serial: bool) -> list[str]:
    if sweep == "policy":
        return list(POLICIES)
    if sweep == "page-size":
        return [str(size) for size in PAGE_SIZES]
    most = trace.most_pages(pool.size_of_page(trace), serial=serial)
    if pool.memory is None and (pool.pages is not None or pool.spec is None):
        start = -(-most // 2 ** (_MOST - 1)) if pool.pages is None else max(1, pool.pages // 8)
        return [str(pages) for pages in _doubled(start, most)]
    whole = replace(pool, memory=None, pages=None).plan(trace, serial=serial)
    if pool.memory is None:
        start = 1 << (_middle(pool, trace) // 8).bit_length()  # round sizes are easier to read
    else:
        start = max(1, pool.memory // 8)
    enough = whole.num_pages * whole.page_bytes + pool.options.get("weights", 0)
    sizes = _doubled(start, enough)
    return [amount(size).replace(" ", "").replace("bytes", "B") for size in sizes]


def _doubled(start: int, enough: int) -> list[int]:
    """``start``, twice that, and so on until all that is ever computed fits."""
    sizes = [start << power for power in range(_MOST)]
    needed = next((at for at, size in enumerate(sizes, start=1) if size >= enough), _MOST)
    return sizes[: max(_FEWEST, needed)]


def _middle(pool: Pool, trace: Trace) -> int:
    """Memory that holds 8 of the longest sequences: of the model's, or the trace's if shorter."""
    assert pool.spec is not None
    longest = max(request.length for request in trace.requests)
    limit = pool.max_length or pool.spec.max_length or longest
    return memory_for(
        pool.spec,
        sequences=_TOGETHER,
        length=min(limit, longest),
        page_size=pool.size_of_page(trace),
        dtype=pool.dtype,
        max_step_tokens=pool.max_step_tokens,
        **pool.options,
    )


def _size_label(pool: Pool) -> str:
    if pool.memory is not None:
        return amount(pool.memory)
    return UNBOUNDED if pool.pages is None else f"{pool.pages:,} pages"


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or not 0 < int(text[:12]) < 2**31:
        raise PlanError(name, text, "it must be a whole number of at least 1")
    return int(text)
