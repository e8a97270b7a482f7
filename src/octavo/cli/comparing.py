"""Plans side by side: of other models, ranks, page sizes, element types, layouts or memories."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import octavo
from octavo.errors import BudgetTooSmall, PlanError
from octavo.model.spec import ModelSpec
from octavo.planner import figures, sizes
from octavo.planner.budget import parse_memory
from octavo.planner.gpus import find_gpu
from octavo.planner.plan import Plan
from octavo.planner.wish import Wish, plan_wish

CHOICES = ("model", "tp", "page-size", "dtype", "layout", "memory")
_PAGE_SIZES = (1, 16, 32, 64, 256)
_DTYPES = ("fp32", "bf16", "fp8", "int8", "int4")
_LAYOUTS = ("packed", "slab", "component")
_RANKS = (1, 2, 4, 8)
_SHORT = 1000  # tokens of the shorter sequences that page sizes are compared at
_COMMON = 2**15  # tokens that models are compared at where none of them names a longest sequence

Row = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """What is asked of one model.

    Attributes:
        spec: the model.
        memory: as of `octavo.plan`; None: how much is needed.
        sequences: how many are to fit; None: as many as do.
        length: longest sequence in tokens; None: the model's own.
        options: others of `octavo.plan`.
    """

    spec: ModelSpec
    memory: Any
    sequences: int | None
    length: int | None
    options: dict[str, Any] = field(default_factory=dict)

    def answer(self) -> tuple[Plan, Wish | None]:
        """The plan, and where sequences are asked for, or not one fits, whether they do."""
        if self.sequences is None and self.memory is not None:
            try:
                plan = octavo.plan(self.spec, self.memory, max_length=self.length, **self.options)
            except BudgetTooSmall:
                return self._wish(1)
            return plan, None
        return self._wish(self.sequences or 1)

    def _wish(self, sequences: int) -> tuple[Plan, Wish]:
        return plan_wish(
            self.spec, self.memory, sequences=sequences, max_length=self.length, **self.options
        )


def models(questions: Sequence[Question]) -> list[Row]:
    """A row a model, all at one length: that asked for, else the shortest of their longest."""
    own = [each.spec.max_length for each in questions if each.spec.max_length]
    length = questions[0].length or min(own, default=_COMMON)
    return [_row(replace(each, length=length), each.spec.name, length) for each in questions]


def rows(question: Question, plan: Plan, choice: str | None) -> list[Row]:
    """A row a plan, all at the longest length of ``plan``; of a plan that cannot be: the reason."""
    length = question.length or plan.max_length or plan.tokens
    return [_row(varied, name, length) for name, varied in _variants(question, choice)]


def _variants(question: Question, choice: str | None) -> list[tuple[str, Question]]:
    """(name, question) of each; what was asked for is one of them."""
    given = question.options

    def varied(**changed: Any) -> Question:
        return replace(question, options=given | changed)

    if choice == "page-size":
        pages = sorted({*_PAGE_SIZES, given["page_size"]})
        return [(str(size), varied(page_size=size)) for size in pages]
    if choice == "dtype":
        names = dict.fromkeys((*_DTYPES[:2], given["dtype"], *_DTYPES[2:]))
        same = given["dtype"]
        return [(n, question if n == same else varied(dtype=n, scales=None)) for n in names]
    if choice == "layout":
        return [(name, varied(layout=name)) for name in _LAYOUTS]
    if choice == "tp":
        ranks = sorted({*_RANKS, given["tp"]})
        return [(str(tp), varied(tp=tp, weights=_part(given, tp))) for tp in ranks]
    if choice == "memory":
        memory = question.memory
        whole = find_gpu(memory).memory if isinstance(memory, str) else parse_memory(memory)
        wanted = [whole // 4, whole // 2, whole, 2 * whole, 4 * whole]
        return [(figures.amount(size), replace(question, memory=size)) for size in wanted]
    return []


def _part(given: dict[str, Any], tp: int) -> int | None:
    """Weights of one of ``tp`` ranks, where one of those asked for holds ``given["weights"]``."""
    weights = given["weights"]
    return None if weights is None else -(-weights * given["tp"] // tp)


def _row(question: Question, name: str, length: int) -> Row:
    wish: Wish | None = None
    try:
        plan, wish = question.answer()
    except PlanError as error:
        return {"choice": name, "refused": str(error)}
    assert plan.memory is not None
    if wish is not None and wish.device.device != plan.memory.device:
        need = f"{figures.amount(wish.memory, up=True)} would be enough"
        return {"choice": name, "refused": f"nothing fits; {need}"}
    assert plan.budget is not None
    token_groups = [group for group in plan.groups.values() if group.lifetime.form == "tokens"]
    short = min(_SHORT, length)
    return {
        "choice": name,
        "page_size": plan.page_size,
        "dtype": question.options["dtype"],
        "scales": plan.elements.scales if plan.elements else None,
        "layout": plan.layout,
        "tp": plan.tp,
        "memory": plan.memory.device,
        "given": plan.memory.given,
        "weights": plan.memory.weights,
        "bytes_per_token": plan.bytes_per_token,
        "sequence_bytes": sizes.sequence_bytes(plan, length),
        "padding": plan.budget.padding,
        "tokens": plan.tokens,
        "length": length,
        "max_sequences": int(plan.max_sequences(length) * 100) / 100,
        "lost_bytes": sum(sizes.cost(plan, group) for group in token_groups) // 2,
        "reuse_tokens": plan.page_size,
        "table_entries": sum(g.steady_pages(length, plan.page_size) for g in token_groups),
        "max_sequences_short": int(plan.max_sequences(short) * 100) / 100,
        "short_length": short,
    } | ({} if wish is None else {"fits": wish.fits, "wish": wish_as_dict(wish)})


def wish_as_dict(wish: Wish) -> Row:
    """The wish as JSON-ready data."""
    return wish._asdict() | {"device": wish.device._asdict()}


def table(found: Sequence[Row], choice: str) -> list[list[str]]:
    """Cells of a table with its header; what was refused is left out. O(rows)."""
    told = [row for row in found if "refused" not in row]
    of = f"{told[0]['length']:,}" if told else "the longest"
    cells = [[choice, "bytes per token", f"per sequence of {of}"]]
    cells += [
        [_name(row, choice), f"{row['bytes_per_token']:,}", figures.amount(row["sequence_bytes"])]
        for row in told
    ]
    for column in _more(told, choice, of):
        for line, cell in zip(cells, column, strict=True):
            line.append(cell)
    return cells


def _more(told: Sequence[Row], choice: str, of: str) -> list[list[str]]:
    """Columns that the question decides: what fits, what is needed, what pages cost."""
    columns = []
    given = all(row["given"] for row in told)
    if given:
        columns += [
            ["padding", *(figures.amount(row["padding"]) for row in told)],
            ["tokens", *(f"{row['tokens']:,}" for row in told)],
            [f"sequences of {of}", *(f"{row['max_sequences']:,.2f}" for row in told)],
        ]
    wishes = [row["wish"] for row in told if "wish" in row]
    if wishes and len(wishes) == len(told):
        many = f"{wishes[0]['sequences']:,}"
        if given:
            columns.append([f"{many} fit", *("yes" if wish["fits"] else "no" for wish in wishes)])
        need = (figures.amount(wish["memory"], up=True) for wish in wishes)
        columns.append([f"memory for {many}", *need])
    if choice == "page-size" and told:
        columns += [
            [
                f"of {told[0]['short_length']:,}",
                *(f"{r['max_sequences_short']:,.2f}" for r in told),
            ],
            ["lost per sequence", *(figures.amount(row["lost_bytes"]) for row in told)],
            ["reuse in steps of", *(f"{row['reuse_tokens']:,}" for row in told)],
            ["table entries", *(f"{row['table_entries']:,}" for row in told)],
        ]
    return columns


def _name(row: Row, choice: str) -> str:
    """What was chosen; with the scales of a quantised type."""
    scaled = choice == "dtype" and row["scales"] not in (None, "none")
    return f"{row['choice']}, scale per {row['scales']}" if scaled else str(row["choice"])


def lines(found: Sequence[Row], choice: str) -> list[str]:
    """The table as text, and below it its notes. O(rows)."""
    return [*figures.table(table(found, choice)), *notes(found, choice)]


def notes(found: Sequence[Row], choice: str) -> list[str]:
    """What the words of the table mean, and why a plan is left out. O(rows)."""
    refused = [f"{choice} {row['choice']}: {row['refused']}" for row in found if "refused" in row]
    words = []
    if choice == "page-size":
        words = ["(lost: half a page per group; table entries: pages of a longest sequence)"]
    if choice == "model":
        names = [row["choice"] for row in found if row.get("given") and row["weights"] is None]
        words = [f"(weights not counted: {', '.join(names)})"] if names else []
    if choice == "tp":
        words = ["(bytes are of one rank; weights are divided among the ranks)"]
    return [*words, *refused]
