"""Which kernels these are: a digest of their sources, with the settings of their launches."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path


@functools.cache
def digest(folder: Path = Path(__file__).parent) -> str:
    """Return sha256 over names and contents of all Python files in `folder`, hexadecimal.

    Part of every policy's fingerprint: a capsule is not restored beside other kernels than it was
    made with, whether or not anybody thought of raising a version.
    """
    hasher = hashlib.sha256()
    for file in sorted(folder.rglob('*.py')):
        content = file.read_bytes()
        hasher.update(f'{file.relative_to(folder).as_posix()}:{len(content)};'.encode())
        hasher.update(content)
    return hasher.hexdigest()
