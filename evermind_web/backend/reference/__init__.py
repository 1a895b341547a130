"""The maths of every operation in NumPy: what the kernels are held to. `REFERENCE[name](*ins, *outs, *scalars)`.

Functions write into their outputs as `ops.OPS` says (`=` or `+=`) and keep the dtype they are given, so that the
same code runs in float32 for use and in float64 for finite differences.
"""

from __future__ import annotations

from collections.abc import Callable

from evermind_web.backend.reference import conv, embed, head, limbic, lora, moe, noise, norm, optim, sample, step

REFERENCE: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        embed.embed_fwd,
        embed.embed_bwd,
        norm.rmsnorm_fwd,
        norm.rmsnorm_bwd,
        conv.conv_fwd,
        conv.conv_norm_fwd,
        conv.conv_bwd,
        conv.conv_step,
        moe.moe_fwd,
        moe.moe_bwd,
        step.layer_step,
        moe.balance_bwd,
        noise.dropout,
        head.head_logits,
        head.head_xent_fwd,
        head.head_xent_bwd,
        lora.lora_fwd,
        lora.lora_bwd,
        lora.dequant,
        lora.lora_down,
        lora.lora_up,
        lora.lora_outer,
        lora.lora_dropout,
        lora.lora_head_logits,
        lora.lora_head_xent_fwd,
        lora.lora_head_xent_bwd,
        lora.packed_embed_fwd,
        lora.packed_head_logits,
        lora.packed_head_xent_fwd,
        lora.packed_head_xent_bwd,
        lora.rmsnorm_bwd_inputs,
        lora.conv_bwd_inputs,
        lora.moe_bwd_inputs,
        limbic.limbic_fwd,
        limbic.limbic_bwd,
        optim.grad_stats,
        optim.adamw,
        sample.sample,
    )
}
