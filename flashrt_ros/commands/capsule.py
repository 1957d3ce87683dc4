"""`flashrt capsule list|show|verify|rm`: look after a folder of stored capsules."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from flashrt_ros.errors import FlashrtError

DEFAULT_STORE = Path('~/.local/state/flashrt/capsules')


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    summary = 'list, show, verify and remove stored capsules'
    parser = subparsers.add_parser('capsule', help=summary, description=summary)
    actions = parser.add_subparsers(dest='action', metavar='ACTION', required=True)
    for name, text, digests in (
        ('list', 'all capsules, as a tree of descent', None),
        ('show', 'everything about one capsule but its bytes', 1),
        ('verify', 'check digests and segments, of all or of some', '*'),
        ('rm', 'remove capsules, and the segments that no other one names', '+'),
    ):
        action = actions.add_parser(name, help=text, description=text)
        if digests is not None:
            action.add_argument(
                'digests', metavar='DIGEST', nargs=digests, help='or the beginning of one'
            )
        action.add_argument(
            '--store',
            type=Path,
            default=Path(os.environ.get('FLASHRT_CAPSULES', DEFAULT_STORE)),
            help='the folder (default: $FLASHRT_CAPSULES or %(default)s)',
        )
        action.add_argument(
            '--key-file', type=Path, metavar='FILE', help='HMAC key of a shared store'
        )
        action.add_argument('--json', action='store_true', help='machine-readable output')


def run(args: argparse.Namespace) -> int:
    """0 when all is well, 1 when a capsule is damaged, 2 (by an error) for wrong input."""
    from flashrt_ros.capsule.store import DiskStore

    path = args.store.expanduser()
    if not path.exists():
        raise FlashrtError(f'there is no folder {path}: name one with --store')
    try:
        key = args.key_file.read_bytes().strip() if args.key_file else None
    except OSError as error:
        raise FlashrtError(
            f'{args.key_file}: {error.strerror}; name a file with the key'
        ) from None
    store = DiskStore(path, key=key, sweep=False)
    actions = {'list': _list, 'show': _show, 'verify': _verify, 'rm': _remove}
    return actions[args.action](store, args)


def _describe(store: Any, name: str) -> dict[str, Any]:
    """A capsule's row, or why there is none."""
    from flashrt_ros.capsule.errors import StoreError

    try:
        header = store.header(name, 'capsule')
        return {
            'digest': name,
            'boundary': header['boundary'],
            'position': header['position'],
            'parent': header['parent'],
            'created': header['created'],
            'nbytes': header['nbytes'],
            'tier': 'disk',
            'pinned': store.held(name),
            'lengths': header['lengths'],
        }
    except (StoreError, KeyError) as error:
        return {'digest': name, 'error': str(error)}


def _list(store: Any, args: argparse.Namespace) -> int:
    rows = [_describe(store, name) for name in store.names('capsule')]
    if args.json:
        summary = {'used': store.used(), 'strangers': store.strangers(), 'capsules': rows}
        print(json.dumps(summary, indent=1))
    else:
        print('\n'.join(_tree(rows)) or f'no capsules in {store.path}')
        for row in rows:
            if 'error' in row:
                print(f'{row["digest"][:12]}  refused: {row["error"]}')
        for name in store.strangers():
            print(f"{name}  is none of the store's files")
    return int(any('error' in row for row in rows))


def _tree(rows: list[dict[str, Any]]) -> list[str]:
    """Children below their parents, oldest first."""
    sound = {row['digest']: row for row in rows if 'error' not in row}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for row in sorted(sound.values(), key=lambda row: row['created']):
        parent = row['parent'] if row['parent'] in sound else None
        children.setdefault(parent, []).append(row)
    lines: list[tuple[str, str]] = []
    stack = [(row, '', '') for row in reversed(children.get(None, []))]
    while stack:
        row, front, below = stack.pop()
        pin = ' pinned' if row['pinned'] else ''
        lines.append(
            (
                f'{front}{row["digest"][:12]} {row["boundary"]} @{row["position"]}',
                f'{_size(row["nbytes"]):>10}  {row["tier"]}{pin}  {_age(row["created"])}',
            )
        )
        young = children.get(row['digest'], [])
        # A line of descent goes straight down; only where it parts is it indented.
        for index, child in reversed(list(enumerate(young))):
            last = index == len(young) - 1
            mark, rest = (
                ('', '') if len(young) == 1 else ('└─ ', '   ') if last else ('├─ ', '│  ')
            )
            stack.append((child, below + mark, below + rest))
    width = max((len(name) for name, _ in lines), default=0)
    return [f'{name.ljust(width)}  {facts}' for name, facts in lines]


def _size(nbytes: float) -> str:
    for unit in ('B', 'KiB', 'MiB'):
        if nbytes < 1024:
            return f'{nbytes:.0f} {unit}' if unit == 'B' else f'{nbytes:.1f} {unit}'
        nbytes /= 1024
    return f'{nbytes:.1f} GiB'


def _age(created: float) -> str:
    seconds = max(0.0, time.time() - created)
    for size, unit in ((86400, 'd'), (3600, 'h'), (60, 'min')):
        if seconds >= size:
            return f'{seconds / size:.0f} {unit} ago'
    return f'{seconds:.0f} s ago'


def _show(store: Any, args: argparse.Namespace) -> int:
    name = store.find(args.digests[0])
    header = store.header(name, 'capsule')
    own = (store.path / f'{name}.capsule').stat().st_size
    segments = store.segments_of(header)
    if args.json:
        print(json.dumps({**header, 'pinned': store.held(name)}, indent=1))
        return 0
    print(f'digest      {name}')
    print(f'boundary    {header["boundary"]} @{header["position"]}')
    print(f'parent      {header["parent"] or "none"}')
    print(f'age         {_age(header["created"])}')
    print(f'tier        disk{" pinned" if store.held(name) else ""}')
    print(f'size        {_size(header["nbytes"])}, {_size(own)} in its own file')
    print(f'segments    {len(segments)}, positions {header["lengths"]}')
    print(f'host state  {", ".join(header["host"]) or "none"}')
    for title, rows in (('fingerprint', header['fingerprint']), ('entries', header['schema'])):
        print(title)
        for key, value in rows.items():
            shown = value if isinstance(value, str) else ' '.join(map(str, value))
            print(f'  {key:<24} {shown}')
    return 0


def _verify(store: Any, args: argparse.Namespace) -> int:
    from flashrt_ros.capsule.errors import StoreError

    names = [store.find(digest) for digest in args.digests] or store.names('capsule')
    found: dict[str, str | None] = {}
    for name in names:
        try:
            store.verify(name)
            found[name] = None
        except StoreError as error:
            found[name] = str(error)
    if args.json:
        print(json.dumps({name: reason or 'ok' for name, reason in found.items()}, indent=1))
    else:
        for name, reason in found.items():
            print(f'{name[:12]}  {reason or "ok"}')
    return int(any(found.values()))


def _remove(store: Any, args: argparse.Namespace) -> int:
    names = [store.find(digest) for digest in args.digests]
    before = store.used()
    for name in names:
        store.remove(name)
    freed = before - store.used()
    if args.json:
        print(json.dumps({'removed': names, 'freed': freed}))
    else:
        print(f'removed {len(names)}, freed {_size(freed)}')
    return 0
