"""Names and passwords in addresses, which no file and no message of a run may contain."""

import re

#: Between a scheme and the host. A password may hold a slash that should have been %2F.
_CREDENTIALS = re.compile(r"(?<=://)[^\s'\"`]*@")
_WITH_NAME = re.compile(r"://([^/\s]*|[^\s]*:[^\s]*)@")


def masked(text: str) -> str:
    """A text with `***` in the place of every name and password."""
    return _CREDENTIALS.sub("***@", text)


def refuse_credentials(text: str, source: str) -> None:
    """Raise ValueError for an address with a name or password: what a run is begun with is kept in its directory."""
    if _WITH_NAME.search(text):
        problem = "holds the name or password of a server, and would be written to the run directory"
        fix = "give them in the environment, as MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        raise ValueError(f"{source} {problem}: {fix}")
