"""The page itself: one HTML file with everything in it, no script, no network."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashrt_ros.nodes.report import facts, pictures
from flashrt_ros.nodes.report.read import Recording, read

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 1180px;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; }
.tile { border: 1px solid #e4e7eb; border-radius: 6px; padding: .4rem .8rem; }
.tile b { display: block; font-size: 1.2rem; } .tile span { color: #52606d; font-size: .8rem; }
img, video { max-width: 100%; height: auto; } video { background: #1f2933; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #e4e7eb;
         vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.faint { color: #52606d; } .bad { color: #b42318; }
"""


def write(source: Path, target: Path) -> Recording:
    """Read the recording ``source`` and write its page to ``target``.

    Raises:
        RecordingError: ``source`` is no recording.
    """
    recording = read(source)
    target.write_text(render(recording), 'utf-8')
    return recording


def render(recording: Recording) -> str:
    """Return the page."""
    told = facts.told(recording)
    s = facts.summary(recording, told)
    zero = told.record.states[0][0]
    title = html.escape(s['instruction'] or recording.path.name)
    bad = ' class="bad"' if s['outcome'] not in ('done',) else ''
    parts = [
        f'<h1>“{title}”</h1>',
        f'<p class="faint">{html.escape(recording.path.name)} · '
        f'{html.escape(recording.prefix)} · {s["seconds"]:.1f} s</p>',
        f'<p{bad}>{html.escape(s["outcome"])}: {html.escape(s["reason"])}</p>',
        _tiles(s),
        '<h2>Timeline</h2>',
        _image(pictures.timeline(told, s), 'timeline'),
        '<h2>Latencies</h2>',
        _image(pictures.latencies(recording), 'latencies'),
        *_seen(recording),
        '<h2>What happened</h2>',
        _table(
            ('s', 'what', ''), [(f'{at:.2f}', k, w) for at, k, w in facts.events(recording, zero)]
        ),
        '<h2>Why the gate held</h2>',
        _table(('commands', 'reason'), [(str(n), reason) for reason, n in facts.holds(recording)]),
        *_nodes(recording),
        '<h2>In the file</h2>',
        _table(('messages', 'topic'), [(str(n), t) for t, n in sorted(recording.topics.items())]),
    ]
    body = '\n'.join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<title>{title}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )


def _tiles(s: dict[str, Any]) -> str:
    inference = s['inference_ms']
    tiles = (
        (f'{s["control_hz"]:.1f} Hz', 'control'),
        (f'{s["missed_ticks"]} of {s["ticks"]}', 'ticks missed'),
        (_ms(s['tick_gap_p99_ms']), 'between ticks, p99'),
        (f'{s["chunks"]} ({s["late_chunks"]} late)', 'chunks'),
        (_ms(inference['p50']), 'inference, median'),
        (_ms(inference['p99']), 'inference, p99'),
        (_ms(s['reentry_ms']), 're-entry to first action'),
        (str(len(s['subgoals_done'])), 'subgoals reached'),
    )
    cells = ''.join(f'<div class="tile"><b>{v}</b><span>{n}</span></div>' for v, n in tiles)
    return f'<div class="tiles">{cells}</div>'


def _seen(recording: Recording) -> list[str]:
    parts = []
    film = pictures.film(recording)
    if film:
        names = ', '.join(recording.images)
        parts.append(f'<h2>What the cameras saw <span class="faint">({names})</span></h2>')
        data = base64.b64encode(film).decode()
        parts.append(f'<video controls muted src="data:video/webm;base64,{data}"></video>')
    for camera, frames in recording.images.items():
        parts.append(f'<p class="faint">{html.escape(camera)}, {len(frames)} images</p>')
        parts.append(_image(pictures.strip(frames), f'film strip of {camera}'))
    return parts


def _nodes(recording: Recording) -> list[str]:
    rows = facts.nodes(recording)
    if not rows:
        return []
    names = tuple(rows[0])
    cells = [tuple(_cell(row[name]) for name in names) for row in rows]
    return ['<h2>Nodes, at the end</h2>', _table(names, cells)]


def _cell(value: Any) -> str:
    if value is None:
        return '–'
    return f'{value:.1f}' if isinstance(value, float) else str(value)


def _ms(value: float | None) -> str:
    return '–' if value is None else f'{value:.0f} ms'


def _image(data: bytes, name: str) -> str:
    text = base64.b64encode(data).decode()
    return f'<img alt="{html.escape(name)}" src="data:image/png;base64,{text}">'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = ''.join(f'<th>{html.escape(name)}</th>' for name in head)
    body = ''.join(
        '<tr>' + ''.join(f'<td{_numeric(c)}>{html.escape(c)}</td>' for c in row) + '</tr>'
        for row in rows
    )
    return f'<table><tr>{top}</tr>{body}</table>'


def _numeric(cell: str) -> str:
    return ' class="n"' if cell.replace('.', '').isdigit() else ''
