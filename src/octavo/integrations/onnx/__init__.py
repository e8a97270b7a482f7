"""ONNX: decoders over paged caches as graphs, and a session that runs them step by step.

`Decoder.from_config` reads a model's config; `export_decoder`, `write_decoder` and
`export_attention` write graphs, with ONNX Runtime's PagedAttention nodes or with standard
operators; `PagedSession` runs either decoder over an `octavo.Cache`. All need ``octavo[onnx]`` and
are imported on use: the operator in NumPy, in `octavo.integrations.onnx.op`, needs none of it.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from octavo.lazy import on_use

if TYPE_CHECKING:
    from octavo.integrations.onnx.decoder import Decoder
    from octavo.integrations.onnx.export import export_attention, export_decoder, write_decoder
    from octavo.integrations.onnx.rotary import Rotary
    from octavo.integrations.onnx.session import PagedSession

__all__ = [
    "Decoder",
    "PagedSession",
    "Rotary",
    "export_attention",
    "export_decoder",
    "write_decoder",
]

_HOMES = {
    "Decoder": "decoder",
    "PagedSession": "session",
    "Rotary": "rotary",
    "export_attention": "export",
    "export_decoder": "export",
    "write_decoder": "export",
}

__getattr__ = on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    """What `help` shows and editors complete: what is imported on use too, where it can be."""
    return sorted({*globals(), *(__all__ if find_spec("onnx") else ())})
