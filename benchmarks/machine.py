"""What the figures were measured on, and its roofs."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def seconds(run: Callable[[], object], rounds: int = 5) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


_COPY = """
import time, numpy as np
source = np.ones(32_000_000); target = np.empty_like(source); times = []
for _ in range(7):
    start = time.perf_counter(); np.copyto(target, source)
    times.append(time.perf_counter() - start)
print(2 * source.nbytes / sorted(times)[3] / 1e9)
"""


def copy_gb_per_s() -> float:
    """Return the memory bandwidth of one core: read plus write of a large copy.

    In a process of its own: what it holds would count in the peaks measured afterwards, of
    this process and of those that it starts.
    """
    run = subprocess.run([sys.executable, "-c", _COPY], capture_output=True, check=True)
    return float(run.stdout)


def process(*argv: str, rounds: int = 5) -> tuple[float, float, str]:
    """Run a command as a process of its own, after one run that fills the caches.

    Returns
    -------
    wall_s, peak_mib, stdout
        Medians over the rounds, and what the last one wrote.
    """
    walls, peaks, out = [], [], b""
    for number in range(rounds + 1):
        start = time.perf_counter()
        with subprocess.Popen([sys.executable, "-m", "autotune", *argv], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            assert child.stdout is not None
            out = child.stdout.read()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if number:
            walls.append(time.perf_counter() - start)
            peaks.append(usage.ru_maxrss / 1024)
    return statistics.median(walls), statistics.median(peaks), out.decode()


def described() -> str:
    """Describe the machine in general terms, and how busy it was."""
    family = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines()
                 if line.startswith("model name")]
        family = names[0] if names else family
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (f"{os.cpu_count()} cores, {family}, {memory:.0f} GiB, "
            f"Python {platform.python_version()}, numpy {np.__version__}; load "
            f"{os.getloadavg()[0]:.1f} at the start, {copy_gb_per_s():.1f} GB/s copy on one core")
