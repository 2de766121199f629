"""The report of a run: figures and one self-contained page."""

import logging

# Before matplotlib is imported: its first import logs that it builds a font cache, above the table of the run.
logging.getLogger("matplotlib").setLevel(logging.WARNING)
