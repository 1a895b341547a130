"""ONNX, written only: the model as a graph that any ONNX runtime runs, `input_ids` int64 (batch, seq) → `logits`.

Operator set 18, no custom operators; weights are always float32. The graph recomputes the whole context on each call
and routes densely: every expert runs, and its gate is 0 where it was not chosen. Node and value names, and their order,
are the reference's, so that files compare byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evermind_web.formats.arch import Arch
from evermind_web.formats.protobuf import bytes_field, int_field, text_field

IR_VERSION, OPSET = 8, 18
FLOAT, INT64 = 1, 7  # TensorProto.DataType
ATTRIBUTE_INT, ATTRIBUTE_INTS = 2, 7  # AttributeProto.AttributeType
RMS_EPS = 1e-5


def write_onnx(
    arch: Any,
    tensors: Sequence[Any],
    producer_name: str = "evermind_web",
    producer_version: str = "evermind",
) -> bytes:
    """ModelProto bytes of a model of this shape with these named tensors (.name, .shape, .data)."""
    graph = _Graph({tensor.name: tensor for tensor in tensors})
    graph.model(Arch.of(arch))
    opset = text_field(1, "", always=True) + int_field(2, OPSET)
    return b"".join(
        (
            int_field(1, IR_VERSION),
            text_field(2, producer_name),
            text_field(3, producer_version),
            bytes_field(7, graph.proto(Arch.of(arch).vocab_size)),
            bytes_field(8, opset),
        )
    )


class _Graph:
    """Nodes and initializers in order; one counter numbers values and nodes alike."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = tensors
        self.nodes: list[bytes] = []
        self.initializers: list[bytes] = []
        self.count = 0

    # ── building blocks ──
    def name(self, hint: str) -> str:
        self.count += 1
        return f"{hint}_{self.count - 1}"

    def node(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: int | list[int]) -> None:
        fields = [text_field(1, value) for value in inputs] + [text_field(2, value) for value in outputs]
        fields += [text_field(3, self.name(op)), text_field(4, op)]
        self.nodes.append(b"".join(fields) + b"".join(_attribute(key, value) for key, value in attributes.items()))

    def apply(self, op: str, hint: str, *inputs: str, **attributes: int | list[int]) -> str:
        """A node with one output; its name comes from hint."""
        output = self.name(hint)
        self.node(op, inputs, [output], **attributes)
        return output

    def constant(self, name: str, shape: Sequence[int], values: npt.NDArray[Any]) -> str:
        dims = b"".join(int_field(1, n) for n in shape)
        if values.dtype.kind == "i":
            body = int_field(2, INT64) + text_field(8, name) + b"".join(int_field(7, int(v)) for v in values)
        else:
            body = int_field(2, FLOAT) + text_field(8, name) + bytes_field(9, values.astype("<f4").tobytes())
        self.initializers.append(bytes_field(5, dims + body))
        return name

    def weight(self, name: str) -> str:
        tensor = self.tensors[name]
        return self.constant(name, tensor.shape, np.asarray(tensor.data, np.float32))

    # ── the model ──
    def model(self, a: Arch) -> None:
        embedding = self.weight("token_embedding.weight")
        self.constant("rms_eps", [1], np.array([RMS_EPS], np.float32))
        self.constant("axes_last", [1], np.array([2]))
        self.constant("topk_k", [1], np.array([a.top_k]))
        x = self.apply("Gather", "embedded", embedding, "input_ids", axis=0)
        for layer in range(a.num_layers):
            prefix = f"layers.{layer}"
            x = self.conv(a, prefix, x, self.rms_norm(x, f"{prefix}.norm_conv.weight"))
            x = self.moe(a, prefix, x, self.rms_norm(x, f"{prefix}.norm_moe.weight"))
        head = self.apply("Transpose", "emb_t", embedding, perm=[1, 0])
        self.node("MatMul", [x, head], ["logits"])

    def rms_norm(self, x: str, gain: str) -> str:
        weight = self.weight(gain)
        square = self.apply("Mul", "rms_sq", x, x)
        mean = self.apply("ReduceMean", "rms_mean", square, "axes_last", keepdims=1)
        root = self.apply("Sqrt", "rms_r", self.apply("Add", "rms_eps", mean, "rms_eps"))
        return self.apply("Mul", "rms_y", self.apply("Div", "rms_div", x, root), weight)

    def conv(self, a: Arch, prefix: str, x: str, normed: str) -> str:
        """Depthwise causal convolution; ONNX correlates, so the taps are reversed."""
        taps = np.asarray(self.tensors[f"{prefix}.conv.weight"].data, np.float32).reshape(a.d_model, a.conv_kernel)
        weight = self.constant(f"{prefix}.conv.onnx_weight", [a.d_model, 1, a.conv_kernel], taps[:, ::-1])
        moved = self.apply("Transpose", "conv_in", normed, perm=[0, 2, 1])
        out = self.apply(
            "Conv",
            "conv_out",
            moved,
            weight,
            group=a.d_model,
            kernel_shape=[a.conv_kernel],
            pads=[a.conv_kernel - 1, 0],
            strides=[1],
            dilations=[1],
        )
        return self.apply("Add", "after_conv", x, self.apply("Transpose", "conv_back", out, perm=[0, 2, 1]))

    def moe(self, a: Arch, prefix: str, x: str, normed: str) -> str:
        router = self.apply("Transpose", "router_t", self.weight(f"{prefix}.moe.router.weight"), perm=[1, 0])
        logits = self.apply("MatMul", "router_logits", normed, router)
        values, indices = self.name("topk_v"), self.name("topk_i")
        self.node("TopK", [logits, "topk_k"], [values, indices], axis=2, largest=1, sorted=1)
        gates = self.apply("Softmax", "gates", values, axis=2)
        zeros = self.apply("Sub", "zeros", logits, logits)
        combine = self.apply("ScatterElements", "combine", zeros, indices, gates, axis=2)
        total = self.ffn(f"{prefix}.moe.shared", normed)
        parts = [self.name(f"combine_{e}") for e in range(a.num_experts)]
        self.node("Split", [combine], parts, axis=2, num_outputs=a.num_experts)
        for e, part in enumerate(parts):
            weighted = self.apply("Mul", "expert_w", part, self.ffn(f"{prefix}.moe.experts.{e}", normed))
            total = self.apply("Add", "moe_acc", total, weighted)
        return self.apply("Add", "after_moe", x, total)

    def ffn(self, prefix: str, x: str) -> str:
        w1, b1, w2, b2 = (self.weight(f"{prefix}.{part}") for part in ("w1", "b1", "w2", "b2"))
        product = self.apply("MatMul", "ffn_mm1", x, self.apply("Transpose", "w1t", w1, perm=[1, 0]))
        hidden = self.apply("Relu", "ffn_h", self.apply("Add", "ffn_pre", product, b1))
        product = self.apply("MatMul", "ffn_mm2", hidden, self.apply("Transpose", "w2t", w2, perm=[1, 0]))
        return self.apply("Add", "ffn_y", product, b2)

    def proto(self, vocab_size: int) -> bytes:
        nodes = b"".join(bytes_field(1, node) for node in self.nodes)
        inputs = bytes_field(11, _value_info("input_ids", INT64, ["batch", "seq"]))
        outputs = bytes_field(12, _value_info("logits", FLOAT, ["batch", "seq", vocab_size]))
        return nodes + text_field(2, "evermind") + b"".join(self.initializers) + inputs + outputs


def _attribute(name: str, value: int | list[int]) -> bytes:
    if isinstance(value, list):
        kind, payload = ATTRIBUTE_INTS, b"".join(int_field(8, v) for v in value)
    else:
        kind, payload = ATTRIBUTE_INT, int_field(3, value)
    return bytes_field(5, text_field(1, name) + int_field(20, kind) + payload)


def _value_info(name: str, dtype: int, shape: Sequence[int | str]) -> bytes:
    dims = b"".join(bytes_field(1, text_field(2, n) if isinstance(n, str) else int_field(1, n)) for n in shape)
    tensor_type = int_field(1, dtype) + bytes_field(2, dims)
    return text_field(1, name) + bytes_field(2, bytes_field(1, tensor_type))
