#!/usr/bin/python3
"""Entry of Trackside's agent; the package lies beside this file."""

import sys

from trackside_agent.__main__ import main

sys.exit(main(sys.argv[1:]))
