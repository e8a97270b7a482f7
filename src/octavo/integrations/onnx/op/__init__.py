"""com.microsoft::PagedAttention, version 1, in NumPy: what a kernel is to compute."""

from octavo.integrations.onnx.op.operands import Attributes, Inputs
from octavo.integrations.onnx.op.operator import Outputs, paged_attention_op

__all__ = ["Attributes", "Inputs", "Outputs", "paged_attention_op"]
