"""One scene and one tiny policy for all tests: opening them is what takes time."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope='session')
def drawer():
    """A drawer scene that every test resets for itself."""
    pytest.importorskip('metaworld')
    from flashrt_sim.envs.drawer import DrawerEnv

    scene = DrawerEnv(render_mode='rgb_array', width=64, height=48)
    yield scene
    scene.close()


@pytest.fixture(scope='session')
def tiny_policy(tmp_path_factory) -> Path:
    """A checkpoint of the shipped architecture, a few thousand random weights small."""
    torch = pytest.importorskip('torch')
    from flashrt_policies.base import PolicySpec
    from flashrt_policies.flow_vla.config import FlowSizes
    from flashrt_policies.flow_vla.model import STATISTICS, FlowVLA
    from flashrt_policies.flow_vla.policy import export

    spec = PolicySpec(
        cameras=('front', 'wrist'),
        image_hw=(96, 96),
        proprio_dim=4,
        action_dim=4,
        horizon=16,
        subgoal_length=64,
        action_low=(-1.0,) * 4,
        action_high=(1.0,) * 4,
        skills=('open the drawer', 'close the drawer'),
    )
    sizes = FlowSizes(
        stem=8, stages=(8, 16), blocks=(1, 1), text_width=16, text_layers=1, width=32, heads=2,
        prefix_layers=1, expert_layers=1, condition_width=16, steps=2,
    )  # fmt: skip
    torch.set_num_threads(1)  # a network this small waits for its threads more than it computes
    torch.manual_seed(0)
    model = FlowVLA(spec, sizes)
    for parameter in model.parameters():
        # Some start at zero, and what they carry (the subgoal, say) would not reach the actions.
        parameter.data += 0.1 * torch.randn_like(parameter)
    for name in STATISTICS:
        model.state_dict()[name].fill_(1.0 if name.endswith('_std') else 0.0)
    folder = tmp_path_factory.mktemp('policy')
    export(folder, model)
    return folder
