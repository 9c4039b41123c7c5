"""The one error of the embedded stack."""

from __future__ import annotations


class EmbeddedError(RuntimeError):
    """A part of the embedded stack cannot start; the message says what to do. No error of the provider."""
