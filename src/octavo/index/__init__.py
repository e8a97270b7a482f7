"""One table, every kernel's format: pure functions from a Step to the arrays a kernel takes.

They read a step and its plan and change neither; what they return shares no memory with either.

Arguments that all share, but for `flex`, `state` and `cross`, which take fewer:
    step: what `Cache.extend` returned, while it is open: neither committed nor aborted, and no row
        with tokens in it released or preempted. Copies are as open as their step. Write drafts into
        its ``input_ids[step.unknown.at]`` first: the ids are copied.
    group: name of a group that keeps tokens; by default the first one.
    plan: the plan the step's cache was made by. A step knows pages but neither how many tokens one
        holds nor what a window still sees; the plan knows both.
    out: what the same function returned before, what `buffers` made, or arrays of one's own in the
        same NamedTuple: NumPy's, or torch tensors on the CPU, pinned or not, which are filled in
        place. They are written whole, so that nothing of an earlier, larger batch stays, and
        returned as they were given, at their own sizes. Each has memory of its own. They are the
        caller's: a copy that is still reading must end first.
    rows: rows to pad to, at least the step's; a table has at most 2**31 - 1 entries. Padded rows
        have no tokens and no keys; each brings one token of padding, so that a batch that decodes
        has as many tokens as rows, unless ``tokens`` says how many there are.
    columns: columns to pad tables to, at least as many as a row of the step needs; FlashInfer's
        pages are then so many a row together. By default as many as are needed.
    tokens: tokens to pad to, at least the step's.
    kernel: name of a kernel (`octavo.planner.kernels.KERNELS`) whose rule for pages is to hold; by
        default none but in ``onnxruntime`` and ``tensorrt``, whose own always holds as well.
        "int32": also the offsets of all elements in the plan's tensors; it needs a plan of a model.
    kernel_page: tokens of a page as the kernel sees it; it divides the plan's page size. Page p is
        its pages ``p * r .. p * r + r - 1``, r kernel pages per page; slots stay what they are.
    form: "absolute": a column for every page from position 0, the null page where a window dropped
        it. "compact": columns no query of the step can see are left out, behind those of sinks, and
        lengths count what is left; ``base`` positions are left out. Key k behind the sinks' columns
        is position ``k + base``; queries move with the keys, so that windows stay as wide.
    slot_fill: -1 or 0: the slot of tokens that are written nowhere (padding).
    page_fill: -1 or 0: what block tables hold where a row has no page or none any more; by default
        0, and -1 in ``dense``. Block offsets and FlashInfer's pages have 0 there.
    max_query_len, max_seq_len: upper bounds to emit for the largest count and key count of a row,
        where they are to hold for every step a recorded graph is replayed with; a step beyond
        them is refused. By default the largest of the step itself.

Errors that all share; each names the sequence and the numbers, and nothing was written:
    PlanError: a page size the kernel cannot take, or a ``kernel_page`` that does not divide it; an
        unknown ``form``, ``kernel`` or option; a fill that is neither -1 nor 0; a group of states
        or cross inputs; a plan without the group; what is no plan.
    StepError: the step is not open, or rows of it left since.
    UnknownGroup: the step has no such group.
    LengthError: a query longer than its context; a page that a query sees is missing; arrays of
        the step that do not fit each other; what is no step; a plan of another page size than the
        step's cache has; ``rows``, ``columns`` or ``tokens`` below the step's or too many; an array
        of ``out`` of other axes or element type, on another device, read-only, not contiguous, or
        in memory of another or of the step.
    CapacityError: a page beyond the plan's, or whose last slot is beyond int32; a step beyond a
        bound that was named; an array of ``out`` is too small.

Cost: O(rows x columns + tokens), one loop an array over the step's own numbers. An `Emitter` gives
the same from step to step of a batch at O(rows + tokens + changes).
"""

from octavo.index.arguments import Options
from octavo.index.block_tables import Dense, Flash, Vllm, dense, flash, vllm
from octavo.index.buffers import buffers
from octavo.index.emitter import Emitter
from octavo.index.flashinfer import Cascade, Flashinfer, cascade, flashinfer
from octavo.index.flex import Flex, flex
from octavo.index.latent import LatentGeometry, check_offsets, max_addressable_pages
from octavo.index.runtimes import Onnxruntime, Tensorrt, onnxruntime, tensorrt
from octavo.index.states import Crossed, States, cross, state

__all__ = [
    "Cascade",
    "Crossed",
    "Dense",
    "Emitter",
    "Flash",
    "Flashinfer",
    "Flex",
    "LatentGeometry",
    "Onnxruntime",
    "Options",
    "States",
    "Tensorrt",
    "Vllm",
    "buffers",
    "cascade",
    "check_offsets",
    "cross",
    "dense",
    "flash",
    "flashinfer",
    "flex",
    "max_addressable_pages",
    "onnxruntime",
    "state",
    "tensorrt",
    "vllm",
]
