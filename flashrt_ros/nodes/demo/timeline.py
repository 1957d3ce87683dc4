"""The timeline picture of a demo: what was known, computed and done, on one axis of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.control import episode as states
from flashrt_ros.nodes.convert import key
from flashrt_ros.nodes.demo.story import Told

INK, FAINT, PAPER = '#1f2933', '#9aa5b1', '#ffffff'
STATE_COLOURS = {
    states.IDLE: '#e4e7eb',
    states.RESETTING: '#b3a1e6',
    states.RUNNING: '#8fc9a3',
    states.INTERRUPTED: '#f2b8a0',
    states.RECOVERING: '#f7d98b',
    states.FAULT: '#d64545',
}
SUBGOAL_COLOURS = ('#2f6f9f', '#c26a1b', '#6b4fa0', '#3d8361')
ACTION, HELD, MISSED, REPLAY = '#3d8361', '#cbd2d9', '#d64545', '#2f6f9f'
KEYS = (
    (INK, 'inference'),
    ('#d5d9de', 'waits until due'),
    (ACTION, 'acted'),
    (HELD, 'held'),
    (MISSED, 'missed or late'),
)


class Timeline:
    """Draws one demo."""

    def __init__(self, told: Told, summary: dict[str, Any]) -> None:
        import matplotlib

        matplotlib.use('Agg')
        from matplotlib import pyplot

        self.told = told
        self.summary = summary
        started = [at for at, m in told.record.episodes if m.state == states.RESETTING]
        self.zero = started[0] if started else told.record.states[0][0]
        self.end = max(at for at, _ in told.record.states) - self.zero
        # States by their own stamps: when they reached the operator says nothing of the robot.
        stamps = [key(m.header.stamp) * 1e-9 for _, m in told.record.states]
        shift = min(at - s for (at, _), s in zip(told.record.states, stamps, strict=True))
        self.states = [
            (s + shift - self.zero, m)
            for s, (_, m) in zip(stamps, told.record.states, strict=True)
        ]
        # When the robot reported each tick for the first time: (epoch, tick) -> seconds.
        self.at: dict[tuple[int, int], float] = {}
        for at, m in self.states:
            self.at.setdefault((m.epoch, m.tick), at)
        pyplot.rcParams.update({'font.family': 'DejaVu Sans', 'font.size': 9, 'text.color': INK})
        heights = [0.55, 0.6, 1.25, 0.6, 0.45, 1.9]
        self.figure, self.axes = pyplot.subplots(
            6, 1, figsize=(14, 7.2), sharex=True, height_ratios=heights, facecolor=PAPER
        )
        self.figure.subplots_adjust(left=0.085, right=0.985, top=0.855, bottom=0.075, hspace=0.16)

    def save(self, path: Path) -> None:
        """Write the picture as PNG."""
        from matplotlib import pyplot

        for axis in self.axes:
            axis.set_xlim(-0.15, self.end + 0.15)
            for side in ('top', 'right', 'left', 'bottom'):
                axis.spines[side].set_visible(False)
            axis.tick_params(length=0, colors=INK)
        for axis in self.axes[:-1]:
            axis.set_yticks([])
            axis.tick_params(labelbottom=False)
        self._states()
        self._subgoals()
        self._chunks()
        self._ticks()
        self._replay()
        self._hand()
        self._marks()
        self._heading()
        self.figure.savefig(path, dpi=130, facecolor=PAPER)
        pyplot.close(self.figure)

    def _lane(self, index: int, name: str) -> Any:
        axis = self.axes[index]
        axis.set_ylabel(name, rotation=0, ha='right', va='center', labelpad=12, color=INK)
        axis.set_ylim(0, 1)
        return axis

    def _states(self) -> None:
        axis = self._lane(0, 'episode')
        spans = self.told.record.episodes
        for index, (at, m) in enumerate(spans):
            left = at - self.zero
            right = spans[index + 1][0] - self.zero if index + 1 < len(spans) else self.end
            if right <= 0:
                continue
            left = max(left, -0.15)
            axis.barh(
                0.5, right - left, left=left, height=0.8, color=STATE_COLOURS.get(m.state, FAINT)
            )
        for left, right, text in self._merged():
            if right - left > 0.0068 * len(text) * self.end:
                axis.text((left + right) / 2, 0.48, text, ha='center', va='center')

    def _merged(self) -> list[tuple[float, float, str]]:
        """Spans of the same episode and state in a row, with their label."""
        merged: list[tuple[float, float, str]] = []
        spans = self.told.record.episodes
        for index, (at, m) in enumerate(spans):
            left = max(at - self.zero, -0.15)
            right = spans[index + 1][0] - self.zero if index + 1 < len(spans) else self.end
            text = f'{m.episode}: {m.state}' if m.state == states.RUNNING else m.state
            if m.state == states.IDLE and m.outcome:
                text = m.outcome
            if merged and merged[-1][2] == text:
                merged[-1] = (merged[-1][0], right, text)
            else:
                merged.append((left, right, text))
        return merged

    def _subgoals(self) -> None:
        """A bar for every run of actions under one generation."""
        axis = self._lane(1, 'subgoal')
        texts = {}
        for _, m in self.told.record.subgoals:
            texts[m.generation] = m.text
        spans: list[list[Any]] = []
        for at, m in self.told.record.sent:
            if m.held or not m.generation:
                continue
            mark = (m.episode, m.epoch, m.generation)
            if spans and spans[-1][2] == mark and at - self.zero - spans[-1][1] < 0.3:
                spans[-1][1] = at - self.zero
            else:
                spans.append([at - self.zero, at - self.zero, mark])
        for left, right, (_, _, generation) in spans:
            colour = SUBGOAL_COLOURS[(generation - 1) % len(SUBGOAL_COLOURS)]
            axis.barh(0.5, right - left + 0.05, left=left, height=0.8, color=colour)
            label = f'{generation}  {texts.get(generation, "")}'
            if right - left < 0.09 * self.end:
                label = f'{generation}'
            axis.text((left + right) / 2, 0.48, label, ha='center', va='center', color=PAPER)

    def _chunks(self) -> None:
        """Each chunk: inference (dark), then waiting until it is due, then what is used of it."""
        axis = self._lane(2, 'chunks')
        rows = 3
        for index, (_, m) in enumerate(self.told.record.chunks):
            start = self.at.get((m.epoch, m.tick))
            if start is None:
                continue
            due = self.at.get((m.epoch, m.due_tick), start + (m.due_tick - m.tick) * 0.05)
            low = 1 - (index % rows + 1) / rows + 0.06
            colour = SUBGOAL_COLOURS[(m.generation - 1) % len(SUBGOAL_COLOURS)]
            box = {'height': 1 / rows - 0.12, 'align': 'edge'}
            used = self._used(index, m, due)
            axis.barh(low, used - due, left=due, color=colour, alpha=0.28, **box)
            axis.barh(low, due - start, left=start, color=FAINT, alpha=0.35, **box)
            spent = m.inference_ms * 1e-3
            axis.barh(low, spent, left=start, color=MISSED if m.late else INK, **box)

    def _used(self, index: int, chunk: Any, due: float) -> float:
        """When the next chunk took over, or the robot stopped."""
        following = self.told.record.chunks[index + 1 :]
        last = chunk.tick + chunk.horizon
        if following and following[0][1].epoch == chunk.epoch:
            last = min(last, following[0][1].due_tick)
        ticks = [t for e, t in self.at if e == chunk.epoch and t <= last]
        return max(due, self.at[chunk.epoch, max(ticks)]) if ticks else due

    def _ticks(self) -> None:
        """A stroke per control tick: acted, held, missed."""
        axis = self._lane(3, 'ticks')
        strokes: dict[str, list[float]] = {ACTION: [], HELD: [], MISSED: []}
        missed = 0
        for at, m in self.states:
            if m.applied_tick < 0 or not m.episode:
                missed = 0
                continue
            colour = HELD if m.held else ACTION
            if m.missed_ticks > missed:
                colour = MISSED
            missed = m.missed_ticks
            strokes[colour].append(at)
        for colour, places in strokes.items():
            low = 0.0 if colour == MISSED else 0.15
            axis.vlines(places, low, 1 - low, color=colour, lw=2.2 if colour == MISSED else 0.9)

    def _replay(self) -> None:
        """Ticks of the second episode that were compared with the first."""
        axis = self._lane(4, 'replay')
        replay, epochs = self.summary['replay'], self.told.epochs
        if len(epochs) < 2 or not replay['compared_ticks']:
            return
        first = replay['first_difference']
        same = replay['compared_ticks'] if first is None else first
        left = self.at.get((epochs[1], 0), 0.0)
        right = self.at.get((epochs[1], same), left)
        axis.barh(0.5, right - left, left=left, height=0.75, color=REPLAY)
        if first is None:
            text = f'{same} ticks: the same bytes as in episode 1'
            axis.text((left + right) / 2, 0.47, text, ha='center', va='center', color=PAPER)
            return
        end = self.at.get((epochs[1], replay['compared_ticks']), self.end)
        axis.barh(0.5, end - right, left=right, height=0.75, color=MISSED)
        text = f'{same} ticks the same, then other bytes'
        axis.text(left - 0.1, 0.47, text, ha='right', va='center')

    def _hand(self) -> None:
        """The hand's way: y is the direction in which the drawer moves."""
        axis = self.axes[5]
        axis.set_ylabel('hand\n(m)', rotation=0, ha='right', va='center', labelpad=12, color=INK)
        seen = [(at, m) for at, m in self.states if m.episode]
        at = np.array([t for t, _ in seen])
        hand = np.array([list(m.proprioception)[:3] for _, m in seen])  # [T, 3]
        numbers = sorted({m.episode for _, m in seen})
        for number in numbers:
            own = np.array([m.episode == number for _, m in seen])
            for entry, (name, colour) in enumerate(
                (('x', '#9aa5b1'), ('y', '#2f6f9f'), ('z', '#c26a1b'))
            ):
                label = name if number == numbers[0] else None
                axis.plot(at[own], hand[own, entry], color=colour, lw=1.6, label=label)
        axis.legend(loc='upper left', ncols=3, frameon=False, handlelength=1.2, fontsize=8)
        axis.grid(axis='y', color='#e4e7eb', lw=0.7)
        axis.margins(y=0.22)
        axis.set_xlabel('seconds since the start', color=INK)

    def _marks(self) -> None:
        told = self.told
        marks = [
            (told.interrupted_at, 'interrupt', 'right'),
            (told.resumed_at, 're-entry', 'left'),
            (told.reset_at, 'reset', 'center'),
        ]
        for at, name, side in marks:
            if at is None:
                continue
            x = at - self.zero
            for axis in self.axes:
                axis.axvline(
                    x, color=MISSED if name == 'interrupt' else INK, lw=1.0, ls=(0, (4, 2))
                )
            self.axes[0].annotate(
                name,
                (x, 1.0),
                (0, 4),
                textcoords='offset points',
                ha=side,
                fontsize=9,
                weight='bold',
            )

    def _heading(self) -> None:
        s = self.summary
        figure = self.figure
        figure.text(0.085, 0.955, f'“{s["instruction"]}”', fontsize=15, weight='bold', va='center')
        stop, inference = s['interrupt'], s['inference_ms']
        facts = [
            f'{s["control_hz"]:.1f} Hz control',
            f'{s["missed_ticks"]} of {s["ticks"]} ticks missed',
            f'inference {_ms(inference["p50"])} (p99 {_ms(inference["p99"])})',
            f'interrupt: {stop["ack_ticks"]} ticks to the hold',
            f're-entry {_ms(s["reentry_ms"])}',
            f'reset {_ms(s["reset_ms"])}',
        ]
        figure.text(
            0.085, 0.915, '   ·   '.join(facts), fontsize=9.5, va='center', color='#52606d'
        )
        from matplotlib.patches import Patch

        patches = [Patch(color=colour, label=name) for colour, name in KEYS]
        figure.legend(
            handles=patches,
            loc='upper right',
            bbox_to_anchor=(0.988, 0.985),
            ncols=len(patches),
            frameon=False,
            handlelength=0.9,
            handleheight=0.9,
            columnspacing=1.3,
            fontsize=8.5,
        )


def _ms(value: float | None) -> str:
    return '–' if value is None else f'{value:.0f} ms'


def draw(told: Told, summary: dict[str, Any], path: Path) -> None:
    """Draw the timeline of ``told`` to ``path`` (PNG)."""
    Timeline(told, summary).save(path)
