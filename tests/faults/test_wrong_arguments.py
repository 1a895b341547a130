"""Wrong values for the arguments of every public call: an EvermindError that names the argument, and nothing else."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import evermind_web as ew
from evermind_web import limbic
from evermind_web.errors import EvermindError, FormatError, InvalidArgumentError

pytestmark = pytest.mark.filterwarnings("ignore")

IDS = [5, 6, 7, 8, 9, 10]
VOCAB = 260


def small() -> ew.EvermindLM:
    return ew.EvermindLM(VOCAB, 8, 1, 2, 8, 2, 1, seed=1)


def bytes_tokenizer() -> ew.BPETokenizer:
    tokenizer = ew.BPETokenizer()
    tokenizer.train("")
    return tokenizer


def with_adapter() -> ew.LoraModel:
    model = ew.LoraModel(MODEL)
    model.add_adapter("a", ew.LoraConfig(r=2))
    return model


MODEL, TOKENIZER = small(), bytes_tokenizer()
DATA, LORA = MODEL.export_weights(), ew.EvermindLMLoRA(MODEL, 2)
DELTA = ew.compute_row_delta(np.zeros(8), np.ones(8), 4)
TENSORS = ew.named_tensors(MODEL)
SESSION = limbic.LimbicSession(limbic.LimbicModel(4, 4))


def trained(**options: Any) -> object:
    return ew.EvermindLMTrainer(small(), **options).fit([IDS])


def fitted(**options: Any) -> object:
    return ew.EvermindLMTrainer(small()).fit(**({"sequences": [IDS]} | options))


def tuned(**options: Any) -> object:
    return ew.EvermindLMLoRA(small(), 2).fit(**({"sequences": [IDS]} | options))


def targeted(**options: Any) -> None:
    ew.LoraModel(MODEL).add_adapter("b", ew.LoraConfig(**options))


def requested(**options: Any) -> object:
    return asyncio.run(ew.request_backend(**({"name": "numpy"} | options)))


NO_NUMBER: list[Any] = ["x", None, [], {}, object(), True, math.nan]
NO_COUNT = [*NO_NUMBER, 1.5, -1]
NO_SWITCH: list[Any] = [5, 0, None, "x", "false", [], math.nan]
NO_TEXT: list[Any] = [5, [], b"text", object(), math.nan]
NO_BYTES: list[Any] = [None, 5, "model.evl0", [1.5], [-1], {}, object()]
NO_LIST: list[Any] = [5, "ab", math.nan, object()]
NO_IDS: list[Any] = [None, 5, "ab", [1.5], ["a"], [None], {}, [[1], [1, 2]], [-1], [VOCAB], object()]
NO_ARRAY: list[Any] = ["x", {}, object(), ["a"], [[1], [1, 2]]]
NO_MODEL: list[Any] = [None, 5, "model", TOKENIZER]
NO_BACKEND: list[Any] = [5, 0, [], True, object(), "opengl"]
NO_FUNCTION: list[Any] = [5, "print", [], True]
SIZES = ("vocab_size", "d_model", "num_layers", "conv_kernel", "hidden_dim", "num_experts", "top_k")


def each(names: tuple[str, ...], wrong: list[Any]) -> dict[str, list[Any]]:
    """The same wrong values for several arguments."""
    return dict.fromkeys(names, wrong)


GENERATION: dict[str, list[Any]] = {
    **each(("max_new_tokens", "top_k", "seed"), NO_COUNT),
    "temperature": [*NO_NUMBER, -1, math.inf],
    "top_p": [*NO_NUMBER, 0, 2, -math.inf],
    "min_p": [*NO_NUMBER, 1, -1],
    "repetition_penalty": [*NO_NUMBER, 0, math.inf],
    **each(("frequency_penalty", "presence_penalty"), [*NO_NUMBER, math.inf]),
    "logit_bias": [[1], 5, None, "ab", {"a": 1.0}, {1: "a"}, {1: math.nan}, {1: math.inf}, {1.5: 1.0}, {-1: 1.0}],
    "stop_token": ["a", 1.5, [1], True, -1],
    "stop_tokens": [5, "ab", None, [1.5], ["a"], {}, [-1], [VOCAB]],
}
TRAINING: dict[str, list[Any]] = {
    **each(("epochs", "accum_steps"), [*NO_COUNT, 0]),
    **each(("warmup_steps", "seed", "eval_every", "patience"), NO_COUNT),
    **each(("max_grad_norm", "router_noise", "balance_coef"), [*NO_NUMBER, -1, math.inf]),
    **each(("dropout", "min_lr_ratio"), [*NO_NUMBER, -1, 2]),
    **each(("lr_scheduler_type", "loss_reduction"), [*NO_TEXT, "other"]),
    "keep_best": NO_SWITCH,
}
ADAMW: dict[str, list[Any]] = {
    **each(("lr", "weight_decay", "eps"), [*NO_NUMBER, -1, math.inf]),
    **each(("beta1", "beta2"), [*NO_NUMBER, -1, 1]),
    "shard": [5, (), (1, 2, 3), (2, 1), ("a", 2), "ab"],
}
SCALER: dict[str, list[Any]] = {
    **each(("init_scale", "min_scale"), [*NO_NUMBER, 0, -1, math.inf]),
    "growth_factor": [*NO_NUMBER, 0.5, math.inf],
    "backoff_factor": [*NO_NUMBER, -1, 2],
    "growth_interval": [*NO_COUNT, 0],
}
FITTING: dict[str, list[Any]] = {
    "sequences": [None, *NO_LIST, [5], [None], ["ab"], [[1.5]], [[-1]], [[VOCAB, 1]]],
    "validation": [None, *NO_LIST, [5], [[-1, 2]]],
    **each(("on_step", "on_eval", "on_snapshot"), NO_FUNCTION),
    "snapshot_seconds": NO_NUMBER,
    "resume": [5, "yes", []],
}
# A public call by a name that says what it is; then its wrong values, by argument. What is not given is right.
CALLS: list[tuple[str, Callable[..., Any], dict[str, list[Any]]]] = [
    ("EvermindLM", lambda **k: ew.EvermindLM(**({"vocab_size": VOCAB} | k)),
     {name: [v for v in NO_COUNT if (name, v) != ("hidden_dim", None)] for name in SIZES}
     | {"seed": NO_COUNT, "backend": NO_BACKEND}),
    ("resolve_backend", ew.resolve_backend, {"backend": NO_BACKEND}),
    ("set_default_backend", ew.set_default_backend, {"backend": NO_BACKEND}),
    ("request_backend", requested, {"name": [None, 5, "opengl"], "sync": [5], "check": [5], "power_preference": [5]}),
    ("GenerationConfig", ew.GenerationConfig,
     {name: [v for v in wrong if v not in (VOCAB, [VOCAB], -1, [-1], {-1: 1.0}, {1: math.inf})] if "to" in name[:5]
      or name == "logit_bias" else wrong for name, wrong in GENERATION.items()}),
    ("generate", lambda **k: MODEL.generate(**({"prompt": IDS} | k)), GENERATION | {"prompt": [*NO_IDS, []]}),
    ("stream", lambda **k: list(MODEL.stream(**({"prompt": IDS} | k))), GENERATION | {"prompt": [*NO_IDS, []]}),
    ("generate_many", lambda **k: MODEL.generate_many(**({"prompt": IDS, "num_return_sequences": 1} | k)),
     {"num_return_sequences": [*NO_COUNT, 0]}),
    ("generate_text", lambda **k: MODEL.generate_text(**({"prompt": "a", "codec": TOKENIZER} | k)),
     {"prompt": NO_TEXT, "codec": [None, 5, "utf-8", []], "stop": [5, [5], "", [""], [None], 1.5, True]}),
    ("stream_text", lambda **k: list(MODEL.stream_text(**({"prompt": "a", "codec": TOKENIZER} | k))),
     {"prompt": NO_TEXT, "codec": [None, 5, "utf-8", []], "stop": [5, [5], "", [""], [None], 1.5, True]}),
    ("forward", MODEL.forward, {"tokens": NO_IDS}),
    ("evaluate", MODEL.evaluate, {"sequences": FITTING["sequences"]}),
    ("expert_use", MODEL.expert_use, {"tokens": [*NO_IDS, []]}),
    ("loss_and_backward", MODEL.loss_and_backward, {"tokens": NO_IDS}),
    ("pack_windows", lambda **k: ew.pack_windows(**({"ids": IDS, "window": 3} | k)),
     {"ids": [v for v in NO_IDS if v not in ([-1], [VOCAB])], "window": [*NO_COUNT, 0], "stride": ["x", 1.5, 0, True]}),
    ("export_weights", MODEL.export_weights, {"fp16": NO_SWITCH}),
    ("load_weights", MODEL.load_weights, {"data": NO_BYTES}),
    ("from_checkpoint", lambda **k: ew.EvermindLM.from_checkpoint(**({"data": DATA} | k)),
     {"data": NO_BYTES, "backend": NO_BACKEND}),
    ("export_delta", lambda **k: MODEL.export_delta(**({"base": DATA} | k)),
     {"base": NO_BYTES, "eps": ["x", None, [], -1, math.nan]}),
    ("load_delta", lambda **k: MODEL.load_delta(**({"base": DATA, "delta": MODEL.export_delta(DATA)} | k)),
     {"base": NO_BYTES, "delta": NO_BYTES}),
    ("set_parameter", lambda **k: small().set_parameter(
        **({"name": "layers.0.norm_conv.weight", "array": np.ones(8)} | k)),
     {"name": [*NO_TEXT, "w9"],
      "array": [*NO_ARRAY, None, [1], np.full(8, math.nan), np.full(8, math.inf), [1.0] * 7 + [1e39]]}),
    ("EvermindLMTrainer", trained, TRAINING | ADAMW | {
        "checkpoint": NO_SWITCH, "mixed_precision": [v for v in NO_SWITCH if v != []] + [[]],
        "decay": [5, "w1", [5], ["w9"]]}),
    ("EvermindLMTrainer(model)", ew.EvermindLMTrainer, {"model": NO_MODEL}),
    ("mixed_precision", lambda **k: trained(mixed_precision=k), SCALER),
    ("DynamicLossScaler", ew.DynamicLossScaler, SCALER),
    ("AdamW", lambda **k: ew.AdamW(MODEL, **k), ADAMW),
    ("TrainingOptions", ew.TrainingOptions, TRAINING),
    ("fit", fitted, FITTING),
    ("load_state", ew.EvermindLMTrainer(small()).load_state, {"data": NO_BYTES}),
    ("EvermindLMLoRA", lambda **k: ew.EvermindLMLoRA(**({"model": MODEL, "rank": 2} | k)),
     {"model": NO_MODEL, "rank": [*NO_COUNT, 9], "alpha": ["x", [], math.nan, math.inf], "seed": NO_COUNT,
      "base_quant": [*NO_TEXT, None, "int4"]}),
    ("EvermindLMLoRA.fit", tuned, FITTING | ADAMW | TRAINING | {
        "checkpoint": NO_SWITCH, "lora_dropout": [*NO_NUMBER, 1, -1]}),
    ("EvermindLMLoRA.load_adapter",
     lambda **k: ew.EvermindLMLoRA.load_adapter(**({"model": MODEL, "data": LORA.serialize_adapter()} | k)),
     {"model": NO_MODEL, "data": NO_BYTES, "base_fingerprint": NO_TEXT, "force": NO_SWITCH}),
    ("LoraConfig", targeted,
     {"r": [*NO_COUNT, 0, 9], "lora_alpha": ["x", [], True, math.nan, math.inf],
      "target_modules": [5, None, [5], [], "w9"], "rank_pattern": [5, [], None, {"w1": "a"}, {5: 1}, {"w1": 0}],
      "alpha_pattern": [5, [], None, {"w1": "a"}, {"w1": math.inf}], "use_rslora": NO_SWITCH,
      "lora_dropout": [*NO_NUMBER, 1, -1], "seed": NO_COUNT}),
    ("LoraModel", lambda **k: ew.LoraModel(**({"model": MODEL} | k)),
     {"model": NO_MODEL, "base_quant": [5, None, "x"]}),
    ("LoraModel.from_checkpoint", lambda **k: ew.LoraModel.from_checkpoint(**({"data": DATA} | k)),
     {"data": NO_BYTES, "backend": NO_BACKEND, "base_quant": [5, None, "x"]}),
    ("add_adapter", lambda **k: with_adapter().add_adapter(**({"name": "b"} | k)),
     {"name": [*NO_TEXT, None, "", "a"], "config": [5, {}, "x", 0]}),
    ("set_adapter", with_adapter().set_adapter, {"name": [5, [], {}, "b"]}),
    ("set_adapters", with_adapter().set_adapters,
     {"weights": [None, 5, "a", ["a"], {"a": "x"}, {"a": math.nan}, {"a": math.inf}, {"b": 1.0}, {5: 1.0}]}),
    ("delete_adapter", with_adapter().delete_adapter, {"name": [5, [], "b"]}),
    ("LoraModel.load_adapter", lambda **k: ew.LoraModel(MODEL).load_adapter(
        **({"name": "b", "data": LORA.serialize_adapter()} | k)),
     {"name": [*NO_TEXT, ""], "data": NO_BYTES, "base_fingerprint": NO_TEXT, "force": NO_SWITCH}),
    ("save_adapter", lambda **k: with_adapter().save_adapter(**({"name": "a"} | k)),
     {"name": [5, [], "b"], "fp16": NO_SWITCH}),
    ("merge", with_adapter().merge, {"fp16": NO_SWITCH}),
    ("merge_adapter", with_adapter().merge_adapter, {"requantize_base": NO_SWITCH}),
    ("LoRAAdapter", lambda **k: ew.LoRAAdapter(**({"rows": 8, "cols": 8, "rank": 2} | k)),
     {"rows": NO_COUNT, "cols": NO_COUNT, "rank": [*NO_COUNT, 9], "alpha": ["x", [], math.nan, math.inf]}),
    ("LoRAAdapter.deserialize", ew.LoRAAdapter.deserialize, {"data": NO_BYTES}),
    ("quantize_base", lambda **k: ew.quantize_base(**({"base": np.ones((2, 2)), "mode": "int8"} | k)),
     {"base": NO_ARRAY, "mode": [5, None, "int4"]}),
    ("BPETokenizer.train", lambda **k: ew.BPETokenizer().train(**({"corpus": "ab"} | k)),
     {"corpus": [None, 5, b"ab", [5], {}], "num_merges": ["x", 1.5, -1, True], "vocab_size": ["x", 1.5, 5, True],
      "min_pair_freq": [*NO_COUNT, 0], "on_progress": NO_FUNCTION, "should_stop": NO_FUNCTION}),
    ("from_str", ew.BPETokenizer.from_str, {"text": [*NO_TEXT, None]}),
    ("from_file", ew.BPETokenizer.from_file, {"path": [None, 5, [], b"x"]}),
    ("load_huggingface", lambda **k: ew.BPETokenizer().load_huggingface(**({"spec": {}} | k)),
     {"spec": [5, "x", [], {}], "bos": [5, []], "pad": [5, []]}),
    ("encode", lambda **k: TOKENIZER.encode(**({"text": "ab"} | k)),
     {"text": [*NO_TEXT, None], "add_bos": NO_SWITCH, "add_eos": NO_SWITCH, "allow_special": NO_SWITCH}),
    ("decode", lambda **k: TOKENIZER.decode(**({"ids": IDS} | k)),
     {"ids": [None, 5, "ab", [1.5], ["a"], [None]], "skip_special_tokens": NO_SWITCH}),
    ("stream_decoder", TOKENIZER.stream_decoder, {"skip_special_tokens": NO_SWITCH}),
    ("feed", TOKENIZER.stream_decoder().feed, {"ids": [None, 1.5, "ab", [1.5], ["a"]]}),
    ("pad_or_truncate", lambda **k: TOKENIZER.pad_or_truncate(**({"ids": IDS, "max_len": 2} | k)),
     {"ids": [5, "ab", [1.5]], "max_len": NO_COUNT, "side": [5, None, "top"]}),
    ("SeededRng", ew.SeededRng, {"seed": [*NO_COUNT, 2**32]}),
    ("gaussian", lambda **k: ew.SeededRng(1).gaussian(**({"n": 1} | k)), {"n": NO_COUNT, "std": NO_NUMBER}),
    ("benchmark_model", lambda **k: ew.benchmark_model(**({"model": MODEL, "sequences": [IDS]} | k)),
     {"sequences": [None, *NO_LIST], "top_k": [*NO_COUNT, 0], "measure_latency": NO_SWITCH, "now": NO_FUNCTION}),
    ("benchmark_text", lambda **k: ew.benchmark_text(MODEL, TOKENIZER, **k), {"corpus": [None, *NO_TEXT]}),
    ("train_and_benchmark", lambda **k: ew.train_and_benchmark(**({"corpus": "ab ab. abc ab."} | k)),
     {"corpus": [None, *NO_TEXT, ""], "num_merges": NO_COUNT, "d_model": NO_COUNT, "epochs": NO_COUNT,
      "lr": [*NO_NUMBER, -1], "seed": NO_COUNT, "held_out_ratio": NO_NUMBER, "top_k": NO_COUNT, "prompt": NO_TEXT,
      "backend": NO_BACKEND}),
    ("top_k_indices", lambda **k: ew.top_k_indices(**({"logits": [1.0], "k": 1} | k)),
     {"logits": NO_ARRAY, "k": [*NO_COUNT, 0]}),
    *[(call.__name__, lambda call=call, **k: call(**({"logits": [1.0], "target": 0} | k)),
       {"logits": NO_ARRAY, "target": [*NO_COUNT, 1]}) for call in (ew.cross_entropy_loss, ew.cross_entropy_grad)],
    *[(call.__name__, call, {"data": NO_BYTES}) for call in (
        ew.crc32, ew.append_crc_trailer, ew.verify_crc_trailer, ew.deserialize_row_delta, ew.safetensors_to_tensors,
        ew.read_metadata, ew.import_evermind, ew.EvermindModelPackage.from_blob)],
    ("compute_row_delta",
     lambda **k: ew.compute_row_delta(**({"base": np.zeros(8), "current": np.ones(8), "row_size": 4} | k)),
     {"base": NO_ARRAY, "current": NO_ARRAY, "row_size": [*NO_COUNT, 0, 3], "eps": [*NO_NUMBER, -1]}),
    ("apply_row_delta", lambda **k: ew.apply_row_delta(**({"base": np.zeros(8), "delta": DELTA} | k)),
     {"base": NO_ARRAY}),
    ("diff_checkpoints", lambda **k: ew.diff_checkpoints(**({"base": DATA, "current": DATA} | k)),
     {"base": NO_BYTES, "current": NO_BYTES}),
    ("apply_checkpoint_diff", lambda **k: ew.apply_checkpoint_diff(**({"base": DATA, "diff": DATA} | k)),
     {"base": NO_BYTES, "diff": NO_BYTES}),
    ("tensors_to_safetensors", lambda **k: ew.tensors_to_safetensors(**({"tensors": TENSORS} | k)),
     {"tensors": [None, *NO_LIST], "fp16": NO_SWITCH, "metadata": [5, "x", []]}),
    ("import_evermind_tensors", lambda **k: ew.import_evermind_tensors(**({"tensors": TENSORS} | k)),
     {"tensors": [None, *NO_LIST], "top_k": ["x", 1.5, 0, True], "rename": NO_FUNCTION, "backend": NO_BACKEND}),
    ("export_evermind", lambda **k: ew.export_evermind(**({"lm": MODEL, "format": "gguf"} | k)),
     {"lm": NO_MODEL, "format": [*NO_TEXT, "pt"], "fp16": NO_SWITCH, "name": NO_TEXT}),
    *[(call.__name__, call, {"lm": NO_MODEL}) for call in (
        ew.arch_of, ew.param_count, ew.named_tensors, ew.config_json, ew.export_onnx, ew.export_safetensors)],
    ("export_gguf", lambda **k: ew.export_gguf(**({"lm": MODEL} | k)),
     {"lm": NO_MODEL, "name": NO_TEXT, "fp16": NO_SWITCH}),
    ("from_lm", lambda **k: ew.EvermindModelPackage.from_lm(
        **({"lm": MODEL, "name": "n", "version": "1", "card": {}} | k)),
     {"lm": NO_MODEL, "name": NO_TEXT, "version": NO_TEXT, "card": [5, None, []], "fp16": NO_SWITCH}),
    *[(call.__name__, call, {"values": NO_ARRAY}) for call in (ew.quantize_fp16, ew.quantize_int8)],
    *[(call.__name__, call, {"x": NO_ARRAY}) for call in (ew.float_to_fp16, ew.round_fp16)],
    ("fp16_to_float", ew.fp16_to_float, {"code": [*NO_COUNT, 2**16]}),
    ("estimate_memory", ew.estimate_memory, {"n": NO_NUMBER}),
    ("SharedExpertMoE", ew.SharedExpertMoE, {"model_dim": NO_COUNT, "seed": NO_COUNT, "backend": NO_BACKEND}),
    ("LimbicModel", limbic.LimbicModel,
     {"input_dim": NO_COUNT, "reward_weight": [*NO_NUMBER, -1, math.inf], "backend": NO_BACKEND}),
    ("LimbicSession", lambda **k: limbic.LimbicSession(**({"model": SESSION.model} | k)),
     {"model": NO_MODEL, "traits": [5, "x", [], {"grit": "x"}, {"charm": 1}], "gain": [*NO_NUMBER, math.inf],
      "half_life": [*NO_NUMBER, 0, -1]}),
    ("relax", SESSION.relax, {"steps": NO_NUMBER}),
    ("experience", SESSION.experience, {"x": [*NO_ARRAY, None, [1.0]]}),
    ("from_json",
     lambda **k: limbic.LimbicSession.from_json(**({"model": SESSION.model, "text": SESSION.to_json()} | k)),
     {"model": NO_MODEL, "text": [*NO_TEXT, None, "{}"]}),
    ("affect_to_sampling", lambda **k: limbic.affect_to_sampling(
        **({"state": limbic.neutral_state(), "config": ew.GenerationConfig()} | k)),
     {"state": [*NO_ARRAY, [1.0]], "config": [None, 5, {}]}),
    ("record_to_state", limbic.record_to_state, {"record": [None, 5, "x", [], {"valence": "x"}]}),
    ("clamp_dim", lambda **k: limbic.clamp_dim(**({"i": 0, "v": 0.5} | k)),
     {"i": [None, "x", 1.5, 9], "v": ["x", None]}),
]  # fmt: skip


CASES = [
    pytest.param(call, argument, values, id=f"{name}-{argument}")
    for name, call, wrong in CALLS
    for argument, values in wrong.items()
]


@pytest.mark.parametrize(("call", "argument", "values"), CASES)
def test_a_wrong_argument_is_refused_in_words(call: Callable[..., Any], argument: str, values: list[Any]) -> None:
    for value in values:
        try:
            call(**{argument: value})
        except EvermindError as error:
            said = str(error)
        else:
            pytest.fail(f"{argument}={value!r} was taken")
        assert len(said) > 20, value


def test_the_message_names_argument_expectation_and_what_was_given() -> None:
    for call, message in (
        (lambda: MODEL.generate(IDS, stop_tokens="ab"), "stop_tokens must be a list .*whole number.*'ab'; see help"),
        (lambda: trained(mixed_precision=5), "mixed_precision must be True or False or a dict, got 5; see help"),
        (lambda: ew.crc32("x"), "data must be the bytes of a file, got str; read it first"),  # type: ignore[arg-type]
        (lambda: MODEL.generate(IDS, stop_tokens=[VOCAB]), f"stop_tokens: token id {VOCAB} outside vocab"),
        (lambda: small().set_parameter("layers.0.norm_moe.weight", np.full(8, math.inf)), "norm_moe.weight: element 0"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            call()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_adapter_files_with_numbers_that_are_none_are_refused_by_tensor(value: float) -> None:
    spoiled = ew.EvermindLMLoRA(MODEL, 2)
    spoiled.adapter.A[1, 3] = value
    with pytest.raises(FormatError, match="lora_A: element 11"):
        ew.EvermindLMLoRA.load_adapter(MODEL, spoiled.serialize_adapter())
    model = with_adapter()
    model.adapter("a").parts["token_embedding.weight"].B[2, 1] = value
    with pytest.raises(FormatError, match=r"token_embedding\.lora_embedding_A: element"):
        ew.LoraModel(MODEL).load_adapter("a", model.save_adapter("a"))


def test_right_values_of_numpy_and_other_lists_are_taken() -> None:
    model = ew.EvermindLM(np.int64(VOCAB), 8, 1, 2, 8, 2, 1, seed=np.uint32(1))
    wanted = MODEL.generate(IDS, max_new_tokens=3, temperature=1.0)
    options: dict[str, Any] = {"max_new_tokens": np.int32(3), "temperature": np.float32(1), "stop_tokens": {3}}
    assert model.generate(np.array(IDS), **options, logit_bias={np.int64(3): np.float64(0)}) == wanted
    model.load_weights(bytearray(DATA))
    model.load_weights(memoryview(DATA))  # type: ignore[arg-type]
    ew.EvermindLMTrainer(model, shard=[0, 1], checkpoint=np.bool_(True)).fit([IDS])  # type: ignore[arg-type]
    assert ew.quantize_fp16([math.nan, 1]).size == 2
