"""Everything that Colonnade raises on purpose.

::

    ColonnadeError
    ├── ConfigError          a setting is wrong; the message starts with the key's path
    ├── DataError            a block, label or id can't be used as it is
    │   ├── DatasetNotFound  a named data set is not on this machine
    │   ├── MissingBlock     a party's block is absent where the method needs it
    │   └── TableUnreadable  a table's file is not there, or not what its ending says
    ├── RunError             something went wrong while training or predicting
    │   ├── PartyFailed      a party answered with an error
    │   │   └── BadReply     a party's answer is not what its verb declares
    │   ├── NoAnswer         a party did not answer by the deadline
    │   ├── PartyRestarted   a party came back without what it knew: go back to a checkpoint
    │   ├── Diverged         the loss is no longer a finite number
    │   ├── Deadlock         everybody waits and nothing is on its way
    │   ├── Refused          a party's own rules don't allow what was asked of it
    │   │   └── BudgetSpent  one more release would exceed a party's privacy budget
    │   └── ProtocolError    a message that the method does not allow
    ├── IdentityRefused      a certificate or an invitation that a federation does not accept
    └── StorageError         a run directory or a checkpoint can't be used

A message names what, where, and the remedy. Catch ``ColonnadeError`` to catch them all.
"""

from __future__ import annotations

from colonnade.core.printable import printable

__all__ = [
    "BadReply",
    "BudgetSpent",
    "ColonnadeError",
    "ConfigError",
    "DataError",
    "DatasetNotFound",
    "Deadlock",
    "Diverged",
    "IdentityRefused",
    "MissingBlock",
    "NoAnswer",
    "PartyFailed",
    "PartyRestarted",
    "ProtocolError",
    "Refused",
    "RunError",
    "StorageError",
    "TableUnreadable",
]


class ColonnadeError(Exception):
    """Base of every error that Colonnade raises on purpose.

    Its text is safe to show: an error may quote what another organisation sent.
    """

    def __str__(self) -> str:
        return printable(super().__str__())

    def told(self) -> str:
        """What another organisation may read of it.

        Returns:
            The message, without anything that tells of this machine or its data.
        """
        return str(self)


class ConfigError(ColonnadeError, ValueError):
    """A setting is wrong; found before any training starts."""


class DataError(ColonnadeError, ValueError):
    """A block, a label or an id can't be used as it is."""


class DatasetNotFound(DataError):
    """A named data set is not on this machine."""


class MissingBlock(DataError):
    """A party's block is absent where the method needs it."""


class TableUnreadable(DataError):
    """A table's file is not there, or not what its ending says."""

    def told(self) -> str:
        """Neither the file nor what a reader of files said of it, which may quote the table."""
        return "its table can't be read; see its log"


class RunError(ColonnadeError):
    """Something went wrong while training or predicting."""


class PartyFailed(RunError):
    """A party answered with an error."""

    def __init__(self, message: str, *, party: str) -> None:
        super().__init__(message)
        self.party = party


class BadReply(PartyFailed):
    """A party's answer is not what its verb declares: another type, shape or dtype."""


class NoAnswer(RunError):
    """A party did not answer by the deadline."""

    def __init__(self, message: str, *, parties: tuple[str, ...]) -> None:
        super().__init__(message)
        self.parties = parties


class PartyRestarted(RunError):
    """A party came back without what it knew: go back to the last common checkpoint."""

    def __init__(self, message: str, *, party: str) -> None:
        super().__init__(message)
        self.party = party


class Diverged(RunError):
    """The loss is no longer a finite number."""

    def __init__(
        self, message: str, *, exchange: int | None = None, party: str | None = None
    ) -> None:
        super().__init__(message)
        self.exchange = exchange
        self.party = party


class Deadlock(RunError):
    """Everybody waits and nothing is on its way."""

    def __init__(self, message: str, *, tick: int) -> None:
        super().__init__(message)
        self.tick = tick


class Refused(RunError):
    """A party's own rules don't allow what was asked of it; the message names the rule."""

    def __init__(self, message: str, *, party: str) -> None:
        super().__init__(message)
        self.party = party


class BudgetSpent(Refused):
    """One more release would exceed a party's privacy budget."""


class ProtocolError(RunError):
    """A message that the method does not allow."""


class IdentityRefused(ColonnadeError):
    """A certificate or an invitation that a federation does not accept.

    ``reason`` names why in a word or two; the message is safe to tell whoever is refused.
    ``may_pass`` is True where the same certificate may be accepted later, when a clock is set
    right, say: then it is worth while to come again.
    """

    def __init__(self, message: str, *, reason: str = "refused", may_pass: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.may_pass = may_pass


class StorageError(ColonnadeError):
    """A run directory or a checkpoint can't be used."""

    def told(self) -> str:
        """Without the directory of the file that a message begins with."""
        path, colon, what = str(self).partition(": ")
        told = path.replace("\\", "/").rpartition("/")[2] + colon + what
        return "its storage failed; see its log" if "/" in told or "\\" in told else told
