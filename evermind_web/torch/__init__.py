"""The model in PyTorch: the same parameters and the same numbers, for training beyond a browser.

The only package that imports torch; `pip install evermind-web[torch]` brings it.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "evermind_web.torch needs PyTorch: pip install evermind-web[torch]", name="torch"
    ) from error

from evermind_web.torch.convert import packed_from_state as packed_from_state
from evermind_web.torch.convert import to_evl0 as to_evl0
from evermind_web.torch.module import EvermindModule as EvermindModule
