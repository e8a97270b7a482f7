"""Guesses of a draft model: a smaller one of the same vocabulary that runs ahead of the model.

Its keys and values are in the same pages as the model's, of a plan made with ``draft=``: one table,
one set of slots and one rollback hold for both, and prefixes that are found again have both. It
reads every token that the model does, in the same step and before it; then it runs alone, a token
per request at a time.

Guesses are sampled as the tokens are: by the request's own sampler, from the same random numbers.
Where both models agree on what is likely, they mostly come to the same token.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.cache.step import GroupView, Step
from octavo.checks import check_int
from octavo.engine.frames import takes_frames
from octavo.engine.request import Request
from octavo.engine.runner import Runner
from octavo.engine.sampling import Choice, sample_rows
from octavo.engine.speculation.verification import DraftedRow
from octavo.errors import PlanError, UnsupportedModel, uncopied
from octavo.model.spec import State
from octavo.planner.request import Plan
from octavo.storage import Storage

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Guesses with a draft model. The plan must be made with its spec as ``draft``.

    Attributes:
        model: a transformers causal language model of the same vocabulary and dtype, loaded on the
            same device; octavo's until the engine is closed.
        max_tokens: most guesses per request and step.

    Raises:
        LengthError: max_tokens is below 1.
    """

    model: Any
    max_tokens: int = 4

    def __post_init__(self) -> None:
        check_int("max_tokens", self.max_tokens, 1)


class Drafter:
    """Runs a draft model over the steps of one engine.

    Args:
        way: the model.
        target: the engine's own model.
        storage: where the keys and values of both live.

    Attributes:
        max_tokens: most guesses per request and step.

    Raises:
        PlanError: the plan has no draft model, or another.
        UnsupportedModel: the draft model has another vocabulary or a shorter context, keeps states,
            or is none that octavo can run with others in one step.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, way: Draft, target: Any, storage: Storage) -> None:
        self.max_tokens = way.max_tokens
        own = _check_fit(way.model, target, storage.plan)
        self._runner = Runner(way.model, own, storage=storage.draft)
        if self._runner.by_rows is not None:
            self.close()
            raise UnsupportedModel("draft model", self._runner.by_rows)

    def count(self, request: Request, most: int) -> int:  # noqa: ARG002  # all get as many
        """How many guesses it makes: ``most``. O(1)."""
        return most

    def guess(self, step: Step, requests: Items[Request], counts: Items[int]) -> list[list[int]]:
        """So many guesses for each row of an open step, whose tokens are all read.

        Cost: a pass of the draft model over the step's tokens, and one for each guess.
        """
        wanted = np.array(counts, np.int64)
        known = step.counts.astype(np.int64) - wanted
        drafts: list[list[int]] = [[] for _ in requests]
        every = np.arange(len(requests))
        read = slice_of(step, every, np.zeros_like(known), known, wanted > 0, step.input_ids)
        logits, depth = self._runner.forward(read), 0
        while (rows := every[wanted > depth]).size:
            drafted = [
                DraftedRow(
                    requests[row].prompt_token_ids,
                    [*requests[row].output, *drafts[row]],
                    requests[row].sampler,
                )
                for row in rows
            ]
            ids = step.input_ids.copy()
            for row, choice in zip(rows.tolist(), sample_rows(logits, drafted), strict=True):
                token = choice.token if isinstance(choice, Choice) else 0
                drafts[row].append(token)
                ids[step.query_start[row] + known[row] + depth] = token
            ones, more = np.ones_like(rows), wanted[rows] > depth + 1
            logits = self._runner.forward(
                slice_of(step, rows, known[rows] + depth, ones, more, ids)
            )
            depth += 1
        return drafts

    def close(self) -> None:
        """Give the draft model its own attention back. May be called twice."""
        self._runner.close()


def slice_of(
    step: Step, rows: Rows, first: Rows, counts: Rows, wants: NDArray[np.bool_], ids: Any
) -> Step:
    """Some tokens of some rows of a step, as a step; open while it is. O(rows + tokens).

    Args:
        rows: which.
        first: of each, the first of its tokens that takes part.
        counts: of each, how many do.
        wants: of each, whether a token is to be sampled behind them.
        ids: int32[T], token ids of the whole step.
    """
    ends = counts.cumsum()
    places = np.repeat(step.query_start[rows] + first - (ends - counts), counts)
    places += np.arange(places.size)
    past = (step.past[rows] + first).astype(np.int32)
    context = past + counts.astype(np.int32)
    starts = np.concatenate([[0], ends]).astype(np.int32)
    views = {name: step.group(name) for name in step.group_names}
    return step.replace(
        sequences=tuple(step.sequences[row] for row in rows.tolist()),
        input_ids=ids[places],
        positions=step.positions[places],
        counts=counts.astype(np.int32),
        past=past,
        context=context,
        known=context,
        last=starts[1:] - 1,
        wants_token=wants,
        query_start=starts,
        groups={
            name: GroupView(view.slots[places], view.table[rows], view.base[rows])
            for name, view in views.items()
            if isinstance(view, GroupView)
        },
        copies={},
        snapshots={},
        fresh={},
        delta={},
        unknown=None,
    )


def _check_fit(model: Any, target: Any, plan: Plan) -> Plan:
    """The draft model's plan; refuse one that cannot guess for the engine's model. O(layers)."""
    own = plan.draft
    if own is None or own.spec is None or plan.spec is None:
        right = "it has no draft model: give octavo.plan the spec of yours as draft="
        raise PlanError("plan", getattr(plan.spec, "name", None), right)
    name = f"draft model {own.spec.name}"
    if model is target:
        raise UnsupportedModel(name, "it is the model itself; load another")
    if takes_frames(model):
        raise UnsupportedModel(name, "it answers in frames of codes, which are no tokens")
    if target.config.is_encoder_decoder:
        raise UnsupportedModel(name, "the model is an encoder-decoder, whose source it cannot read")
    sizes = [each.get_input_embeddings().weight.shape[0] for each in (model, target)]
    if sizes[0] != sizes[1]:
        why = f"it has a vocabulary of {sizes[0]} tokens, and the model one of {sizes[1]}"
        raise UnsupportedModel(name, why)
    if model.device != target.device:
        why = f"it is on {model.device}, and the model on {target.device}"
        raise UnsupportedModel(name, why)
    if any(isinstance(kind, State) for _, kind in own.spec.kinds()):
        why = "its layers keep states, out of which rejected guesses cannot be taken"
        raise UnsupportedModel(name, why)
    longest, context = plan.max_length or plan.spec.max_length, own.spec.max_length
    if context is not None and (longest is None or longest > context):
        why = f"its context is of {context:,} tokens; plan with max_length={context} or less"
        raise UnsupportedModel(name, why)
    return own
