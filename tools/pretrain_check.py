"""Half a minute that tells whether pretraining can be trusted on this machine; used by tools.pretrain_sweep.

The module on the device in float32 must give the CPU's loss and gradients; compiled and in bfloat16 it must stay
close to that. Prints one JSON line with the deviations and the time of a step of the recipe, or fails.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import Tensor

from evermind_web.torch import EvermindModule
from evermind_web.torch.recipe import Recipe
from evermind_web.torch.trainer import Objective, token_loss


def loss_and_gradient(objective: Objective, windows: Tensor, half: bool) -> tuple[float, Tensor]:
    """Mean loss and all gradients as one vector on the CPU."""
    objective.zero_grad()
    with torch.autocast(windows.device.type, torch.bfloat16, enabled=half):
        loss, _, _ = objective(windows)
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in objective.parameters() if p.grad is not None])
    return float(loss.detach()), gradient.double().cpu()


def main() -> None:
    """See the top of this file."""
    recipe = Recipe.from_json(json.loads(sys.argv[1]) if len(sys.argv) > 1 else {})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arch = recipe.arch(recipe.vocab_size)._replace(num_layers=2)
    module = EvermindModule(*arch, seed=1)
    with torch.no_grad():
        for parameter in module.parameters():  # away from the initial weights, where most of the model is idle
            parameter.add_(
                0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
    windows = torch.randint(0, arch.vocab_size, (8, 129), generator=torch.Generator().manual_seed(1))
    exact, expected = loss_and_gradient(Objective(module, token_loss), windows, half=False)
    module, windows = module.to(device), windows.to(device)
    found = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "torch": torch.__version__}
    report: dict[str, object] = dict(found)
    limits = {"float32": (1e-4, 1e-3), "bfloat16": (1e-2, 5e-2), "compiled": (1e-2, 5e-2)}
    for name, (loss_limit, gradient_limit) in limits.items():
        try:
            objective = compiled(module) if name == "compiled" else Objective(module, token_loss)
            loss, gradient = loss_and_gradient(objective, windows, half=name != "float32")
            errors = abs(loss - exact) / exact, float((gradient - expected).norm() / expected.norm())
            report[name] = [float(f"{e:.2e}") for e in errors]
            if not (errors[0] < loss_limit and errors[1] < gradient_limit):
                raise ArithmeticError(f"{name}: loss and gradient are {errors} off, allowed {limits[name]}: {report}")
        except Exception as error:
            if name != "compiled":
                raise
            report["not_compiled"] = f"{type(error).__name__}: {error}"[:600]  # slower, but it can go on
    if device == "cuda":
        report["step_ms"] = step_time(recipe, "not_compiled" not in report)
    print(json.dumps(report))


def compiled(module: EvermindModule) -> Objective:
    """The objective as the trainer compiles it on a GPU."""
    module.compile_layers(dynamic=False)
    return Objective(module, torch.compile(token_loss, dynamic=False))


def step_time(recipe: Recipe, compile_it: bool) -> float:
    """Milliseconds of forward and backward of a step of the recipe."""
    module = EvermindModule(*recipe.arch(recipe.vocab_size), dropout=0.1).to("cuda")
    objective = compiled(module) if compile_it else Objective(module, token_loss)
    windows = torch.randint(0, recipe.vocab_size, (recipe.batch, recipe.window + 1), device="cuda")
    for i in range(15):
        if i == 5:
            torch.cuda.synchronize()
            started = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss, _, _ = objective(windows)
        loss.backward()
    torch.cuda.synchronize()
    return round((time.perf_counter() - started) * 100, 3)


if __name__ == "__main__":
    main()
