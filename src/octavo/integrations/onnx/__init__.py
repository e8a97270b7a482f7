"""ONNX: decoders over paged caches as graphs, and a session that runs them step by step.

`export_decoder` and `export_attention` write graphs, with ONNX Runtime's PagedAttention nodes or
with standard operators; `PagedSession` runs either decoder over an `octavo.Cache`. All need
``octavo[onnx]``.
"""

from octavo.integrations.onnx.decoder import Decoder
from octavo.integrations.onnx.exporting import export_attention, export_decoder
from octavo.integrations.onnx.session import PagedSession

__all__ = ["Decoder", "PagedSession", "export_attention", "export_decoder"]
