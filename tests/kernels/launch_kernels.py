"""Launch the benchmark's kernels at their full shapes for a card that is not here, and print what each launch compiled.

The launchers run as they would: tensors without memory, real shapes and strides, and a driver that names a card. A
launch specialises and compiles as on that card, and ends before it runs. Run as a script in a process of its own:
architecture, and a pattern of the cases wanted. Each line: case, name, grid, and what `compile_kernels.read` reads.
"""

import json
import re
import sys

# First: it chooses the cache, and keeps the interpreter out.
import compile_kernels
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from vitconv.kernels import dispatch
from vitconv.kernels.bench_cases import cases


class Card:
    """Stand for the driver of one card."""

    def __init__(self, architecture):
        self.target = GPUTarget("cuda", architecture, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, _device):
        return 0


def launched(architecture, wanted):
    """Run forward and backward of the cases wanted and yield (case, kernel's name, grid, compiled) of each launch."""
    launches, run = [], JITFunction.run

    def compile_only(self, *args, grid, warmup, **options):
        launches.append((self.fn.__name__, grid, run(self, *args, grid=grid, warmup=True, **options)))
        return launches[-1][2]

    driver.set_active(Card(architecture))
    JITFunction.run = compile_only
    # Tensors without memory are on no card; all else that stands against a kernel stays.
    dispatch._obstacles = lambda request, _offers: list(request.objections)
    for case in cases(tiny=False, compiled=False):
        if re.search(wanted, f"{case.kernel} {case.label}"):
            leaves = [x.requires_grad_() for x in case.make(torch.device("meta"))]
            y = case.providers["own"](*leaves)
            torch.autograd.grad(y, leaves, torch.empty_like(y))
            yield from ((case, *launch) for launch in launches)
            launches.clear()


if __name__ == "__main__":
    for case, name, grid, compiled in launched(int(sys.argv[1]), sys.argv[2]):
        line = {"case": f"{case.kernel} {case.label}", "name": name, "grid": grid, **compile_kernels.read(compiled)}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
