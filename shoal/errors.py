"""Mistakes and faults that are answered by one line."""


class UserError(ValueError):
    """A mistake in what the user asked for: shown as one line, without a stack trace."""


class Fault(UserError):
    """What the machine refuses, such as a full disk: one line, and exit code 1."""

    code = 1
