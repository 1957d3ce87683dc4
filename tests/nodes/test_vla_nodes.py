"""The policy node runs π0, π0.5 and SmolVLA from folders of lerobot and openpi."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import brain_stand
import numpy as np
import pytest
from brain_stand import BrainStand
from harness import LONG

from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.runner import System, free_domain
from flashrt_ros.nodes.system import Process

pytestmark = pytest.mark.xdist_group('ros')
FOLDERS = Path(__file__).resolve().parents[1] / 'policies_vla' / 'fixtures'
PROPRIO = (0.1, 0.2, 0.3, 0.4, 0.3, 0.2, 0.1)


@contextmanager
def stand(family: str, **params: object) -> Iterator[BrainStand]:
    """Run a policy node with the family's own parameter file, at the fixture's sizes."""
    ready = f'policy_{family.removeprefix("openpi_")}.yaml'
    process = Process('brain', 'policy_node', ('policy.yaml', ready))
    own = {
        'policy': str(FOLDERS / family), 'device': 'cpu', 'execute': 4, 'delay': 2,
        'max_age_s': 60.0, **params,
    }  # fmt: skip
    domain = free_domain()
    with (
        Operator(domain, patience=LONG) as operator,
        System([process], {'brain': own}, domain) as system,
    ):
        yield BrainStand(system, operator, {})


@pytest.mark.parametrize('family', ['smolvla', 'pi0', 'pi05', 'openpi_pi0'])
def test_the_node_acts(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configured by its ready file, shown images and states, it commands within its limits."""
    monkeypatch.setattr(brain_stand, 'PIXELS', np.full((20, 26, 3), 90, np.uint8))
    with stand(family) as shown:
        shown.begin()
        command = shown.until(lambda m: not m.held, proprioception=PROPRIO)
        assert command is not None, shown.lines('')[-5:]
        assert len(command.action) == 6 and np.isfinite(command.action).all()
        assert shown.says_once('ready in')


def test_a_folder_that_cannot_act_does_not_configure(tmp_path: Path) -> None:
    """Statistics missing: the node says which, and stays where it is."""
    import shutil

    from flashrt_ros.nodes.lifecycle import LifecycleError

    folder = tmp_path / 'pi05'
    shutil.copytree(FOLDERS / 'pi05', folder)
    for file in folder.glob('*normalizer_processor.safetensors'):
        file.unlink()
    with stand('pi05', policy=str(folder)) as shown:
        with pytest.raises(LifecycleError, match='could not configure'):
            shown.lifecycle.bring_up(['brain'])
        assert 'normalizer_processor.safetensors is missing' in shown.system.last_words()
