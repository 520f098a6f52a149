"""How Sphinx builds these pages: ``make docs``. Warnings are errors; the gallery's pictures are drawn at build time."""

from __future__ import annotations

import warnings

import rcgp

project = "rcgp"
author = "The rcgp developers"
copyright = author
version = release = rcgp.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]  # the gallery's settings hold functions, which Sphinx cannot cache

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say it in words
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"rcgp {release}"
html_static_path: list[str] = []

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,
}

# Raised inside linear_operator when it is imported.
warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
