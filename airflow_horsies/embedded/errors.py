"""The error of the embedded stack."""

from __future__ import annotations


class EmbeddedError(RuntimeError):
    """A part of the embedded stack has failed; the message says what to do. Not an error of the provider."""
