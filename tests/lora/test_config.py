"""Settings of adapters: targets by the ends of names, ranks, scales, and what is refused."""

from __future__ import annotations

import pytest

from evermind_web.backend.base import Backend
from evermind_web.errors import FormatError, InvalidArgumentError
from evermind_web.formats.arch import Arch, evermind_tensor_spec
from evermind_web.formats.lora_blob import write_lora
from evermind_web.lora import LoRAAdapter, LoraConfig, LoraModel
from evermind_web.lora.config import matches
from evermind_web.params import ParamTable
from tests.lora.common import base_model

TABLE = ParamTable(evermind_tensor_spec(Arch(37, 12, 2, 3, 20, 3, 2)))


def names(config: LoraConfig) -> list[str]:
    return [spec.name for spec in config.targets(TABLE)]


def test_default_is_the_tied_embedding() -> None:
    assert names(LoraConfig()) == ["token_embedding.weight"]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("token_embedding.weight", ["token_embedding.weight"]),
        (["conv"], ["layers.0.conv.weight", "layers.1.conv.weight"]),
        (["layers.1.conv.weight"], ["layers.1.conv.weight"]),
        (["router.weight"], ["layers.0.moe.router.weight", "layers.1.moe.router.weight"]),
        (["shared.w1"], ["layers.0.moe.shared.w1", "layers.1.moe.shared.w1"]),
        (["experts.0.w2"], ["layers.0.moe.experts.0.w2", "layers.1.moe.experts.0.w2"]),
    ],
)
def test_targets_by_suffix_of_the_tensor_names(targets: str | list[str], expected: list[str]) -> None:
    assert names(LoraConfig(r=2, target_modules=targets)) == expected


def test_a_suffix_is_whole_parts_of_a_name() -> None:
    assert matches("layers.0.moe.experts.10.w1", "10.w1")
    assert not matches("layers.0.moe.experts.10.w1", "0.w1")
    assert not matches("layers.0.norm_conv.weight", "conv")


def test_all_linear_is_the_embedding_and_every_w1_and_w2() -> None:
    found = names(LoraConfig(r=4, target_modules="all-linear"))
    assert len(found) == 1 + 2 * 2 * 4
    assert found == [s.name for s in TABLE.specs if s.name.split(".")[-1] in ("w1", "w2") or "embedding" in s.name]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["nothing"], "no tensor's name ends with 'nothing'"),
        (["b1"], r"layers.0.moe.shared.b1 has shape \(20,\): only a matrix"),
        (["norm_conv"], "only a matrix"),
        ([], "target_modules is empty"),
    ],
)
def test_targets_that_cannot_be(targets: list[str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        LoraConfig(target_modules=targets).targets(TABLE)


@pytest.mark.parametrize(
    "wrong", [{"r": 0}, {"r": 2.0}, {"lora_alpha": float("nan")}, {"lora_dropout": 1.0}, {"rank_pattern": {"w1": 0}}]
)
def test_values_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        LoraConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rank", "good"), [(32, True), (33, False), (64, False), (0, False)])
def test_tr14_one_rule_for_ranks_in_making_and_loading(rank: int, good: bool) -> None:
    if good:
        data = LoRAAdapter(32, 32, rank).serialize()
        assert LoRAAdapter.deserialize(data).rank == rank
        return
    expected = rf"rank {rank} exceeds min\(in 32, out 32\)" if rank else "rank must be a whole number from 1 on"
    with pytest.raises(InvalidArgumentError, match=expected):
        LoRAAdapter(32, 32, rank)
    with pytest.raises(FormatError, match=f"rank {rank}"):
        LoRAAdapter.deserialize(write_lora(32, 32, rank, 8.0, [0] * 32 * rank, [0] * 32 * rank))  # type: ignore[arg-type]


def test_tr14_rank_pattern_lowers_the_rank_of_a_small_target(cpu: Backend) -> None:
    model = LoraModel(base_model(cpu))
    with pytest.raises(InvalidArgumentError, match=r"layers.0.conv: rank 8 exceeds min\(in 3, out 12\).*rank_pattern"):
        model.add_adapter("a", LoraConfig(target_modules=["conv"]))
    assert model.adapter_names == []
    model.add_adapter("a", LoraConfig(target_modules=["conv"], rank_pattern={"layers.0.conv": 3, "conv": 2}))
    assert [part.rank for part in model.adapter("a").parts.values()] == [3, 2]


def test_scale_is_alpha_by_rank_and_with_rslora_by_its_root() -> None:
    plain = LoraConfig(r=4, lora_alpha=8, target_modules=["w1", "w2"], alpha_pattern={"w2": 2.0}).adapters(TABLE)
    assert {name.split(".")[-1]: part.scale for name, part in plain.items()} == {"w1": 2.0, "w2": 0.5}
    root = LoraConfig(r=4, lora_alpha=8, target_modules=["w1"], use_rslora=True).adapters(TABLE)
    assert {part.scale for part in root.values()} == {4.0}
    assert {part.scale for part in LoraConfig(r=4, target_modules=["w1"]).adapters(TABLE).values()} == {1.0}


def test_targets_start_from_different_draws_and_no_delta() -> None:
    parts = list(LoraConfig(r=4, target_modules=["w1"]).adapters(TABLE).values())
    assert not any(part.delta().any() for part in parts)
    assert len({part.A.tobytes() for part in parts}) == len(parts)
