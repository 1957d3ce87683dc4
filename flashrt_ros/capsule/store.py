"""DiskStore: the folder of the disk tier. Files are written once, whole, and named by digest.

`<digest>.capsule` holds a descriptor and the fixed part, and names the `<digest>.segment` files
of its ropes, which descendants share. A capsule file is the last one written, so that it exists
only when everything it names does. A file is written under a temporary name, flushed, renamed,
and the folder is flushed; whoever is killed in between leaves at most an orphan, swept next time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flashrt_ros.capsule import envelope
from flashrt_ros.capsule.envelope import Parts
from flashrt_ros.capsule.errors import BudgetError, PinnedError, StoreError

_NAME = re.compile(r'[0-9a-f]{64}\.(capsule|segment)')
_TEMPORARY = '.tmp-'
_LOCK = '.lock'


class Hold:
    """Keeps a stored capsule from being removed, by whatever process, while it is referenced."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


class DiskStore:
    """A folder of capsules that only its owner can read and write.

    Args:
        path: made with mode 0700 when it is not there.
        key: HMAC key; when given, files that are not signed with it are refused.
        quota: bytes that all files together may take; None for no limit.
        sweep: remove orphans first; False to look only.

    Raises:
        StoreError: the folder is a link, belongs to somebody else, or others may write to it.
    """

    def __init__(
        self,
        path: Path | str,
        key: bytes | None = None,
        quota: int | None = None,
        sweep: bool = True,
    ) -> None:
        self.path = Path(path)
        self.key = key
        self.quota = quota
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_folder()
        if sweep:
            self.sweep()

    def _check_folder(self) -> None:
        status = os.lstat(self.path)
        if not stat.S_ISDIR(status.st_mode):
            raise StoreError(f'{self.path} is no folder (a link?): name the folder itself')
        if status.st_uid != os.geteuid():
            raise StoreError(f'{self.path} belongs to user {status.st_uid}: use a folder of yours')
        if status.st_mode & 0o022:
            raise StoreError(f'{self.path} can be written by others: chmod 700 it')

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer or sweeper at a time, among all processes; a killed one lets go by itself."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path / _LOCK, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    # --- reading ------------------------------------------------------------------------------

    def names(self, kind: str) -> list[str]:
        """Digests of all files of a kind, 'capsule' or 'segment'; sorted."""
        suffix = f'.{kind}'
        found = (entry.name for entry in os.scandir(self.path))
        return sorted(
            name.removesuffix(suffix) for name in found if name.endswith(suffix) and _is_name(name)
        )

    def strangers(self) -> list[str]:
        """Names in the folder that are none of the store's."""
        names = (entry.name for entry in os.scandir(self.path))
        ours = (_LOCK, _TEMPORARY)
        return sorted(name for name in names if not _is_name(name) and not name.startswith(ours))

    def header(self, name: str, kind: str) -> dict[str, Any]:
        """The header of a file, checked, without reading its payload.

        Raises:
            StoreError: no such file, or it is not what its name says; names file and reason.
        """
        return self._read(name, kind, payload=False)[0]

    def read(self, name: str, kind: str) -> tuple[dict[str, Any], bytes]:
        """Header and payload of a file, both checked.

        Raises:
            StoreError: no such file, or it is not what its name says; names file and reason.
        """
        return self._read(name, kind, payload=True)

    def _read(self, name: str, kind: str, payload: bool) -> tuple[dict[str, Any], bytes]:
        file = _file(name, kind)
        try:
            with open(self._open(file), 'rb') as opened:
                size = os.fstat(opened.fileno()).st_size
                front = envelope.open_front(opened.read(envelope.SIZE), size, kind, self.key)
                header = envelope.open_header(front, opened.read(front.header_size))
                if (front.digest if kind == 'segment' else header.get('digest')) != name:
                    raise StoreError('has a name that is not the digest of its content; remove it')
                if not payload:
                    return header, b''
                content = opened.read()
                envelope.check_payload(front, content)
                return header, content
        except StoreError as error:
            raise StoreError(f'{self.path / file} {error}') from None

    def _open(self, file: str) -> int:
        try:
            descriptor = os.open(self.path / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise StoreError('is a link: the store holds plain files only') from None
            raise StoreError(f'cannot be read ({error.strerror})') from None
        status = os.fstat(descriptor)
        reason = None
        if not stat.S_ISREG(status.st_mode):
            reason = 'is no plain file'
        elif status.st_nlink != 1:
            reason = 'is linked from elsewhere as well: the store holds plain files only'
        elif status.st_uid != os.geteuid():
            reason = f"belongs to user {status.st_uid}: the store holds its owner's files only"
        elif status.st_mode & 0o077:
            reason = 'is open to other users: chmod 600 it'
        if reason is not None:
            os.close(descriptor)
            raise StoreError(reason)
        return descriptor

    def find(self, prefix: str) -> str:
        """The one capsule whose digest starts with `prefix`.

        Raises:
            StoreError: none or several do.
        """
        found = [name for name in self.names('capsule') if name.startswith(prefix)]
        if len(found) != 1:
            counted = 'no capsule' if not found else f'{len(found)} capsules'
            raise StoreError(
                f'{counted} in {self.path} start with {prefix!r}: see flashrt capsule list'
            )
        return found[0]

    def segments_of(self, header: Mapping[str, Any]) -> list[str]:
        """The segment files that a capsule's header names."""
        return [row[0] for rope in header['ropes'] for row in rope]

    def verify(self, name: str) -> None:
        """Check a capsule's file and every segment that it names.

        Raises:
            StoreError: what is wrong first.
        """
        header, _ = self.read(name, 'capsule')
        for file, begin, _, _ in (row for rope in header['ropes'] for row in rope):
            segment, _ = self.read(file, 'segment')
            if segment.get('begin') != begin:
                raise StoreError(
                    f'{self.path / file}.segment begins elsewhere than its capsule says'
                )

    def used(self) -> int:
        """Bytes of all files."""
        return sum(
            entry.stat(follow_symlinks=False).st_size
            for entry in os.scandir(self.path)
            if _is_name(entry.name)
        )

    # --- writing ------------------------------------------------------------------------------

    def commit(self, files: Mapping[str, Parts], capsule: str, data: Parts) -> None:
        """Write segment files and then the capsule that names them; crash-safe.

        Args:
            files: segment digest to its file's parts.
            capsule: the capsule's digest.
            data: its file's parts.

        Raises:
            BudgetError: the quota does not allow it; nothing was written.
        """
        with self._locked():
            wanted = {_file(name, 'segment'): content for name, content in files.items()}
            wanted[_file(capsule, 'capsule')] = data
            new = {f: content for f, content in wanted.items() if not (self.path / f).exists()}
            size = sum(map(envelope.size, new.values()))
            if self.quota is not None and self.used() + size > self.quota:
                raise BudgetError(
                    f'{self.path} has no {size} bytes left of its quota {self.quota}: '
                    'remove capsules (flashrt capsule rm) or raise the quota'
                )
            for file, content in new.items():
                self._write(file, content)
            self._flush()

    def _write(self, file: str, content: Parts) -> None:
        if file.endswith('.capsule'):
            self._flush()  # what the capsule names is there before it is
        temporary = self.path / f'{_TEMPORARY}{os.getpid()}-{file}'
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), 'wb') as opened:
            opened.writelines(content)
            opened.flush()
            os.fsync(opened.fileno())
        os.rename(temporary, self.path / file)

    def _flush(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def parcel(self, name: str) -> dict[str, bytes]:
        """A capsule's file and the segments that it names, for another store: file to bytes.

        Raises:
            StoreError: a file is not what its name says.
        """
        self.verify(name)
        names = [(name, 'capsule')]
        names += [(s, 'segment') for s in self.segments_of(self.header(name, 'capsule'))]
        return {_file(*each): (self.path / _file(*each)).read_bytes() for each in names}

    def accept(self, parcel: Mapping[str, bytes]) -> str:
        """Keep what another store's `parcel` gave; returns the capsule's digest.

        Its bytes are checked as any file's are, when they are read.

        Raises:
            StoreError: it is no parcel of one capsule.
            BudgetError: the quota does not allow it; nothing was written.
        """
        parts = [file.rpartition('.') for file in parcel if _is_name(file)]
        capsules = [name for name, _, kind in parts if kind == 'capsule']
        if len(parts) != len(parcel) or len(capsules) != 1:
            raise StoreError(f'holds {sorted(parcel)}: no parcel of one capsule')
        files = {name: [parcel[f'{name}.{kind}']] for name, _, kind in parts if kind == 'segment'}
        self.commit(files, capsules[0], [parcel[f'{capsules[0]}.capsule']])
        return capsules[0]

    def has(self, name: str, kind: str) -> bool:
        """True when the file is there."""
        return (self.path / _file(name, kind)).exists()

    def hold(self, name: str) -> Hold:
        """Keep a capsule from `remove` for as long as the result is referenced."""
        descriptor = self._open(_file(name, 'capsule'))
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return Hold(descriptor)

    def held(self, name: str) -> bool:
        """True while some process holds the capsule."""
        try:
            descriptor = self._open(_file(name, 'capsule'))
        except StoreError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def remove(self, name: str) -> None:
        """Remove a capsule, and the segments that no other one names.

        Raises:
            PinnedError: a living session holds it.
        """
        with self._locked():
            if self.held(name):
                raise PinnedError(
                    f'capsule {name[:12]} is held by a living session: end that first'
                )
            (self.path / _file(name, 'capsule')).unlink(missing_ok=True)
            self._sweep_orphans()
            self._flush()

    def sweep(self) -> list[str]:
        """Remove what a killed writer left: temporary files, segments that no capsule names.

        When a capsule cannot be read, segments stay: it may be the one that names them.
        """
        with self._locked():
            swept = []
            for entry in list(os.scandir(self.path)):
                if entry.name.startswith(_TEMPORARY):
                    os.unlink(entry.path)
                    swept.append(entry.name)
            return swept + self._sweep_orphans()

    def _sweep_orphans(self) -> list[str]:
        named: set[str] = set()
        for name in self.names('capsule'):
            try:
                named.update(self.segments_of(self.header(name, 'capsule')))
            except (StoreError, KeyError, IndexError, TypeError):
                return []
        orphans = [name for name in self.names('segment') if name not in named]
        for name in orphans:
            os.unlink(self.path / _file(name, 'segment'))
        return [_file(name, 'segment') for name in orphans]


def _is_name(file: str) -> bool:
    return _NAME.fullmatch(file) is not None


def _file(name: str, kind: str) -> str:
    file = f'{name}.{kind}'
    if not _is_name(file):
        raise StoreError(f'{name!r} is no digest of 64 hexadecimal figures: see capsule list')
    return file
