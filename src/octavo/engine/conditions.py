"""What a request runs with beside its tokens: a LoRA adapter, media; and a step with those of all.

Composes adapters and media for the engine. Knows requests by nothing else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from octavo.cache.identity import Adapter, Extra
from octavo.cache.step import Step
from octavo.checks import Ints
from octavo.engine.adapters import Adapters
from octavo.engine.media import MediaEncoder, MediaPrompt
from octavo.errors import UnsupportedModel, uncopied


class Condition(NamedTuple):
    """What one request runs with.

    Attributes:
        adapter: a LoRA adapter; None: the model without any.
        media: the media in its prompt; None: text alone.
    """

    adapter: Adapter | None = None
    media: MediaPrompt | None = None

    @property
    def extra(self) -> list[Extra]:
        """What its pages depend on beside its tokens."""
        media = self.media.extra if self.media else []
        return [*media, *([self.adapter] if self.adapter else [])]


class Conditions:
    """Reads what requests run with, and has a model compute a step's rows with it.

    Args:
        model: a transformers model.
        release: gives the model its own attention back until it next runs a step.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, model: Any, release: Callable[[], None]) -> None:
        self._model, self._release = model, release
        self._adapters, self._media = Adapters(model), MediaEncoder(model)

    def read(self, ids: Ints, adapter: str | None, inputs: Mapping[str, Any] | None) -> Condition:
        """Check what a request is to run with; nothing is run.

        Raises:
            IdentityError: no adapter of that name is loaded, or ``inputs`` do not fit the prompt.
            UnsupportedModel: the adapter cannot be applied by row, or the model has no media.

        Cost: O(bytes of inputs); an adapter's weights are read once.
        """
        key = None if adapter is None else self._adapters.identity(adapter)
        media = None if inputs is None else self._media.prompt(ids, inputs)
        if media is not None and (path := self._adapters.outside(self._model.get_decoder())):
            why = "it would change how media are encoded for every request"
            raise UnsupportedModel(f"adapter on {path}", why)
        return Condition(key, media)

    def prepare(self, condition: Condition) -> None:
        """Encode a request's media, before it first takes part in a step. Cost: their encoders.

        Raises:
            UnsupportedModel: see `MediaEncoder.encode`. Exception: whatever the encoders raise.
        """
        if condition.media is not None:
            self._release()
            self._media.encode(condition.media)

    @contextmanager
    def applied(self, step: Step, conditions: Sequence[Condition]) -> Iterator[None]:
        """Within it the model computes each row of ``step`` with its own of ``conditions``.

        Raises:
            IdentityError, UnsupportedModel: see `Adapters.applied`.
        """
        with (
            self._adapters.applied(step, [each.adapter for each in conditions]),
            self._media.placed(step, [each.media for each in conditions]),
        ):
            yield

    def close(self) -> None:
        """Leave the model as it was found. May be called twice."""
        self._adapters.close()
