"""A test program that computes on a real GPU. It needs only the GPU's driver, no CUDA toolkit and no Python package.

gpu_program.py count [MEBIBYTES]  computes until a file `enough` exists, then prints whether the result is right, and
                                  that many mebibytes of GPU memory unchanged
gpu_program.py ahead SECONDS      first queues work for SECONDS, waits for it, then prints whether the result is right
gpu_program.py hold MEBIBYTES     allocates GPU memory and does nothing
gpu_program.py bursts SECONDS     computes for a moment every SECONDS
gpu_program.py look               prints the number of GPUs that it may use, or the driver's error code
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable

CELLS = 256 * 1024
FACTOR, ADDEND = 6364136223846793005, 1442695040888963407  # Knuth's MMIX generator, modulo 2**64
KERNEL = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .entry advance(.param .u64 cells, .param .u32 times)
{
    .reg .u64 %at, %offset, %cell;
    .reg .u32 %left, %thread, %block, %size;
    .reg .pred %done;
    ld.param.u64 %at, [cells];
    ld.param.u32 %left, [times];
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mad.lo.u32 %thread, %block, %size, %thread;
    cvta.to.global.u64 %at, %at;
    mul.wide.u32 %offset, %thread, 8;
    add.u64 %at, %at, %offset;
    ld.global.u64 %cell, [%at];
again:
    setp.eq.u32 %done, %left, 0;
    @%done bra end;
    mad.lo.u64 %cell, %cell, 6364136223846793005, 1442695040888963407;
    sub.u32 %left, %left, 1;
    bra again;
end:
    st.global.u64 [%at], %cell;
    ret;
}
"""


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class Cuda:
    """The first GPU in CUDA_VISIBLE_DEVICES, used through the CUDA driver API."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        if code := getattr(self.driver, name)(*arguments):
            sys.exit(f"{name} gave {code}")

    def take(self, size: int) -> ctypes.c_uint64:
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        self.call("cuMemsetD8_v2", at, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        return at


class Cells:
    """Counters in GPU memory, which start at 0. Their final values show whether every step was done exactly once."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuModuleLoadData", ctypes.byref(module), KERNEL)
        cuda.call("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"advance")
        self.at = cuda.take(CELLS * 8)
        self.times = 0

    def advance(self, times: int) -> None:
        """Queues one kernel that advances each counter by `times` steps. Does not wait until the kernel has run."""
        self.times += times
        arguments = (self.at, ctypes.c_uint32(times))
        # the driver reads this array before the call returns
        given = (ctypes.c_void_p * 2)(*map(ctypes.addressof, arguments))
        blocks, threads = (CELLS // 256, 1, 1), (256, 1, 1)
        self.cuda.call("cuLaunchKernel", self.kernel, *blocks, *threads, 0, None, given, None)

    def wait(self) -> None:
        self.cuda.call("cuCtxSynchronize")

    def times_in(self, seconds: float) -> int:
        """Measures and returns how many steps one kernel does in about `seconds`; at least 1."""
        self.advance(1)
        self.wait()
        began = time.monotonic()
        self.advance(20_000)
        self.wait()
        return max(1, int(20_000 * seconds / (time.monotonic() - began)))

    def are_right(self) -> bool:
        found = (ctypes.c_uint64 * CELLS)()
        self.cuda.call("cuMemcpyDtoH_v2", found, self.at, ctypes.c_size_t(ctypes.sizeof(found)))
        return set(found) == {advanced(self.times)}


class Filled:
    """GPU memory of `size` bytes, a multiple of a mebibyte. Each mebibyte is filled with another 32-bit number."""

    PART = 1 << 20

    def __init__(self, cuda: Cuda, size: int) -> None:
        self.cuda, self.parts = cuda, range(size // self.PART)
        self.at = cuda.take(size).value if size else 0
        for part in self.parts:
            at, words = ctypes.c_uint64(self.at + part * self.PART), ctypes.c_size_t(self.PART // 4)
            cuda.call("cuMemsetD32_v2", at, ctypes.c_uint(part), words)

    def is_right(self) -> bool:
        """Returns whether each mebibyte begins and ends with its number."""
        found = ctypes.c_uint32()
        for part in self.parts:
            for offset in (0, self.PART - 4):
                at = ctypes.c_uint64(self.at + part * self.PART + offset)
                self.cuda.call("cuMemcpyDtoH_v2", ctypes.byref(found), at, ctypes.c_size_t(4))
                if found.value != part:
                    return False
        return True


def advanced(times: int) -> int:
    """Returns the value that a counter has after `times` steps from 0, computed by repeated squaring of the step."""
    value, factor, addend = 0, FACTOR, ADDEND
    while times:
        if times & 1:
            value = (value * factor + addend) % 2**64
        factor, addend = factor * factor % 2**64, addend * (factor + 1) % 2**64
        times >>= 1
    return value


def count(mebibytes: int = 0) -> None:
    cells = Cells(Cuda())
    kept = Filled(cells.cuda, mebibytes << 20)
    times, steps = cells.times_in(0.01), 0
    while not os.path.exists("enough"):
        cells.advance(times)
        cells.wait()
        steps += 1
        if steps % 10 == 0:
            say("step", steps)
    say("right" if cells.are_right() and kept.is_right() else "wrong", "after", steps)


def ahead(seconds: float) -> None:
    cells = Cells(Cuda())
    times = cells.times_in(0.05)
    for _ in range(int(seconds / 0.05)):
        cells.advance(times)
    say("given")
    cells.wait()
    say("right" if cells.are_right() else "wrong")


def hold(mebibytes: int) -> None:
    Cuda().take(mebibytes << 20)
    say("holds")
    while True:
        time.sleep(60)


def bursts(seconds: float) -> None:
    cells = Cells(Cuda())
    times = cells.times_in(0.02)
    say("begins")
    while True:
        cells.advance(times)
        cells.wait()
        time.sleep(seconds)


def look() -> None:
    found = ctypes.c_int()
    driver = ctypes.CDLL("libcuda.so.1")
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(found))
    say("error" if code else "sees", code or found.value)


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {
        "count": count, "ahead": ahead, "hold": hold, "bursts": bursts, "look": look,
    }  # fmt: skip
    programs[sys.argv[1]](*map(float if sys.argv[1] in {"ahead", "bursts"} else int, sys.argv[2:]))
