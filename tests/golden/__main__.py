"""Writes the golden files anew: `python -m tests.golden [BUCKET ...]`, or `make golden`."""

import sys

from tests.golden.outputs import write_anew

if __name__ == "__main__":
    write_anew(*sys.argv[1:])
