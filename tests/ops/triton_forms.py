"""The forms in which kernels are launched, and what the compiler makes of them without a GPU.

What is true here: a form is recorded from the wrapper that launches it, called on CPU tensors with
the launch itself left out; so what is compiled is what would run, with the same constants, formats
and options.
"""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

CAPABILITIES = (80, 90, 100)
_NAMES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
}
# The address, then the registers: "ld.global.v4.b32 { %r1, ... }, [ %rd1 + 0 ];".
_ACCESS = re.compile(r"^(@!?%p\d+ )?(ld|st)\.global(?:\.[\w:]+)*?(?:\.v(\d))?\.[bfsu](\d+) ")


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which a kernel is launched.

    Args:
        kernel: The kernel.
        signature: Type of each argument: ``(("count", "i64"), ("BLOCK", "constexpr"))``.
        constants: Value of each constant.
        options: What else it is compiled with.
    """

    kernel: JITFunction
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        """Name the form: its kernel and constants."""
        constants = ",".join(f"{name}={value}" for name, value in self.constants)
        return f"{self.kernel.fn.__name__}({constants})"


def _form(kernel: JITFunction, args: tuple[Any, ...], given: dict[str, Any]) -> Form:
    parameters = inspect.signature(kernel.fn).parameters
    options = {name: value for name, value in given.items() if name not in parameters}
    named = {name: value for name, value in given.items() if name in parameters}
    bound = inspect.signature(kernel.fn).bind(*args, **named).arguments
    assert list(bound) == list(parameters), "an argument of a kernel has a default"
    signature, constants = {}, {}
    for (name, value), parameter in zip(bound.items(), kernel.params, strict=True):
        if parameter.is_constexpr:
            signature[name], constants[name] = "constexpr", value
            continue
        assert parameter.do_not_specialize, f"{name} makes forms that no test covers"
        # A number must have its type written down, or it would depend on its size.
        signature[name] = parameter.annotation_type or _NAMES[value.dtype]
    return Form(kernel, *(tuple(d.items()) for d in (signature, constants, options)))


def record(call: Callable[[], Any]) -> list[Form]:
    """Call a wrapper without launching anything, and give the forms that it would launch."""
    found: dict[Form, None] = {}

    def run(self: JITFunction, *args: Any, grid: Any, warmup: bool, **given: Any) -> None:
        assert all(isinstance(size, int) for size in grid)
        found[_form(self, args, given)] = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", run)
        call()
    return list(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What came of compiling a form.

    Args:
        ptx: Its code for the virtual machine.
        registers: Per thread.
        stack_bytes: Per thread, in slow memory; anything here is a spill.
        shared_bytes: Per program.
        threads: Per program.
    """

    ptx: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    threads: int

    def wide_bytes(self, way: str) -> int:
        """Bytes that a program moves 16 at a time, and without a condition: "ld" or "st"."""
        found = filter(None, (_ACCESS.match(line.strip()) for line in self.ptx.splitlines()))
        widths = (int(m[3] or 1) * int(m[4]) // 8 for m in found if m[2] == way and not m[1])
        return sum(width for width in widths if width == 16) * self.threads

    def instructions(self, start: str) -> set[str]:
        """The different instructions that start with a word, with all that is written after it."""
        words = re.findall(r"^\s*(?:@!?%p\d+ )?([a-z][\w.]*)", self.ptx, re.MULTILINE)
        return {word for word in words if word.split(".")[0] == start}


@functools.cache
def compiled(form: Form, capability: int) -> Compiled:
    """Compile a form for a compute capability, 90 for 9.0."""
    source = ASTSource(
        fn=form.kernel, signature=dict(form.signature), constexprs=dict(form.constants), attrs={}
    )
    target = GPUTarget("cuda", capability, 32)
    made = triton.compile(source, target=target, options=dict(form.options))
    path = triton.knobs.cache.dir + "/form.cubin"
    with open(path, "wb") as file:
        file.write(made.asm["cubin"])
    tool = triton.knobs.nvidia.cuobjdump.path
    said = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True)
    usage = {key: int(n) for key, n in re.findall(r"\b([A-Z]+):(\d+)", said.stdout)}
    return Compiled(
        ptx=made.asm["ptx"],
        registers=usage["REG"],
        stack_bytes=usage["STACK"] + usage["LOCAL"],
        shared_bytes=made.metadata.shared,
        threads=32 * dict(form.options)["num_warps"],
    )
