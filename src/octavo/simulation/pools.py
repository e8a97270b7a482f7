"""How large the simulated pool is, by memory and model or by pages; and the settings of a sweep."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from octavo.budget import parse_memory
from octavo.errors import PlanError
from octavo.explain import amount
from octavo.planning import Plan, plan
from octavo.policies import POLICIES
from octavo.simulation.requests import BLOCK, Trace
from octavo.simulation.settings import Setting
from octavo.spec import ModelSpec

Sweep = Literal["memory", "page-size", "policy"]
UNBOUNDED = "unbounded"
PAGE_SIZES = (16, 32, 64, 128, 256, 512)
_FACTORS = (1, 2, 4, 8, 16, 32)  # of an eighth
_PROBE = 2**50


@dataclass(frozen=True)
class Pool:
    """What a replica's plan is made from.

    Attributes:
        spec: the model; None: pages without bytes.
        memory: bytes; None: ``pages`` says how large it is.
        pages: pages, beside the one that a prompt's own token takes in a serial replay of hash ids;
            None with no ``memory``: as many as are ever computed.
        page_size: tokens a page; None: 512 for hash ids without a model, else 16.
        max_length: longest sequence in tokens; None: the model's own.
        dtype: element type of keys and values.
        max_step_tokens: most tokens of a step.
    """

    spec: ModelSpec | None = None
    memory: int | None = None
    pages: int | None = None
    page_size: int | None = None
    max_length: int | None = None
    dtype: str = "bf16"
    max_step_tokens: int = 2048

    def size_of_page(self, trace: Trace) -> int:
        """Tokens a page holds for this trace."""
        if self.page_size is not None:
            return self.page_size
        return BLOCK if trace.hash_ids and self.spec is None else 16

    def plan(self, trace: Trace, *, serial: bool) -> Plan:
        """The plan of one replica.

        Raises:
            PlanError, BudgetTooSmall: it cannot be made; memory was given without a model.
        """
        size = self.size_of_page(trace)
        if self.memory is not None:
            return self._from_memory(self.memory, size)
        pages = trace.most_pages(size, serial=serial) if self.pages is None else self.pages
        pages += serial and trace.hash_ids and self.pages is not None
        if self.spec is None:
            return Plan.from_pages(pages + 1, size, max_length=self.max_length)
        probe = self._from_memory(_PROBE, size)
        if probe.packed and self.pages is not None:
            right = "pages of this model differ in size by group: give bytes, as 16GiB"
            raise PlanError("pages", self.pages, right)
        return self._from_memory((pages + 1) * probe.page_bytes, size)

    def _from_memory(self, memory: int, size: int) -> Plan:
        if self.spec is None:
            raise PlanError("memory", amount(memory), "it takes a model to turn it into pages")
        return plan(
            self.spec,
            memory,
            page_size=size,
            dtype=self.dtype,
            max_length=self.max_length,
            max_step_tokens=self.max_step_tokens,
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


def settings(
    trace: Trace,
    pool: Pool,
    base: Setting,
    sweep: Sweep | None = None,
    values: Sequence[str] = (),
    *,
    serial: bool,
) -> Iterator[Setting]:
    """The settings of a sweep over ``values``, or the one setting there is without.

    Args:
        trace: what will run.
        pool: size of each replica's pool.
        base: policy, replicas and router; its plan and label are replaced.
        sweep: what is varied; None: nothing.
        values: what it takes in turn; none: a range around what ``pool`` says.
        serial: whether the replay will be serial.

    Raises:
        PlanError: a value is none of the sweep's, or a plan cannot be made.
    """
    if sweep is None:
        yield replace(base, plan=pool.plan(trace, serial=serial), label=_size_label(pool))
        return
    for value in values or _usual(sweep, pool):
        if sweep == "policy":
            made = pool.plan(trace, serial=serial)
            yield replace(base, plan=made, policy=value, label=value)
        else:
            varied = pool.sized(value) if sweep == "memory" else _paged(pool, value, trace)
            yield replace(base, plan=varied.plan(trace, serial=serial), label=value)


def _paged(pool: Pool, value: str, trace: Trace) -> Pool:
    return pool.paged(_whole("page size", value), trace)


def _usual(sweep: Sweep, pool: Pool) -> list[str]:
    if sweep == "policy":
        return list(POLICIES)
    if sweep == "page-size":
        return [str(size) for size in PAGE_SIZES]
    if pool.memory is not None:
        return [amount(pool.memory * factor // 8).replace(" ", "") for factor in _FACTORS]
    if pool.pages is None:
        raise PlanError("memory", UNBOUNDED, "name the sizes to sweep over")
    return [str(max(1, pool.pages * factor // 8)) for factor in _FACTORS]


def _size_label(pool: Pool) -> str:
    if pool.memory is not None:
        return amount(pool.memory)
    return UNBOUNDED if pool.pages is None else f"{pool.pages} pages"


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or not 0 < int(text[:12]) < 2**31:
        raise PlanError(name, text, "it must be a whole number of at least 1")
    return int(text)
