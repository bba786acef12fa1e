"""Compile every Triton kernel for GPUs that are not here and print what the cubins hold, as JSON lines.

Run as a script in a process of its own: the tests that interpret kernels cannot compile them. Each line: name, arch,
registers, stack (bytes), shared (bytes), spills (local loads and stores), and the widest global load in bits.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_ALWAYS_COMPILE"] = "1"
os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
LOAD = re.compile(r"\bLDG\.E(?:\.\w+)*?(?:\.(U8|S8|U16|S16|64|128))?(?:\.\w+)*\s")


def kind(name, dtypes):
    """Give the type of an argument by its name: pointers end in _ptr, eps is a float, strides and counts are ints."""
    if name.endswith("_ptr"):
        return "*" + dtypes.get(name, "fp32")
    return {"eps": "fp32", "keep_scale": "fp32", "seed": "i64"}.get(name, "i32")


def build(kernel, dtypes, constants, arch, *, aligned, warps):
    """Compile one kernel; `aligned` names the integers that are multiples of 16 (pointers always are)."""
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else kind(n, dtypes) for n in names}
    attrs = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(names)
        if n not in constants and (n.endswith("_ptr") or n in aligned)
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})


def read(compiled):
    """Read registers, stack, shared memory, spill instructions and load widths off the cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        )
        code = subprocess.run([TOOLS / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage.stdout)
    widths = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, None: 32, "": 32}
    loads = [widths[m.group(1)] for m in LOAD.finditer(code.stdout)]
    return {
        "registers": int(found[1]),
        "stack": int(found[2]),
        "shared": compiled.metadata.shared,
        "spills": len(re.findall(r"\b(?:LDL|STL)\b", code.stdout)),
        "loads": {str(w): loads.count(w) for w in sorted(set(loads))},
    }


def focused(dtype, head_width, heads):
    """Yield (name, kernel, dtypes, constants, aligned, warps) of focused linear attention, as launch.py calls it."""
    import torch

    from vitconv.kernels.focused import launch
    from vitconv.kernels.focused import triton_backward as back
    from vitconv.kernels.focused import triton_forward as fore
    from vitconv.kernels.focused.attention import Focus

    name = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    tensors = ("x_ptr", "q_ptr", "k_ptr", "v_ptr", "add_ptr", "out_ptr", "grad_ptr", "dq_ptr", "dk_ptr", "dv_ptr")
    dtypes = dict.fromkeys(tensors, name)
    width = head_width * heads
    aligned = ("q_batch", "q_row", "k_batch", "k_row", "v_batch", "v_row", "grad_batch", "grad_row", "add_batch",
               "add_row", "pos_stride", "batch_stride", "row_stride", "tokens", "chunk")  # fmt: skip
    shape = launch.tile(head_width, dtype, 3136)
    base = shape.constants(Focus(heads), head_width)
    warps = base.pop("num_warps")
    wide = triton.next_power_of_2(width)
    rows = max(1, min(64, 4096 // wide))
    stats = {"P": 3, "HAS_POS": True, "D": width, "BT": rows, "BD": wide}
    label = f"focused-{name}-{head_width}x{heads}"
    many = {"H": heads, "D": width}
    yield f"{label}-statistics", fore.statistics_kernel, dtypes, stats, aligned, 4
    yield f"{label}-state", fore.state_kernel, dtypes, base | {"HAS_POS": True}, aligned, warps
    out = base | {"HAS_ADD": True, "D": width, "add_col": 1}
    yield f"{label}-output", fore.output_kernel, dtypes, out, aligned, warps
    yield f"{label}-reduce", back.reduce_kernel, dtypes, base, aligned, warps
    query = base | many | {"BH": triton.next_power_of_2(heads)}
    yield f"{label}-query", back.query_kernel, dtypes, query, aligned, warps
    shape = launch.key_tile(head_width, dtype, 3136)
    base = shape.constants(Focus(heads), head_width)
    warps = base.pop("num_warps")
    yield f"{label}-key", back.key_kernel, dtypes, base | many | {"HAS_POS": True}, aligned, warps


def layer_norm(name, out, width):
    """Yield the LayerNorm kernels with x in `name`, y and its gradient in `out`, weights in float32."""
    from vitconv.kernels.layer_norm import launch, triton_kernels

    dtypes = {"x_ptr": name, "dx_ptr": name, "y_ptr": out, "grad_ptr": out}
    for which, kernel in (("forward", triton_kernels.forward_kernel), ("backward", triton_kernels.backward_kernel)):
        shape = launch.tile(width, backward=which == "backward")
        constants = {"HAS_WEIGHT": True, "HAS_BIAS": True, "D": width, "BR": shape.rows, "BD": shape.width}
        yield f"norm-{name}-{out}-{width}-{which}", kernel, dtypes, constants, ("x_row", "grad_row"), shape.warps


def epilogue(name, activation, width):
    """Yield the epilogue kernels with dropout."""
    from vitconv.kernels.epilogue import launch, triton_kernels

    dtypes = dict.fromkeys(("x_ptr", "y_ptr", "grad_ptr", "dx_ptr"), name)
    for which, kernel in (("forward", triton_kernels.forward_kernel), ("backward", triton_kernels.backward_kernel)):
        shape = launch.tile(width)
        constants = launch.constants(width, activation, 0.1, shape, has_bias=True)
        warps = constants.pop("num_warps")
        yield f"epilogue-{name}-{activation}-{width}-{which}", kernel, dtypes, constants, ("x_row", "grad_row"), warps


def cases(which):
    """Yield every case of the named families."""
    import torch

    if "focused" in which:
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            for head_width, heads in ((32, 3), (24, 4), (64, 2)):
                if dtype != torch.float32 or head_width <= 32:
                    yield from focused(dtype, head_width, heads)
    if "norm" in which:
        for name, out in (("fp16", "fp16"), ("bf16", "bf16"), ("fp32", "fp32"), ("fp32", "bf16")):
            for width in (96, 384, 768, 1024, 1408, 8192):
                yield from layer_norm(name, out, width)
    if "epilogue" in which:
        for name in ("fp16", "bf16", "fp32"):
            for activation in ("erf", "tanh"):
                yield from epilogue(name, activation, 3072)


if __name__ == "__main__":
    architectures = [int(a) for a in sys.argv[2].split(",")]
    wanted = re.compile(sys.argv[3] if len(sys.argv) > 3 else "")
    for name, kernel, dtypes, constants, aligned, warps in cases(sys.argv[1].split(",")):
        if not wanted.search(name):
            continue
        for arch in architectures:
            compiled = build(kernel, dtypes, constants, arch, aligned=aligned, warps=warps)
            sys.stdout.write(json.dumps({"name": name, "arch": arch, **read(compiled)}) + "\n")
            sys.stdout.flush()
