"""The documents as a site: `make docs` builds it into build/docs, offline.

The pages are the Markdown files of the repository itself, so the sources are the whole checkout:
pages may link to files outside of docs/, and a link that leads nowhere ends the build.
"""

import binlog2s3

project = "binlog2s3"
author = "the authors of binlog2s3"
version = release = binlog2s3.__version__

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "README.md",
    "packaging/README.md",
]
# Folders that are not looked into at all: what was downloaded or made here.
exclude_patterns = [".*", "build", "dist", "**/__pycache__", "binlog2s3", "tests", "lab", "bench"]

myst_heading_anchors = 4
nitpicky = True
# Examples with `...` in them are no whole programs.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = "binlog2s3"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["extra"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
templates_path: list[str] = []
