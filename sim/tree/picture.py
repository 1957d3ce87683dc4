"""One tree as a picture: the judge's score of every branch over the ticks, the kept path thick."""

from __future__ import annotations

from pathlib import Path

from .rollouts import TreeResult

_KEPT, _LEFT, _REACHED = '#2f6f9f', '#b8c0c8', '#2e8c4c'


def draw(result: TreeResult, path: Path) -> None:
    """Draw `result`'s tree into a file of any kind that matplotlib writes (svg, png, pdf).

    A branch runs from the boundary it left to its own score at the next one.
    """
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(9, 3.6), layout='constrained')
    at = None  # the kept score at the boundary; unknown before the first
    for fork in result.tree.forks:
        end, best = fork.tick + fork.length, fork.scores[fork.kept]
        begin = min(fork.scores) if at is None else at
        for score in fork.scores:
            axis.plot([fork.tick, end], [begin, score], color=_LEFT, lw=1, marker='.', zorder=1)
        axis.plot([fork.tick, end], [begin, best], color=_KEPT, lw=2.4, marker='o', zorder=2)
        at = best
    tree = result.tree
    if tree.success:
        axis.axvline(tree.ticks, color=_REACHED, ls='--')
        axis.text(tree.ticks, axis.get_ylim()[0], ' reached', color=_REACHED, va='bottom')
    axis.set(xlabel='control tick', ylabel="judge's score")
    name = result.environment.removeprefix('flashrt/').removesuffix('-v0')
    verdict = f'reached after {tree.ticks} ticks' if tree.success else 'not reached'
    axis.set_title(
        f'{name}, start {result.episode}: {verdict}, {tree.steps} simulator steps', loc='left'
    )
    axis.grid(alpha=0.3)
    axis.spines[['top', 'right']].set_visible(False)
    # No date, no random names: the same tree gives the same file.
    with matplotlib.rc_context({'svg.hashsalt': 'tree'}):
        figure.savefig(path, metadata={'Date': None} if path.suffix == '.svg' else None)
    pyplot.close(figure)
