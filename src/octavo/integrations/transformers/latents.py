"""Latent layers of a model, attended to as they are stored.

Their code expands each latent row to the keys and values of all heads by a method of its own,
``expand_kv``, which is linear: a query against an expanded key is another query against the row,
and the weighted sum of expanded values that of rows, expanded. So the rows stay in their pages, and
one query per token is changed in place of every key (multi-head latent attention, absorbed). Knows
modules and tensors; no pages and no steps.
"""

from typing import Any

import torch

from octavo.errors import UnsupportedModel, uncopied
from octavo.model.spec import Latent
from octavo.planner.plan import Plan


class Unexpanded:
    """In place of one module's ``expand_kv``: hands latents on, and stands for what it would do.

    Its matrices are as large as the weights that expand, and are read once: weights that change
    later do not change it.

    Args:
        module: attention of latents.
        kind: what it keeps of every token.

    Raises:
        UnsupportedModel: its expansion is not linear.

    Cost: one expansion of rank + rope tokens.
    """

    __reduce__ = uncopied("it stands in for a method of one module")

    @torch.no_grad()
    def __init__(self, module: Any, kind: Latent) -> None:
        weight, self._module = next(module.parameters()), module
        self._parts = list[str]()
        hooks = [
            part.register_forward_hook(lambda *_, name=name: self._parts.append(name))
            for name, part in module.named_modules()
        ]
        unit = torch.eye(kind.rank + kind.rope, dtype=weight.dtype, device=weight.device)
        zero = unit.new_zeros(1, 1, 1, kind.rank + kind.rope)
        own = type(module).expand_kv
        key, value = own(module, *_split(unit[None, None], kind.rank))
        none = own(module, *_split(zero, kind.rank))
        for hook in hooks:
            hook.remove()
        if any(bool(each.any()) for each in (*none, value[:, :, kind.rank :])):
            why = (
                "its latents are expanded by more than a matrix, and cannot be attended to as rows"
            )
            raise UnsupportedModel(type(module).__name__, why)
        self._key: torch.Tensor = key[0].mT.contiguous()  # [H, k_dim, rank + rope]
        self._value: torch.Tensor = value[0, :, : kind.rank].contiguous()  # [H, rank, v_dim]

    def __call__(
        self, latent: torch.Tensor, rope: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, unexpanded; called by the model."""
        return latent, rope

    @property
    def matrices(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Those that it reads in place of the module's weights."""
        return self._key, self._value

    def check_plain(self) -> None:
        """Check that no adapter changes what expands latents, which is not run. O(1).

        Raises:
            UnsupportedModel: one does.
        """
        for name in self._parts:
            if hasattr(self._module.get_submodule(name), "lora_A"):
                why = f"{name} expands latents, which are read as they are; train none on it"
                raise UnsupportedModel(f"adapter on layer {self._module.layer_idx}", why)

    def absorb(self, query: torch.Tensor) -> torch.Tensor:
        """Queries against rows, [1, H, T, rank + rope], of queries [1, H, T, k_dim]."""
        return query @ self._key

    def expand(self, found: torch.Tensor) -> torch.Tensor:
        """Values of all heads, [1, T, H, v_dim], of weighted rows [1, T, H, rank]."""
        return (found.transpose(1, 2) @ self._value).transpose(1, 2)


class LatentLayers:
    """The modules of one model that attend to latents.

    Args:
        model: in which they are looked for.
        plan: for it.

    Raises:
        UnsupportedModel: a layer has no module that expands its latents, or not by a matrix.
    """

    __reduce__ = uncopied("it is a part of one runner")

    def __init__(self, model: Any, plan: Plan) -> None:
        of_plan = () if plan.spec is None else plan.spec.kinds()
        kinds = {at: kind for at, kind in of_plan if isinstance(kind, Latent)}
        modules = {m.layer_idx: m for m in model.modules() if hasattr(type(m), "expand_kv")}
        if lacks := sorted(kinds.keys() - modules.keys()):
            why = f"its layers {lacks} keep latents, and no module of it has expand_kv for them"
            raise UnsupportedModel(type(model).__name__, why)
        self._modules = [(modules[at], Unexpanded(modules[at], kind)) for at, kind in kinds.items()]

    @property
    def matrices(self) -> list[torch.Tensor]:
        """Those that are read in place of the modules' weights. O(layers)."""
        return [each for _, instead in self._modules for each in instead.matrices]

    def take(self) -> None:
        """Have the modules hand their latents on unexpanded. O(modules).

        Raises:
            UnsupportedModel: see `Unexpanded.check_plain`.
        """
        for module, instead in self._modules:
            instead.check_plain()
            module.expand_kv = instead

    def release(self) -> None:
        """Have them expand latents again. O(modules)."""
        for module, _ in self._modules:
            vars(module).pop("expand_kv", None)


def _split(rows: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    return rows[..., :rank], rows[..., rank:]
