"""What a request runs with beside its tokens: a LoRA adapter, media, the source of a decoder.

Composes adapters, media, frames and encoders for the engine, and chooses who runs a model. Knows
requests by nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from octavo.cache.identity import Adapter, Extra, Salt
from octavo.cache.prompt import Prompt
from octavo.cache.step import Step
from octavo.checks import Ints
from octavo.engine.adapters import Adapters
from octavo.engine.encoders import EncoderDecoderRunner, SourcePrompt
from octavo.engine.frames import Frames, SpokenPrompt, takes_frames
from octavo.engine.linears import Quantisation
from octavo.engine.media import MediaEncoder, MediaPrompt
from octavo.engine.runner import Runner
from octavo.errors import IdentityError, PlanError, UnsupportedModel, uncopied
from octavo.model.layers import Attention
from octavo.planner.request import Plan


def runner_of(
    model: Any, plan: Plan, quantise: Quantisation | None
) -> Runner | EncoderDecoderRunner:
    """What runs a model over pages; see Runner and EncoderDecoderRunner for its errors.

    Raises:
        PlanError: an encoder-decoder is to be quantised.
        UnsupportedModel: torch.compile has made it.
    """
    if "_orig_mod" in getattr(model, "_modules", ()) or getattr(model, "_compiled_call_impl", None):
        why = "each step has another shape; give the model as it was before"
        raise UnsupportedModel("a model made by torch.compile", why)
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return Runner(model, plan, quantise)
    if quantise is not None:
        raise PlanError("quantise", quantise, "encoder-decoders run with the weights they have")
    return EncoderDecoderRunner(model, plan)


def vocabulary_of(model: Any) -> int:
    """Token ids that a model's prompts may have. O(1)."""
    if takes_frames(model):
        return int(model.embed_text_tokens.num_embeddings)
    decoder = model.get_decoder() if model.config.is_encoder_decoder else model
    found = getattr(decoder, "get_input_embeddings", model.get_input_embeddings)()
    return int(found.weight.shape[0])


class Condition(NamedTuple):
    """What one request runs with.

    Attributes:
        adapter: a LoRA adapter; None: the model without any.
        media: the media in its prompt; None: text alone.
        speech: the recordings in its prompt, of a model over codebooks; None: text alone.
        source: what an encoder-decoder's encoder is given; None: it has no encoder.
        salt: what keeps it from sharing pages with others; None: it shares them.
    """

    adapter: Adapter | None = None
    media: MediaPrompt | None = None
    speech: SpokenPrompt | None = None
    source: SourcePrompt | None = None
    salt: Salt | None = None

    @property
    def extra(self) -> list[Extra]:
        """What its pages depend on beside its tokens."""
        media = self.media.extra if self.media else []
        source = self.source.extra if self.source else []
        return [*media, *source, *(each for each in (self.adapter, self.salt) if each)]

    def prompt(self, ids: Ints) -> Prompt:
        """What the cache is to know of a prompt of such ids, once it is encoded. O(ids)."""
        return Prompt(ids if self.speech is None else self.speech.ids, self.extra)


class Conditions:
    """Reads what requests run with, and has a model compute a step's rows with it.

    Args:
        model: a transformers model.
        runner: which runs it.

    Attributes:
        frames: gives those of a model over codebooks their ids.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, model: Any, runner: Runner | EncoderDecoderRunner) -> None:
        self._model, self._runner = model, runner
        self._adapters, self._media = Adapters(model), MediaEncoder(model)
        self.frames = Frames(model, runner.storage.plan.tokens)

    def read(self, ids: Ints, adapter: str | None, inputs: Mapping[str, Any] | None) -> Condition:
        """Check what a request is to run with; nothing is run.

        Raises:
            IdentityError: no adapter of that name is loaded, or ``inputs`` do not fit the prompt.
            UnsupportedModel: the adapter cannot be applied by row, or the model has no media.

        Cost: O(bytes of inputs); an adapter's weights are read once.
        """
        if isinstance(self._runner, EncoderDecoderRunner):
            if self._adapters.names or adapter is not None:
                raise UnsupportedModel("adapter", "encoder-decoders are run without adapters")
            if inputs is None:
                right = "it must be what the encoder is given, from the model's processor"
                raise IdentityError("inputs", None, right)
            return Condition(source=SourcePrompt(inputs))
        if self._runner.by_rows and (self._adapters.names or adapter):
            why = f"is run by rows, without adapters: {self._runner.by_rows}"
            raise UnsupportedModel("model", why)
        if takes_frames(self._model):
            return self._spoken(ids, adapter, inputs)
        key = None if adapter is None else self._adapters.identity(adapter)
        media = None if inputs is None else self._media.prompt(ids, inputs)
        if media is None:
            self._media.require_causal()
        if media is not None and (path := self._adapters.outside(self._model.get_decoder())):
            why = "it would change how media are encoded for every request"
            raise UnsupportedModel(f"adapter on {path}", why)
        return Condition(key, media)

    def _spoken(
        self, ids: Ints, adapter: str | None, inputs: Mapping[str, Any] | None
    ) -> Condition:
        """As `read`, of a model over codebooks."""
        if self._adapters.names or adapter is not None:
            why = "it would be applied to frames and to the decoder in depth, which have other rows"
            raise UnsupportedModel("adapter", why)
        speech = None if inputs is None else self.frames.prompt(ids, inputs)
        return Condition(speech=speech, salt=self.frames.salt)

    def prepare(self, condition: Condition) -> None:
        """Encode a request's inputs, before it first takes part in a step. Cost: their encoders.

        Raises:
            UnsupportedModel: see `MediaEncoder.encode`, `Frames.encode` and
                `EncoderDecoderRunner.encode`.
        """
        if condition.source is not None and isinstance(self._runner, EncoderDecoderRunner):
            self._runner.encode(condition.source)
        if condition.media is not None or condition.speech is not None:
            self._runner.close()
        if condition.media is not None:
            self._media.encode(condition.media)
            self._check_seen(condition.media)
        if condition.speech is not None:
            self.frames.encode(condition.speech)

    def _check_seen(self, media: MediaPrompt) -> None:
        """Refuse pictures that are seen as a whole where a row cannot be run alone. O(layers).

        Raises:
            UnsupportedModel: layers keep more than keys and values, or there are adapters.
        """
        spec = self._runner.storage.plan.spec
        if media.encoded is None or media.encoded.seen is None or spec is None:
            return
        if not all(isinstance(kind, Attention) for _, kind in spec.kinds()):
            why = "pictures are seen as a whole, and layers keep more than keys and values"
            raise UnsupportedModel("inputs", why)
        if self._adapters.names:
            raise UnsupportedModel("adapter", "pictures are seen as a whole, in passes of one row")

    @contextmanager
    def applied(self, step: Step, conditions: Sequence[Condition]) -> Iterator[None]:
        """Within it the model computes each row of ``step`` with its own of ``conditions``.

        Raises:
            IdentityError, UnsupportedModel: see `Adapters.applied`.
        """
        if isinstance(self._runner, EncoderDecoderRunner):
            with self._runner.reading([each.source for each in conditions if each.source]):
                yield
            return
        media = [each.media for each in conditions]
        adapters = self._adapters.applied(step, [each.adapter for each in conditions])
        if not any(each is not None for each in media):
            with adapters:
                yield
            return
        with (
            adapters,
            self._runner.looking_ahead(self._media.ahead(step, media)),
            self._media.placed(step, media, self._runner.passes(step)),
        ):
            yield

    def close(self) -> None:
        """Leave the model as it was found. May be called twice."""
        self._adapters.close()
