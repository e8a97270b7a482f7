"""The grid: which calls a kernel is tried with, plain ones first; knows no arrays."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

SCENES = ("decode", "prefill", "decodes", "mixed")
SCALES = ("number", "head", "channel", "token")
KEYWORDS = frozenset(
    {"scale", "softcap", "window", "sink_tokens", "sink_logits", "causal", "return_lse"}
    | {"v_dim", "kv_dtype", "order"}
)
"""Keywords of `paged_attention` that a kernel may lack: ``v_dim`` stands for latent caches,
``order`` for head-major ones."""
FEATURES = KEYWORDS | {"prefill", "strided", "keyless", "nan"}
"""And what else it may lack: several queries per row, pages that lie apart, queries that see no
key, NaN that counts for those who see it and for nobody else."""


class AttentionRule(NamedTuple):
    """What decides how queries attend.

    Attributes:
        options: keywords of `paged_attention`, but for arrays.
        dropping: whether a window's pages come from a group of its own, which drops what it no
            longer sees, and not from the full group.
        sink_logits: whether there are some.
        latent: whether keys and values are one row.
        keyless: whether some queries see no key: their rows have more queries than keys.
        nan: whether some queries, and some keys and values of the contexts, are NaN.
    """

    options: dict[str, Any]
    dropping: bool = False
    sink_logits: bool = False
    latent: bool = False
    keyless: bool = False
    nan: bool = False

    @property
    def features(self) -> set[str]:
        """What a kernel must have of `FEATURES` to be tried with this."""
        others = {"sink_logits": self.sink_logits, "v_dim": self.latent, "keyless": self.keyless}
        others["nan"] = self.nan
        return set(self.options) | {name for name, there in others.items() if there}


class Case(NamedTuple):
    """One call.

    Attributes:
        rule: how queries attend.
        scene: kinds of rows: of `SCENES`.
        page_size: tokens per page.
        heads, kv_heads: query and key/value heads.
        k_dim, v_dim: elements of a head; of a latent row: of the row, and of its value.
        dtype: octavo's name of the query's element type.
        order: ``token`` or ``head``.
        strided: whether pages lie apart in memory, as in a packed plan.
        lse: whether the lse is wanted.
        scales: of quantised caches: one ``number``, one a ``head``, ``channel`` or ``token``.
        seed: of the numbers.
    """

    rule: AttentionRule
    scene: str
    page_size: int
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    dtype: str
    order: str
    strided: bool
    lse: bool
    scales: str
    seed: int

    def __str__(self) -> str:
        rule = self.rule
        parts = [f"{name} {value}" for name, value in rule.options.items()]
        parts += ["window group"] * rule.dropping + ["sink logits"] * rule.sink_logits
        parts += ["latent"] * rule.latent + ["queries without keys"] * rule.keyless
        parts += ["NaN in its contexts"] * rule.nan
        parts += [f"scales by {self.scales}"] * ("kv_dtype" in rule.options)
        parts += ["pages apart"] * self.strided + ["lse"] * self.lse
        shape = f"{self.heads}:{self.kv_heads} heads of {self.k_dim} and {self.v_dim}"
        what = (
            f"{self.scene}, page size {self.page_size}, {shape}, {self.dtype}, {self.order}-major"
        )
        return ", ".join([what, *parts])


def rules(page_size: int, kv_dtypes: Sequence[str] = ()) -> tuple[AttentionRule, ...]:
    """Ways to attend, the plain ones first; windows around the size of a page. O(1)."""
    size = page_size
    together = {"window": 7, "sink_tokens": 4, "softcap": 5.0, "scale": 0.3}
    return (
        AttentionRule({}),
        AttentionRule({"scale": 0.3}),
        AttentionRule({"window": 1}),
        *(AttentionRule({"window": size}, dropping=dropping) for dropping in (False, True)),
        *(AttentionRule({"window": size + 1}, dropping=dropping) for dropping in (False, True)),
        AttentionRule({"window": 100 * size}),
        AttentionRule({"window": size + 2, "sink_tokens": 2}),
        AttentionRule({"window": size + 2, "sink_tokens": 2}, dropping=True),
        AttentionRule({"window": 3, "sink_tokens": size + 3}, dropping=True),
        AttentionRule({"softcap": 2.0}),
        AttentionRule({}, sink_logits=True),
        AttentionRule(together, sink_logits=True),
        AttentionRule(together, sink_logits=True, dropping=True),
        AttentionRule({"causal": False}),
        AttentionRule({"causal": False, "window": 6}),
        AttentionRule({}, keyless=True),
        AttentionRule({}, sink_logits=True, keyless=True),
        AttentionRule({"causal": False}, keyless=True),
        AttentionRule({"scale": 0.3}, latent=True),
        AttentionRule({"scale": 0.3, "window": size + 1}, dropping=True, latent=True),
        AttentionRule({}, nan=True),
        AttentionRule({"window": size + 1}, nan=True),
        AttentionRule(together, sink_logits=True, nan=True),
        AttentionRule({"causal": False}, nan=True),
        AttentionRule({"scale": 0.3, "window": size + 1}, latent=True, nan=True),
        *(AttentionRule({"kv_dtype": name}) for name in kv_dtypes),
    )


class Grid(NamedTuple):
    """What is combined: rules, scenes and page sizes with each other; the rest is dealt to them.

    Attributes:
        page_sizes, orders, dtypes, heads, dims, kv_dtypes, rounds: as of `check_kernel`.
        features: of `FEATURES`, those the kernel has.
    """

    page_sizes: Sequence[int]
    orders: Sequence[str]
    dtypes: Sequence[str]
    heads: Sequence[tuple[int, int]]
    dims: Sequence[tuple[int, int]]
    kv_dtypes: Sequence[str]
    features: frozenset[str]
    rounds: int

    def cases(self) -> Iterator[Case]:
        """All of them, in the same order every time. O(cases)."""
        scenes = SCENES if "prefill" in self.features else ("decode", "decodes")
        deals = self._deals()
        tables = {size: rules(size, self.kv_dtypes) for size in self.page_sizes}
        rounds = range(self.rounds)
        numbers = range(min(map(len, tables.values()), default=0))
        places = product(rounds, numbers, scenes, self.page_sizes)
        for seed, (_, number, scene, page_size) in enumerate(places):
            rule = tables[page_size][number]
            if rule.features <= self.features:
                case = _case(rule, scene, page_size, next(deals), seed)
                wanted = rule.keyless and "return_lse" in self.features  # -inf must be seen
                yield case._replace(lse=case.lse or wanted)

    def _deals(self) -> Iterator[tuple[Any, ...]]:
        """Heads, dims, dtype, order, strided, lse, scales: combinations at random, all in turn."""
        strided = (False, True) if "strided" in self.features else (False,)
        lse = (False, True) if "return_lse" in self.features else (False,)
        orders = [each for each in self.orders if each == "token" or "order" in self.features]
        axes = (self.heads, self.dims, self.dtypes, orders, strided, lse, SCALES)
        deck, rng = list(product(*axes)), np.random.default_rng(0)
        while True:
            yield from (deck[number] for number in rng.permutation(len(deck)))


def _case(
    rule: AttentionRule, scene: str, page_size: int, deal: tuple[Any, ...], seed: int
) -> Case:
    (heads, kv_heads), (k_dim, v_dim), dtype, order, strided, lse, scales = deal
    if rule.latent:
        kv_heads, k_dim = 1, v_dim + 8
    shape = (heads, kv_heads, k_dim, v_dim)
    return Case(rule, scene, page_size, *shape, dtype, order, strided, lse, scales, seed)
