"""Makes Megatron-Core importable without Triton, and on Python 3.11; import it before Megatron."""

from __future__ import annotations

import os
import sys
import types
import typing
import warnings
from typing import Any

os.environ.update(TORCH_COMPILE_DISABLE="1", TORCHDYNAMO_DISABLE="1", NO_VCS_VERSION="1",
                  CUDA_DEVICE_MAX_CONNECTIONS="1")
warnings.filterwarnings("ignore")

_LEAF: Any = types.ModuleType("megatron.core.transformer.moe.ops.paged_stash")
_LEAF.GLOBAL_BLOCK_SIZE = 1024
_LEAF.paged_stash_copy_kernel = _LEAF.paged_stash_pop_kernel = None
# The one module that imports Triton without asking whether it is there.
sys.modules.setdefault(_LEAF.__name__, _LEAF)
if not hasattr(typing, "override"):
    typing.override = lambda method: method  # type: ignore[attr-defined]
