"""Saved models: one file of JSON and tensors that never runs code when it is read.

archive      one versioned, checksummed safetensors file, written atomically
recipes      the table of kernels, means and weight functions that can be saved
attachments  the constraints and priors on their parameters
whole        files that are written whole or not at all
modules      a tree of such modules as JSON and tensors, and back
"""

from rcgp.saving.archive import SavedModelError, read_archive, write_archive
from rcgp.saving.modules import describe, rebuild
from rcgp.saving.whole import check_writable, write_whole

__all__ = ["SavedModelError", "check_writable", "describe", "read_archive", "rebuild", "write_archive", "write_whole"]
