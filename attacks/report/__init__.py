"""What a person looks at: figures and one self-contained page."""

import logging

# Before matplotlib is imported: the first time it would announce its font cache through Hydra's log, above the table.
logging.getLogger("matplotlib").setLevel(logging.WARNING)
