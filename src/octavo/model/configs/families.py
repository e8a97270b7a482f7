"""The table of families: which reader a ``model_type`` has, and what its file may leave out.

To add a family, add its row (`rows_attention`, `rows_states`, `rows_others`); a reader beside it
only where none of those that are there fits.
Defaults are those of the family's class in transformers, which a test compares; families that
transformers does not have say where theirs come from.
"""

from collections.abc import Callable, Mapping
from typing import Any

from octavo.model.configs import encdec, speech
from octavo.model.configs.fields import Fields
from octavo.model.configs.registry import Family, ModelLayers, row
from octavo.model.configs.rows_attention import ATTENTION
from octavo.model.configs.rows_others import OTHERS, REMOTE
from octavo.model.configs.rows_states import STATES

__all__ = ["DEFAULTS", "DEPTHS", "FAMILIES", "REMOTE", "REQUIRED"]


FAMILIES: dict[str, Family] = dict(sorted((ATTENTION | STATES | OTHERS).items()))
"""Every family by its ``model_type``."""
DEFAULTS: dict[str, Mapping[str, Any]] = {name: found.defaults for name, found in FAMILIES.items()}
"""By family, what fields that a file leaves out are."""
DEPTHS: dict[str, Callable[[Fields], ModelLayers]] = {
    "csm": speech.csm_depth,
    "moshi": speech.moshi_depth,
    "qwen3_omni_moe_talker": speech.predictor_depth,
    "qwen3_tts": speech.predictor_depth,
    "dual_ar": speech.dual_ar_depth,
    "fish_qwen3_omni": speech.fish_depth,
}
"""By the whole model's ``model_type``, from its fields to its second decoder."""
ENCODER_AS_DECODER = row(encdec.as_decoder, (None, None, None, None, None, None))
"""An encoder whose file says ``is_decoder``; it says its sizes too."""
REQUIRED = ("num_hidden_layers", "hidden_size", "decoder_layers", "decoder_num_hidden_layers")
"""Fields that a file may not leave out unless it nests the decoder: `octavo.model.configs`."""
