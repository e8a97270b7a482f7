"""LoRA adapters by request: which of those loaded into a model each token of a step runs with.

peft loads them and computes with them: the rows of a batch may have different ones (its
``adapter_names``). An engine's step is one row of many tokens, so each layer with an adapter gets
the tokens as its rows. Knows no pages; of requests the name of their adapter alone.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import Any

import torch

from octavo.cache.identity import Adapter
from octavo.cache.step import Step
from octavo.engine.mixers import tokens_at_hand
from octavo.engine.runner import wanted_places
from octavo.errors import IdentityError, UnsupportedModel, uncopied

_BASE = "__base__"  # peft's name of none


def unwrapped(model: Any) -> Any:
    """The transformers model in a peft model, or ``model`` itself. O(adapters).

    Raises:
        UnsupportedModel: an adapter learns prompts, which are no layers of the model.
    """
    peft = sys.modules.get("peft")  # not imported: no model has an adapter
    if not peft or not isinstance(model, peft.PeftModel):
        return model
    for name, config in model.peft_config.items():
        if config.is_prompt_learning:
            why = f"it is {config.peft_type.value}, and plain LoRA alone is run"
            raise UnsupportedModel(f"adapter {name!r}", why)
    return model.get_base_model()


class Adapters:
    """The adapters loaded into one model by peft, now or later.

    Which of them peft calls active makes no difference to `applied`.

    Args:
        model: a transformers model.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, model: Any) -> None:
        self._model = model
        self._found: dict[str, Any] = {}  # name: its config when the layers were looked at
        self._keys: dict[str, Adapter] = {}
        self._layers: dict[str, Any] = {}
        self._hooks: list[Any] = []
        self._tokens: list[str] | None = None  # each one's adapter while `applied`
        self._logits: list[str] = []
        self._look()

    @property
    def names(self) -> list[str]:
        """Those that are loaded now. O(adapters)."""
        self._look()
        return list(self._found)

    def identity(self, name: str) -> Adapter:
        """What keeps the pages computed with an adapter from all others: its name and content.

        Raises:
            IdentityError: no adapter of that name is loaded.
            UnsupportedModel: it cannot be applied to some rows alone.

        Cost: O(layers); reads the adapter's weights the first time.
        """
        self._look()
        if not isinstance(name, str) or name not in self._found:
            loaded = ", ".join(self._found) or "none"
            right = f"it must be loaded into the model, by load_adapter of peft; loaded: {loaded}"
            raise IdentityError("adapter", name, right)
        self._require_plain(name)
        if name not in self._keys:
            self._keys[name] = Adapter(name, self._digest(name))
        return self._keys[name]

    @contextmanager
    def applied(self, step: Step, adapters: Sequence[Adapter | None]) -> Iterator[None]:
        """Within it the model computes each row of ``step`` with its own of ``adapters``.

        Raises:
            IdentityError: one was unloaded, or another loaded under its name.
            UnsupportedModel: a layer with adapters gets something other than the step's tokens.
        """
        self._look()
        for each in {each for each in adapters if each is not None}:
            if self.identity(each.id) != each:
                right = "its weights have changed since the request came; submit it again"
                raise IdentityError("adapter", each.id, right)
        if not self._layers:
            yield
            return
        rows = [_BASE if each is None else each.id for each in adapters]
        counts = (step.query_start[1:] - step.query_start[:-1]).tolist()
        self._tokens = [name for name, n in zip(rows, counts, strict=True) for _ in range(n)]
        self._logits = [self._tokens[place] for place in wanted_places(step).tolist()]
        try:
            yield
        finally:
            self._tokens = None

    def outside(self, module: Any) -> str | None:
        """A layer with adapters that is neither in ``module`` nor the model's head, or None."""
        self._look()
        inside = {*map(id, module.modules()), id(self._model.get_output_embeddings())}
        return next((path for path, each in self._layers.items() if id(each) not in inside), None)

    def close(self) -> None:
        """Leave the model's layers as they were found. May be called twice."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._layers, self._found = [], {}, {}

    def _look(self) -> None:
        """Find the layers with adapters, where others were loaded since. O(adapters), or O(layers).

        Raises:
            UnsupportedModel: an adapter is no LoRA, or cannot be left out for some rows.
        """
        loaded: Mapping[str, Any] = getattr(self._model, "peft_config", None) or {}
        same = loaded.keys() == self._found.keys()
        if same and all(loaded[name] is config for name, config in self._found.items()):
            return
        self.close()
        self._keys = {}
        for name, config in loaded.items():
            if (kind := str(config.peft_type.value)) != "LORA":
                why = f"it is {kind}, and plain LoRA alone is run; delete_adapter takes it out"
                raise UnsupportedModel(f"adapter {name!r}", why)
        head = self._model.get_output_embeddings() if loaded else None
        for path, layer in self._model.named_modules() if loaded else ():
            if _takes_names(path, layer):
                self._layers[path] = layer
                enter = partial(self._enter, path, is_head=layer is head)
                self._hooks += [
                    layer.register_forward_pre_hook(enter, with_kwargs=True),
                    layer.register_forward_hook(self._leave),
                ]
        self._found = dict(loaded)

    def _enter(
        self,
        path: str,
        _layer: Any,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        *,
        is_head: bool,
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Make the tokens of a layer's input its rows, and say what each runs with."""
        if self._tokens is None:
            return None
        names, at = self._logits if is_head else self._tokens, tokens_at_hand()
        known = at is None or at.total == len(names)
        if at is not None and known:  # within a module that keeps states
            names = [names[token] for token in at.tokens.ravel().tolist()]
        given, dims = args[0], 3 if args[0].is_floating_point() else 2
        if not known or given.ndim != dims or tuple(given.shape[:2]) != _shape(names):
            why = f"it gets {tuple(given.shape)} where the step has {len(names)} tokens"
            raise UnsupportedModel(f"adapter on {path}", f"{why}; which is whose is not known")
        rows = given.reshape(-1, 1, *given.shape[2:])
        return (rows, *args[1:]), keywords | {"adapter_names": names}

    def _leave(self, _layer: Any, _args: Any, found: torch.Tensor) -> torch.Tensor:
        """Make the rows of a layer's output the step's tokens again."""
        if self._tokens is None:
            return found
        return found.reshape(*_shape(found), *found.shape[2:])

    def _require_plain(self, name: str) -> None:
        """Refuse what peft does not compute by row, or does not compute now. O(layers)."""
        for layer in self._layers.values():
            if name in getattr(layer, "lora_variant", ()):
                why = "it is a variant such as DoRA, and plain LoRA alone is run"
                raise UnsupportedModel(f"adapter {name!r}", why)
            if layer.disable_adapters or getattr(layer, "merged", False):
                why = "adapters are disabled, or merged into the weights: undo that first"
                raise UnsupportedModel(f"adapter {name!r}", why)

    def _digest(self, name: str) -> str:
        """SHA-256 of an adapter's weights and scales, the same in every process. O(weights)."""
        digest = sha256()
        for path, layer in self._layers.items():
            own = {k: v for k, v in layer.state_dict().items() if f".{name}." in f".{k}."}
            if own:
                digest.update(f"{path} {getattr(layer, 'scaling', {}).get(name)}".encode())
            for part, tensor in own.items():
                digest.update(f"{part} {tuple(tensor.shape)}".encode())
                flat = tensor.detach().cpu().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def _shape(tokens: Sized) -> tuple[int, int]:
    """How tokens lie where they are computed: in one row, or in those that a mixer has at hand."""
    at = tokens_at_hand()
    return (1, len(tokens)) if at is None else (len(at.tokens), at.tokens.shape[1])


def _takes_names(path: str, layer: Any) -> bool:
    """Whether a module has adapters that peft chooses by row. O(1).

    Raises:
        UnsupportedModel: it has some that apply to all rows.
    """
    from peft.tuners.lora.layer import Embedding, Linear
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper

    if type(layer) in (Linear, Embedding, ModulesToSaveWrapper):
        return True
    if isinstance(layer, BaseTunerLayer | AuxiliaryTrainingWrapper):
        why = f"it is a {type(layer).__name__}, which cannot be left out for some rows"
        raise UnsupportedModel(f"adapter on {path}", why)
    return False
