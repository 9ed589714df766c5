"""For people who catch errors: everything that Colonnade raises on purpose.

It only re-exports; the tree of errors is drawn in ``colonnade.core.errors``.
"""

from __future__ import annotations

from colonnade.core.errors import *  # noqa: F403
from colonnade.core.errors import __all__ as __all__
