"""What is usually wrong with a kernel: answers of the oracle to other questions.

A kernel whose answer equals one of these has most likely that fault.
"""

from collections.abc import Iterator
from math import log, sqrt
from typing import Any

import numpy as np

from octavo.attention import Attended
from octavo.cache.step import Step
from octavo.testing.conformance.trials import Trial


def suspects(trial: Trial) -> Iterator[tuple[str, Attended[Any]]]:
    """Faults that could show in ``trial``: what the kernel does, and its answer then.

    Cost: one answer of the oracle each.
    """
    trial = _with_null_page(trial)
    with np.errstate(all="ignore"):
        for fault, wrong in _wrong_questions(trial):
            try:
                answer = wrong.reference()
            except (IndexError, ValueError):  # it would read what is not there
                continue
            yield fault, answer
        yield _wrong_heads(trial)
        yield from _wrong_sums(trial)


def _with_null_page(trial: Trial) -> Trial:
    """The same, but what stands in for dropped pages can be read, as wrong kernels read it.

    Its tables name the last page, which is nobody's, where they named the null page.
    """
    options = dict(trial.options)
    given = {"keys": trial.keys, "values": trial.values, **options}
    paged = {
        name: array.copy()
        for name, array in given.items()
        if isinstance(array, np.ndarray) and len(array) == len(trial.keys) and array.ndim > 2
    }
    for array in paged.values():
        array[-1] = array[0]
    keys, values = paged.pop("keys"), paged.pop("values", None)
    view = trial.view
    table = np.where(view.table == 0, len(keys) - 1, view.table).astype(np.int32)
    changed = trial._replace(keys=keys, values=values, options=options | paged)
    return changed._replace(step=_with_table(trial, table))


def _with_table(trial: Trial, table: Any) -> Step:
    """The step with another page table of the group that is read."""
    step, name = trial.step, trial.options.get("group")
    found = next(key for key in step.groups if name is None or key == name)
    groups = {**step.groups, found: trial.view._replace(table=table)}
    return step.replace(groups=groups)


def _wrong_questions(trial: Trial) -> Iterator[tuple[str, Trial]]:
    if trial.case.rule.latent:
        yield "takes values from the end of a latent row", _values_at_the_end(trial)
    for fault, changed in _wrong_options(trial):
        yield fault, trial._replace(options={**trial.options, **changed})
    for fault, step in _wrong_steps(trial):
        yield fault, trial._replace(step=step)
    if trial.options.get("window") is None:
        size = trial.case.page_size
        step = _with_context(trial.step, -(-trial.step.context // size) * size)
        blind = {**trial.options, "causal": False}
        yield (
            "sees its last page whole, beyond the context",
            trial._replace(step=step, options=blind),
        )


def _wrong_options(trial: Trial) -> Iterator[tuple[str, dict[str, Any]]]:
    options, case = trial.options, trial.case
    if (window := options.get("window")) is not None:
        sinks = options.get("sink_tokens", 0)
        yield f"sees {_keys(window + 1)} where the window is {window}", {"window": window + 1}
        if window > 1:
            yield f"sees {_keys(window - 1)} where the window is {window}", {"window": window - 1}
        yield "ignores the window", {"window": None, "sink_tokens": 0}
        if sinks:
            yield "ignores the sink tokens", {"sink_tokens": 0}
        if 0 < sinks < window:
            yield "counts the sink tokens within the window", {"window": window - sinks}
    if options.get("causal", True):
        yield "is not causal: queries see later keys", {"causal": False}
    else:
        yield "is causal where it must not be", {"causal": True}
    yield from _wrong_scores(options, case.k_dim, case.v_dim)
    if "kv_dtype" in options:
        keys, values = options["key_scale"], options["value_scale"]
        yield "ignores key_scale", {"key_scale": 1.0}
        yield "ignores value_scale", {"value_scale": 1.0}
        yield "takes value_scale for key_scale", {"key_scale": values}
        yield "takes key_scale for value_scale", {"value_scale": keys}


def _keys(count: int) -> str:
    return f"{count} key" if count == 1 else f"{count} keys"


def _wrong_scores(options: Any, k_dim: int, v_dim: int) -> Iterator[tuple[str, dict[str, Any]]]:
    scale, cap = options.get("scale"), options.get("softcap")
    if scale is not None:
        yield "ignores the scale it is given", {"scale": 1 / sqrt(k_dim)}
    factor = 1 / sqrt(k_dim) if scale is None else scale
    yield "does not scale the scores", {"scale": 1.0}
    yield "scales the scores twice", {"scale": factor**2}
    yield "takes the scale from v_dim", {"scale": 1 / sqrt(v_dim)}
    if cap is not None:
        yield "ignores the softcap", {"softcap": None}
        yield "caps the scores before it scales them", {"softcap": cap * factor}
    if "sink_logits" in options:
        yield "ignores the sink logits", {"sink_logits": None}
        yield "scales the sink logits", {"sink_logits": options["sink_logits"] * factor}


def _wrong_steps(trial: Trial) -> Iterator[tuple[str, Step]]:
    """Rows that stand elsewhere, or read other pages."""
    step, view = trial.step, trial.view

    def with_table(table: Any) -> Step:
        return _with_table(trial, table)

    yield "does not let a query see its own key", _with_context(step, step.context - 1)
    yield (
        "counts positions from the first query: the keys before the step are not aligned",
        _with_context(step, step.counts.copy()),
    )
    yield "reads the page table of the row before", with_table(np.roll(view.table, 1, axis=0))
    yield "reads the page table of the row behind", with_table(np.roll(view.table, -1, axis=0))
    yield (
        "reads the first row's page table for every row",
        with_table(view.table[:1].repeat(len(view.table), 0)),
    )
    columns = np.arange(view.table.shape[1], dtype=np.int32)
    yield "takes a row's pages for consecutive", with_table(view.table[:, :1] + columns)
    yield "reads a row's pages in the wrong order", with_table(_reversed(trial))
    busy = np.flatnonzero(step.counts)
    if 0 < busy.size < step.counts.size:
        order = np.arange(step.counts.size)
        order[busy] = np.arange(busy.size)
        yield "does not skip the page tables of rows that sit out", with_table(view.table[order])


def _with_context(step: Step, context: Any) -> Step:
    """The step with rows of other lengths, whose queries stand at their ends."""
    return step.replace(context=context, past=context - step.counts)


def _values_at_the_end(trial: Trial) -> Trial:
    axis = 1 if trial.case.order == "head" else 2
    keys = np.expand_dims(trial.keys, axis)
    options = {name: value for name, value in trial.options.items() if name != "v_dim"}
    return trial._replace(keys=keys, values=keys[..., -trial.case.v_dim :], options=options)


def _reversed(trial: Trial) -> Any:
    table = trial.view.table.copy()
    for row, context in zip(table, trial.step.context.tolist(), strict=True):
        used = -(-context // trial.case.page_size)
        row[:used] = row[:used][::-1]
    return table


def _wrong_heads(trial: Trial) -> tuple[str, Attended[Any]]:
    """Query head h reads key/value head h % kv_heads, and not h // (H / kv_heads)."""
    case = trial.case
    order = np.arange(case.heads).reshape(-1, case.kv_heads).T.ravel()
    options = dict(trial.options)
    if "sink_logits" in options:
        options["sink_logits"] = options["sink_logits"][order]
    answer = trial._replace(query=trial.query[:, order], options=options).reference()
    back = np.argsort(order)
    fault = "lets query head h read key/value head h % kv_heads, not h // (heads / kv_heads)"
    return fault, Attended(answer.out[:, back], answer.lse[:, back])


def _wrong_sums(trial: Trial) -> Iterator[tuple[str, Attended[Any]]]:
    """Right weights, wrong lse."""
    if not trial.case.lse:
        return
    right = trial.reference()
    if trial.case.rule.keyless:
        zero = np.where(np.isneginf(right.lse), 0.0, right.lse)
        yield "gives an lse of 0, not -inf, where a query sees no key", right._replace(lse=zero)
    yield "gives the lse to base 2", right._replace(lse=right.lse / log(2))
    if "sink_logits" in trial.options:
        sinks = trial.options["sink_logits"]
        yield (
            "counts the sink logits in the lse",
            right._replace(lse=np.logaddexp(right.lse, sinks)),
        )
