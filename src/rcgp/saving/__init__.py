"""Saved models: one file of JSON and tensors that never runs code when it is read.

archive     one versioned, checksummed safetensors file, written atomically
recipes     the kernels, means, weight functions, constraints and priors that can be saved
modules     a tree of such modules as JSON and tensors, and back
json_lines  append-only files of JSON lines with a lock: traces of optimisations, records of runs
"""

from rcgp.saving.archive import SavedModelError, check_writable, read_archive, write_archive, write_atomically
from rcgp.saving.modules import describe, rebuild

__all__ = [
    "SavedModelError",
    "check_writable",
    "describe",
    "read_archive",
    "rebuild",
    "write_archive",
    "write_atomically",
]
