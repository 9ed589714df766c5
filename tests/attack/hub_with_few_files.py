"""A hub in a process that may open 256 files; it tells by lines what it sees.

Usage: python hub_with_few_files.py DIRECTORY
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.invitations import revoke
from colonnade.federate.opened_hub import open_hub


def tell(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main(directory: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    with open_hub(directory, address="127.0.0.1:0", enrols=False, check_seconds=0.05) as hub:
        tell(hub.port)
        sys.stdin.readline()  # the strangers are there
        tell(f"absent {hub.wait_for(['telco'], timeout=60)}")
        revoke(FederationDirectory(directory), "telco")
        sys.stdin.readline()  # the party has noticed
        assert hub.front is not None
        tell(hub.front.status.num_open)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
