"""The digest of the kernels' sources, part of every policy's fingerprint."""

from __future__ import annotations

from pathlib import Path

from flashrt_policies.kernels import sources


def test_any_change_of_a_source_changes_the_digest(tmp_path: Path) -> None:
    """Planted faults: another setting, another name, another file below."""
    (tmp_path / 'deep').mkdir()
    first, second = tmp_path / 'a.py', tmp_path / 'deep' / 'b.py'
    first.write_text('WARPS = 4\n')
    second.write_text('')
    seen = [sources.digest.__wrapped__(tmp_path)]
    for change in (
        lambda: first.write_text('WARPS = 8\n'),
        lambda: second.rename(second.with_name('c.py')),
        lambda: (tmp_path / 'deep' / 'd.py').write_text(''),
    ):
        change()
        seen.append(sources.digest.__wrapped__(tmp_path))
    assert len(set(seen)) == 4
    (tmp_path / 'notes.md').write_text('no code')
    assert sources.digest.__wrapped__(tmp_path) == seen[-1]


def test_the_kernels_that_policies_run_are_in_it(tmp_path: Path) -> None:
    """The default is the folder of the kernels themselves."""
    folder = Path(sources.__file__).parent
    assert (folder / 'attention_triton.py').exists() and (
        folder / 'vla' / 'linear_triton.py'
    ).exists()
    assert sources.digest() == sources.digest.__wrapped__(folder)
