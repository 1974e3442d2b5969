"""Files that their owner alone reads, as the server wants those with secrets."""

from __future__ import annotations

from pathlib import Path


def private_file(path: Path, text: str) -> Path:
    """Writes the file; its path."""
    path.write_text(text)
    path.chmod(0o600)
    return path
