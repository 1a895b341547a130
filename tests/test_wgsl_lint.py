"""Every kernel keeps to what all browsers guarantee, read from its text (cases GP3 and GP13)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evermind_web.backend.device import Kernel, load_kernel

ROOT = Path(__file__).parent.parent
KERNELS = sorted(path.stem for path in (ROOT / "wgsl").glob("*.wgsl"))
HEADER = re.compile(r"// \w+: .+; reference: backend/reference/(\w+)\.py; test: tests/(?:ops|backend)/test_\w+\.py")
FORBIDDEN = {
    r"\bf16\b": "shader-f16 is not required",
    r"\bsubgroup\w*\b": "subgroups are not required",
    r"\batomic<f32>": "there are no float atomics",
    r"fn \w+\([^)]*\bptr<\s*(workgroup|storage|uniform)": "Firefox refuses pointers to such memory as parameters",
    r"\b(isNan|isInf)\b": "test bits instead: compilers may assume there is no NaN",
    r"@group\([1-9]": "all bindings are in group 0",
    r"^\s*(enable|requires|diagnostic)\b": "no extension is everywhere",
    r"\b(dot4[UI]8Packed|(un)?pack4x[UI]8\w*)": "packed products are an extension in Firefox and Safari",
    r"bitcast<f(16|32)>\(\s*(0[xX][0-9a-fA-F]+|\d+)[ui]?\s*\)": "a constant that may be NaN or infinite is refused",
    r"\bbitcast<(vec2<)?f16": "Safari scrambled halves that were cast",
    r"&\w+\[[^\]]*\]\s*\)\s*\.": "a member of a pointer: write (*p).x",
    r"\btexture\w*": "textures are not used",
}
SIZES = {"f32": 4, "u32": 4, "i32": 4, "vec2<f32>": 8, "vec2<u32>": 8, "vec4<f32>": 16, "vec4<u32>": 16}


def code_of(kernel: Kernel) -> str:
    """The kernel's text without comments."""
    return re.sub(r"//[^\n]*", "", kernel.code)


def constants(code: str) -> dict[str, int]:
    """Integer constants and override defaults of a kernel, by name."""
    known: dict[str, int] = {}
    for name, text in re.findall(r"\b(?:const|override) (\w+)(?:\s*:\s*\w+)?\s*=\s*([^;]+);", code):
        value = evaluate(text, known)
        if value is not None:
            known[name] = value
    return known


def evaluate(text: str, known: dict[str, int]) -> int | None:
    """The value of an integer expression, or None if it is none."""
    plain = re.sub(r"\b(\d+)[ui]\b", r"\1", text).replace("/", "//")
    if not re.fullmatch(r"[\w\s+*/()-]+", plain):
        return None
    try:
        return int(eval(plain, {"__builtins__": {}}, dict(known)))
    except (NameError, SyntaxError, TypeError):
        return None


def workgroup_size(code: str) -> int:
    """Invocations of a workgroup."""
    (dims,) = re.findall(r"@workgroup_size\(([^)]*)\)", code)
    size = 1
    for dim in dims.split(","):
        value = evaluate(dim, constants(code))
        assert value is not None, f"cannot read workgroup size {dim!r}"
        size *= value
    return size


def workgroup_bytes(code: str) -> int:
    """Workgroup memory of a kernel in bytes."""
    total = 0
    for kind in re.findall(r"var<workgroup>\s*\w+\s*:\s*([^;]+);", code):
        element, count = kind.strip(), 1
        while match := re.fullmatch(r"array<(.+),\s*([^,]+)>", element):
            extent = evaluate(match[2], constants(code))
            assert extent is not None, f"cannot read the length of {kind!r}"
            element, count = match[1].strip(), count * extent
        element = re.sub(r"atomic<(\w+)>", r"\1", element)
        total += SIZES[element] * count
    return total


def problems(kernel: Kernel) -> list[str]:
    """What is wrong with a kernel."""
    code = code_of(kernel)
    found = [f"{pattern}: {why}" for pattern, why in FORBIDDEN.items() if re.search(pattern, code, re.MULTILINE)]
    overrides = set(re.findall(r"\boverride (\w+)", code))
    for kind in re.findall(r"var<workgroup>\s*\w+\s*:\s*([^;]+);", code):
        if overrides & set(re.findall(r"\w+", kind)):
            found.append(f"{kind}: Firefox refuses workgroup memory sized by an override")
    storage = sum(kind != "uniform" for kind in kernel.bindings)
    if storage > 8:
        found.append(f"kernel {kernel.name} binds {storage} storage buffers, limit 8")
    if workgroup_size(code) > 256:
        found.append(f"kernel {kernel.name} has {workgroup_size(code)} invocations a workgroup, limit 256")
    if workgroup_bytes(code) > 16384:
        found.append(f"kernel {kernel.name} takes {workgroup_bytes(code)} bytes of workgroup memory, limit 16384")
    if "uniform" in kernel.bindings[:-1]:
        found.append(f"kernel {kernel.name}: the uniform buffer is the last binding")
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_gp3_gp12_gp13_kernel_keeps_to_the_limits(name: str) -> None:
    assert problems(load_kernel(name)) == []


@pytest.mark.parametrize("name", KERNELS)
def test_first_line_names_reference_and_test(name: str) -> None:
    first = (ROOT / "wgsl" / f"{name}.wgsl").read_text(encoding="utf-8").splitlines()[0]
    match = HEADER.fullmatch(first)
    assert match, first
    assert (ROOT / "evermind_web" / "backend" / "reference" / f"{match[1]}.py").is_file()


def test_every_kernel_is_dispatched_by_a_plan() -> None:
    plans = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "evermind_web/backend/kernels").glob("*.py"))
    assert [name for name in KERNELS if f'"{name}"' not in plans] == []


def _kernel(body: str, bindings: tuple[str, ...] = ("read", "uniform")) -> Kernel:
    return Kernel("made_up", body + "\n@compute @workgroup_size(64) fn main() {}", bindings)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (_kernel("", ("read",) * 9), "binds 9 storage buffers, limit 8"),
        (_kernel("fn f(p: ptr<workgroup, f32>) {}"), "pointers"),
        (_kernel("enable f16;"), "shader-f16"),
        (_kernel("requires pointer_composite_access;"), "extension"),
        (_kernel("const X = bitcast<f32>(0x7fc00000u);"), "NaN"),
        (_kernel("override W = 8u; var<workgroup> t: array<f32, W>;"), "sized by an override"),
        (_kernel("const A = 64u; var<workgroup> t: array<vec4<f32>, A * 17u>;"), "17408 bytes"),
        (_kernel("var<workgroup> t: array<array<f32, 65>, 64>;"), "16640 bytes"),
        (_kernel("", ("uniform", "read")), "last binding"),
        (
            Kernel("made_up", "override W = 32u; @compute @workgroup_size(W, 9) fn main() {}", ("read",)),
            "288 invocations",
        ),
    ],
)
def test_lint_sees_what_is_wrong(kernel: Kernel, says: str) -> None:
    assert says in "\n".join(problems(kernel))
