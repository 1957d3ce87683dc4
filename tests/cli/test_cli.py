"""Promise: whatever is wrong with the input, `flashrt` says it in one line and leaves with 2."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from flashrt_ros import cli
from flashrt_ros.errors import FlashrtError


def run_as(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> int:
    """Run the command line with a command that raises `error`."""

    def run(args: object) -> int:
        if error is not None:
            raise error
        return 0

    command = SimpleNamespace(add_parser=lambda sub: sub.add_parser('demo'), run=run)
    monkeypatch.setattr(cli.importlib, 'import_module', lambda name: command)
    return cli.main(['demo'])


@pytest.mark.parametrize(
    ('error', 'code', 'says'),
    [
        (None, 0, ''),
        (FlashrtError('no such scene; name one of a, b'), 2, 'no such scene; name one of a, b'),
        (PermissionError(13, 'Permission denied', '/x'), 2, '/x: Permission denied'),
        (KeyboardInterrupt(), 130, 'interrupted'),
    ],
)
def test_expected_trouble_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException | None,
    code: int,
    says: str,
) -> None:
    """Expected errors give their exit code and one line on standard error."""
    assert run_as(monkeypatch, error) == code
    lines = capsys.readouterr().err.splitlines()
    assert lines == ([f'flashrt demo: {says}'] if says else [])


@pytest.mark.parametrize('error', [ZeroDivisionError(), OSError('no file in it')])
def test_a_defect_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Negative control: what nobody expected keeps its traceback."""
    with pytest.raises(type(error)):
        run_as(monkeypatch, error)


def test_every_command_has_its_module() -> None:
    """Each name in the table is a module with the two functions; planted: a name without one."""
    folder = Path(cli.__file__).parent / 'commands'
    for name in cli.COMMANDS:
        assert (folder / f'{name}.py').is_file()
        cli.build_parser(name)
    with pytest.raises(ModuleNotFoundError):
        cli.COMMANDS['melt'] = 'no such command'
        try:
            cli.build_parser('melt')
        finally:
            del cli.COMMANDS['melt']


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`flashrt --help` lists the whole table and leaves with 0."""
    with pytest.raises(SystemExit) as left:
        cli.main(['--help'])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ('demo', 'rollout', 'capsule'))
