"""Results of a rollout as they come, one JSON line each, so that a stopped rollout goes on.

The file may end anywhere, for the process may be killed anywhere: what counts are whole lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import SimulationError
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
        head = json.dumps(settings, sort_keys=True)
        data = self.path.read_bytes() if self.path.exists() else b''
        # Behind the last line's end stands nothing, or what a kill cut short: it is run again.
        whole = [line.decode() for line in data.split(b'\n')[:-1]]
        if whole and whole[0] != head:
            raise SimulationError(
                f'{self.path} belongs to a rollout with other settings; remove it or name '
                'another file'
            )
        results = [_result(self.path, line, read) for line in whole[1:]]
        # Two rollouts at once may both have run an episode; it came out the same.
        found = {(_key(result), result.episode): result for result in results}
        self.results = list(found.values())
        temporary = self.path.with_name(f'.{self.path.name}.{os.getpid()}')
        temporary.write_text(''.join([head + '\n', *map(_line, self.results)]), 'utf-8')
        os.replace(temporary, self.path)

    def results_of(self, tasks: Sequence[Task], episodes: int) -> list[Any]:
        """Those of the first `episodes` episodes of `tasks`."""
        keys = {task.key for task in tasks}
        return [r for r in self.results if _key(r) in keys and r.episode < episodes]

    def add(self, result: Any) -> None:
        """Remember one more result, on the disk too."""
        self.results.append(result)
        with self.path.open('a', encoding='utf-8') as file:
            file.write(_line(result))
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        """The report is written; nothing is left to go on with."""
        self.path.unlink(missing_ok=True)


def _key(result: Any) -> str:
    return f'{result.environment} {result.start} {result.task}'  # that of its task


def _line(result: Any) -> str:
    return json.dumps(asdict(result), ensure_ascii=False) + '\n'


def _result(path: Path, line: str, read: Callable[[dict[str, Any]], Any]) -> Any:
    try:
        return read(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SimulationError(
            f'{path} holds a line that is no result ({error}); remove it'
        ) from None
