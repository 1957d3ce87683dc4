"""Results of a rollout as they come, one JSON line each, so that a stopped rollout goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .errors import SimulationError
from .evaluation import Result, Stage, Task


def as_result(values: dict[str, Any]) -> Result:
    """A rollout's result from its JSON."""
    stages = tuple(Stage(**stage) for stage in values.pop('stages'))
    return Result(stages=stages, **values)


class Progress:
    """The file beside a report that holds what is finished; removed when all is.

    Args:
        report: the report's file; the lines go to the same name with `.part` behind it.
        settings: what must be the same for two rollouts to be one (deployment, seed).
        read: makes a result (with environment, start, task and episode) of its JSON.

    Raises:
        SimulationError: the file belongs to a rollout with other settings, or is no such file.
    """

    def __init__(
        self,
        report: Path,
        settings: dict[str, Any],
        read: Callable[[dict[str, Any]], Any] = as_result,
    ) -> None:
        self.path = report.with_name(report.name + '.part')
        self.results: list[Any] = []
        head = json.dumps(settings, sort_keys=True)
        lines = self.path.read_text('utf-8').split('\n') if self.path.exists() else []
        if not lines:
            self.path.write_text(head + '\n', 'utf-8')
            return
        if lines[0] != head:
            raise SimulationError(
                f'{self.path} belongs to a rollout with other settings; remove it or name '
                'another file'
            )
        # The last line is empty, or what a kill cut short: its episode is run again.
        whole = lines[1:-1]
        # Two rollouts at once may both have run an episode; it came out the same.
        read_lines = [_result(self.path, line, read) for line in whole]
        found = {_key(result): result for result in read_lines}
        self.results = list(found.values())
        kept = [json.dumps(asdict(result), ensure_ascii=False) for result in self.results]
        self.path.write_text('\n'.join([head, *kept, '']), 'utf-8')

    def done(self, tasks: Sequence[Task]) -> set[tuple[str, int]]:
        """(task's key, number) of the finished episodes of `tasks`."""
        keys = {(task.environment, task.start, task.name): task.key for task in tasks}
        found = set()
        for result in self.results:
            key = keys.get((result.environment, result.start, result.task))
            if key is not None:
                found.add((key, result.episode))
        return found

    def add(self, result: Any) -> None:
        """Remember one more result, on the disk too."""
        self.results.append(result)
        with self.path.open('a', encoding='utf-8') as file:
            file.write(json.dumps(asdict(result), ensure_ascii=False) + '\n')

    def finish(self) -> None:
        """The report is written; nothing is left to go on with."""
        self.path.unlink(missing_ok=True)


def _key(result: Any) -> tuple[str, str, str, int]:
    return result.environment, result.start, result.task, result.episode


def _result(path: Path, line: str, read: Callable[[dict[str, Any]], Any]) -> Any:
    try:
        return read(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SimulationError(
            f'{path} holds a line that is no result ({error}); remove it'
        ) from None
