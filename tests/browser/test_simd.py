"""The SIMD kernels in Pyodide: against NumPy in float64, on odd shapes and strides; and what happens without them."""

from __future__ import annotations

from tests.browser.harness import PyodidePage

# Every test gets arrays from here: `matrix` gives uniform numbers in [-1, 1), dense, transposed, or cut out of more.
SETUP = """
import numpy as np
from evermind_web.backend import simd
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.reference import linalg, moe, optim
from evermind_web.ops import HYPER

kernels = simd.kernels()
draw = np.random.default_rng(5)

def matrix(rows, cols, kind="dense"):
    if kind == "turned":
        return matrix(cols, rows).T
    if kind == "cut":
        return matrix(rows + 2, cols + 3)[1:-1, 2:-1]
    if kind == "spread":
        return matrix(2 * rows, 3 * cols)[::2, ::3]
    if kind == "backwards":
        return matrix(rows, cols)[::-1, ::-1]
    return (draw.random((rows, cols), np.float32) * 2 - 1).astype(np.float32)

def plain(call):
    "What `call` gives with NumPy alone."
    linalg.use(None)
    try:
        return call()
    finally:
        linalg.use(kernels)

linalg.use(kernels)
"""


async def run(page: PyodidePage, code: str) -> object:
    return await page.run_python(SETUP + code)


async def test_the_kernels_are_there_and_the_backend_says_so(pyodide_page: PyodidePage) -> None:
    found = await run(
        pyodide_page,
        "[kernels is not None, simd.problem, NumpyBackend().adapter_name == f'NumPy {np.__version__} + SIMD']",
    )
    assert found == [True, "", True]


async def test_products_of_odd_shapes_and_strides(pyodide_page: PyodidePage) -> None:
    """Each side of a tile (4x8), of a slice (64 rows, 512 columns, 256 deep), and each way to lie in memory."""
    found = await run(
        pyodide_page,
        """
KINDS = ("dense", "turned", "cut", "spread", "backwards")
SHAPES = [(4, 8, 4), (5, 9, 7), (1, 1, 1), (3, 300, 2), (64, 512, 256), (65, 513, 257), (127, 8, 511), (9, 1, 40)]
wrong, count, worst = [], 0, 0.0
for M, N, K in SHAPES:
    for kind_a in KINDS:
        for kind_b in KINDS:
            if M * N * K > 100_000 and "spread" in (kind_a, kind_b):
                continue
            a, b = matrix(M, K, kind_a), matrix(K, N, kind_b)
            whole = matrix(M + 2, N + 3)
            before, out = whole.copy(), whole[1:-1, 1:-2]
            exact = np.matmul(a, b, dtype=np.float64)
            for accumulate in (False, True):
                expected = exact + (out if accumulate else 0)
                kernels.matmul(a, b, out, accumulate)
                error = float(np.abs(out - expected).max()) / K**0.5
                worst, count = max(worst, error), count + 1
                if not error < 2e-6:
                    wrong.append([M, N, K, kind_a, kind_b, accumulate, error])
            whole[1:-1, 1:-2] = before[1:-1, 1:-2]
            if not np.array_equal(whole, before):
                wrong.append([M, N, K, kind_a, kind_b, "wrote beside its output"])
[wrong, count > 300, worst > 0]
""",
    )
    assert found == [[], True, True]


async def test_matmul_sends_each_product_where_it_belongs(pyodide_page: PyodidePage) -> None:
    found = await run(
        pyodide_page,
        """
class Counting:
    calls = 0
    def takes(self, a, b):
        return kernels.takes(a, b)
    def matmul(self, *args):
        Counting.calls += 1
        kernels.matmul(*args)

linalg.use(Counting())
a, b = matrix(16, 32), matrix(32, 24)
cases = {
    "float32": lambda: linalg.matmul(a, b),
    "into columns that lie apart": lambda: linalg.matmul(a, b, np.zeros((24, 16), np.float32).T),
    "added": lambda: linalg.matmul(a, b, np.ones((16, 24), np.float32), accumulate=True) - 1,
    "float64": lambda: linalg.matmul(a.astype(np.float64), b.astype(np.float64)),
    "mixed": lambda: linalg.matmul(a, b.astype(np.float64)),
    "one row": lambda: linalg.matmul(a[:1], b),
    "nothing": lambda: linalg.matmul(a[:0], b),
    "no depth": lambda: linalg.matmul(a[:, :0], b[:0]) + a @ b,
}
found = {}
for name, call in cases.items():
    Counting.calls = 0
    result = call()
    exact = np.matmul(a[: len(result)], b, dtype=np.float64)
    found[name] = [Counting.calls, bool(np.allclose(result, exact, 0, 1e-5)), result.dtype.name]
found
""",
    )
    assert found == {
        "float32": [1, True, "float32"],
        "into columns that lie apart": [1, True, "float32"],
        "added": [1, True, "float32"],
        "float64": [0, True, "float64"],
        "mixed": [0, True, "float64"],
        "one row": [0, True, "float32"],
        "nothing": [0, True, "float32"],
        "no depth": [0, True, "float32"],
    }


async def test_py1_the_memory_grows_between_calls(pyodide_page: PyodidePage) -> None:
    found = await run(
        pyodide_page,
        """
from evermind_web.environment import wasm_module

a, b = matrix(40, 50), matrix(50, 60)
first = linalg.matmul(a, b)
size = wasm_module().HEAPU8.length
more = [np.ones(1 << 22, np.float32) for _ in range(1 + (size >> 24))]  # as much again, and 16 MB
far = np.empty((40, 60), np.float32)
grown = wasm_module().HEAPU8.length
again = linalg.matmul(a.copy(), b.copy())
linalg.matmul(a, b, far)
high = more[-1][: 40 * 60].reshape(40, 60)
linalg.matmul(a, b, high)
is_high = high.__array_interface__["data"][0] > size - (1 << 24)
[grown > size, is_high, *(np.array_equal(first, x) for x in (again, far, high))]
""",
    )
    assert found == [True] * 5


async def test_equal_rows_give_equal_scores_and_a_repeat_the_same_bits(pyodide_page: PyodidePage) -> None:
    found = await run(
        pyodide_page,
        """
m, wr = matrix(200, 300), matrix(13, 300)
wr[4] = wr[12] = wr[0]  # in the middle of a tile, and at its edge
m[150] = m[199] = m[3]
scores = moe.router_logits(m, wr)
[np.array_equal(scores[:, 4], scores[:, 0]), np.array_equal(scores[:, 12], scores[:, 0]),
 np.array_equal(scores[150], scores[3]), np.array_equal(scores[199], scores[3]),
 np.array_equal(scores, moe.router_logits(m, wr)),
 bool(np.allclose(scores, plain(lambda: moe.router_logits(m, wr)), 0, 1e-5))]
""",
    )
    assert found == [True] * 6


async def test_softmax_rows(pyodide_page: PyodidePage) -> None:
    found = await run(
        pyodide_page,
        """
def both(x):
    ours, theirs = x.copy(), x.copy()
    with np.errstate(all="ignore"):
        sums, expected = linalg.softmax_rows(ours), plain(lambda: linalg.softmax_rows(theirs))
    close = lambda x, y, atol: np.allclose(x, y, 1e-6, atol, equal_nan=True)
    return close(ours, theirs, 1e-9) and close(sums, expected, 1e-6)

special = matrix(6, 9)
special[0, 8], special[1, 2], special[2, 3], special[3, 8] = np.nan, np.inf, -np.inf, 1e30
special[4] = -np.inf
exponents = np.linspace(-80, 0, 4001, dtype=np.float32)[None]
e, best, total = exponents.copy(), np.empty(1, np.float32), np.empty(1)
kernels.softmax_rows(e, best, total)
error = np.abs(e * total / np.exp(exponents.astype(np.float64)) - 1).max()
[[both(matrix(5, cols) * scale) for cols in (4, 5, 7, 8, 513) for scale in (1, 30, 200)], both(special),
 both(matrix(3, 2)), bool(error < 5e-7) or float(error)]
""",
    )
    assert found == [[True] * 15, True, True, True]


async def test_passes_of_the_mixture_and_the_optimizer(pyodide_page: PyodidePage) -> None:
    """AdamW's steps are NumPy's bit for bit, as is what follows from them."""
    found = await run(
        pyodide_page,
        """
h, b, d = matrix(7, 12), matrix(1, 12)[0], matrix(7, 12)
h[0, 0], h[1, 1] = np.nan, -0.0
ours, theirs = h.copy(), h.copy()
linalg.bias_relu(ours, b)
plain(lambda: linalg.bias_relu(theirs, b))
relu = np.array_equal(ours, theirs, equal_nan=True)
ours, theirs = d.copy(), d.copy()
linalg.relu_mask(ours, h)
plain(lambda: linalg.relu_mask(theirs, h))
mask = np.array_equal(ours, theirs)

def steps(group, clip, scale, half):
    hyper = np.zeros(16, np.float32)
    values = {"lr": 0.01, "beta1": 0.9, "one_minus_beta1": 0.1, "beta2": 0.999, "one_minus_beta2": 0.001, "eps": 1e-8,
              "bias_correction1": 0.1, "bias_correction2": 0.001, "weight_decay": 0.1, "inv_grad_scale": scale,
              "max_grad_norm": clip}
    for name, value in values.items():
        hyper[HYPER[name]] = value
    random = np.random.default_rng(2)
    p, m, v, stats = random.random(256, np.float32), *np.zeros((2, 256), np.float32), np.zeros(2, np.float32)
    for _ in range(3):
        g = random.random(256, np.float32) - np.float32(0.5)
        optim.grad_stats(g, hyper, stats, half, 0)
        optim.adamw(g, np.array(group, np.float32), hyper, stats, p, m, v, half)
    return p, m, v, stats

same = []
for args in (([1, 0, -1, 1], 0, 1, 0), ([1, 0, 0, 1], 0.5, 0.25, 0), ([0, -1, -1, 1], 100, 0.5, 1)):
    ours, theirs = steps(*args), plain(lambda: steps(*args))
    clipped = args[1] == 0.5  # by the norm, whose last bit depends on the order of its sum
    equal = [np.array_equal(x, y) or clipped and bool(np.allclose(x, y, 1e-6, 0)) for x, y in zip(ours, theirs)]
    same.append([*equal[:3], bool(np.allclose(ours[3], theirs[3], 1e-6, 0))])

bad = []
for value in (np.nan, np.inf, -np.inf):
    g, stats = matrix(1, 64)[0], np.zeros(2, np.float32)
    g[63] = value
    hyper = np.ones(16, np.float32)
    optim.grad_stats(g, hyper, stats, 0, 0)
    bad.append(float(stats[1]))
optim.grad_stats(np.full(64, 1e30, np.float32), hyper, stats, 0, 0)
[relu, mask, same, bad, float(stats[1])]
""",
    )
    assert found == [True, True, [[True] * 4] * 3, [1, 1, 1], 0]


TRAIN = """
from evermind_web import EvermindLM, EvermindLMTrainer

def learn():
    "Losses of the epochs, and the weights after them."
    model = EvermindLM(101, 24, 2, hidden_dim=36, num_experts=3, seed=3, backend=NumpyBackend())
    linalg.use(chosen)
    text = [[(i * 7 + j * j) % 101 for j in range(30)] for i in range(4)]
    losses = EvermindLMTrainer(model, lr=0.01, epochs=4, accum_steps=2).fit(text)
    return losses, np.concatenate([parameter.data.ravel() for parameter in model.parameters()])
"""


async def test_a_model_learns_the_same_with_and_without(pyodide_page: PyodidePage) -> None:
    found = await run(
        pyodide_page,
        TRAIN
        + """
chosen = kernels
(ours, weights), (again, same_weights) = learn(), learn()
chosen = None
theirs, other_weights = learn()
linalg.use(kernels)
repeated = ours == again and np.array_equal(weights, same_weights)
[repeated, not np.array_equal(weights, other_weights), bool(np.allclose(weights, other_weights, 1e-3, 1e-5)),
 bool(np.allclose(ours, theirs, 1e-5, 0)), ours[-1] < ours[0]]
""",
    )
    assert found == [True] * 5


async def test_without_kernels_or_with_wrong_ones_numpy_does_the_work(pyodide_page: PyodidePage) -> None:
    found = await run(
        pyodide_page,
        TRAIN
        + """
from evermind_web import environment

load = environment.load_wasm_library
seen = {}

class Wrong:
    "The real module, but for one function."
    def __init__(self, exports, name, function):
        self.exports, self.name, self.function = exports, name, function
    def __getattr__(self, name):
        return self.function if name == self.name else getattr(self.exports, name)

def refuse(module):
    raise RuntimeError("no SIMD here")

def wrong(name, function):
    return lambda module: Wrong(load(module), name, function)

cases = {"refused": refuse, "layout": wrong("data", lambda address: 0)}
for name in ("gemm", "softmax_rows", "relu_mask", "bias_relu", "adamw"):
    cases[name] = wrong(name, lambda *args: None)
cases["sum_of_squares"] = wrong("sum_of_squares", lambda *args: 0.0)
try:
    for name, loader in cases.items():
        environment.load_wasm_library = loader
        simd.kernels.cache_clear()
        backend = NumpyBackend()
        unused = [simd.kernels() is None, "SIMD" not in backend.adapter_name, type(linalg.kernels) is simd.Arranged]
        seen[name] = [*unused, simd.problem != ""]
    chosen = linalg.kernels
    learned, _ = learn()
    a, b, out = matrix(9, 30, "turned"), matrix(30, 20), np.ones((9, 20), np.float32)
    arranged = bool(np.allclose(linalg.matmul(a, b), a @ b, 0, 1e-6))
    arranged = arranged and bool(np.allclose(linalg.matmul(a, b, out, accumulate=True), 1 + a @ b, 0, 1e-6))
    relaxed = lambda module: refuse(module) if len(tried) == 0 and not tried.append(1) else load(module)
    tried = []
    environment.load_wasm_library = relaxed
    simd.kernels.cache_clear()
    second = simd.kernels().variant
finally:
    environment.load_wasm_library = load
    simd.kernels.cache_clear()
    NumpyBackend()
odd = [row for row in seen.values() if row != [True] * 4]
[list(seen), odd, learned[-1] < learned[0], arranged, second, simd.problem]
""",
    )
    names = ["refused", "layout", "gemm", "softmax_rows", "relu_mask", "bias_relu", "adamw", "sum_of_squares"]
    assert found == [names, [], True, True, "strict", ""]
