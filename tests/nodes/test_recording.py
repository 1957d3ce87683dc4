"""An episode as an MCAP file, the layout that shows it, and the page made from it."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray
from harness import INSTRUCTION, LONG, becomes, looked_for, toy_system
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image, JointState

from flashrt_interfaces import msg as interfaces
from flashrt_ros import cli
from flashrt_ros.nodes.msgdef import definition, full_name
from flashrt_ros.nodes.recorder_node import Recording
from flashrt_ros.nodes.report import facts
from flashrt_ros.nodes.report.page import render
from flashrt_ros.nodes.report.read import RecordingError, read
from flashrt_ros.share import config

pytestmark = pytest.mark.xdist_group('ros')
KINDS = {
    '/supervisor/episode': interfaces.EpisodeState,
    '/robot/state': interfaces.RobotState,
    '/gate/command': interfaces.ControlCommand,
    '/brain/chunk': interfaces.ActionChunk,
    '/brain/subgoal': interfaces.Subgoal,
    '/loop_stats': interfaces.LoopStats,
    '/diagnostics': DiagnosticArray,
    '/robot/images/front': Image,
    '/robot/images/wrist': Image,
}


@pytest.fixture(scope='module')
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Record an episode with an interrupt in it."""
    folder = tmp_path_factory.mktemp('recordings')
    with toy_system({'recorder': {'folder': str(folder)}}, recorder=True) as (_, operator, _):
        figures: dict[str, interfaces.LoopStats] = {}

        def heard(msg: interfaces.LoopStats) -> None:
            if msg.episode:
                figures[msg.node] = msg
            operator.changed.notify()

        operator.node.create_subscription(interfaces.LoopStats, 'loop_stats', heard, 10)
        operator.start(INSTRUCTION, seed=3)
        assert operator.until(operator.ticked(12), LONG)
        operator.interrupt()
        # Every node tells its figures once a second; the file is to have some of each.
        assert operator.until(lambda: len(figures) == 5 and figures['brain'].capsules >= 2, LONG)
        operator.resume()
        assert becomes(operator, 'idle')
        assert looked_for(operator, lambda: list(folder.glob('*.mcap')))
    (made,) = folder.glob('*.mcap')
    yield made


def test_the_file_holds_the_episode(file: Path) -> None:
    """Every topic is there, and the messages say what was heard: states, epochs, images."""
    found = read(file)
    assert set(KINDS) <= set(found.topics)
    states = [m.state for _, m in found.record.episodes]
    assert [s for s in states if s in ('interrupted', 'recovering')][:2] == [
        'interrupted',
        'recovering',
    ]
    assert states[-1] == 'idle'
    numbers = [m.episode for _, m in found.record.states]
    assert numbers[-1] == 1
    assert set(numbers) <= {0, 1}  # the robot may report a last tick from before its begin
    assert found.images['front'][0][1].shape == (8, 8, 3)
    brain = [m for _, m in found.stats if m.node == 'brain']
    assert brain[-1].inferences > 0
    assert brain[-1].capsules >= 2
    assert brain[-1].capsule_bytes > 0
    assert not math.isnan(brain[-1].inference_p99_ms)
    sim = [m for _, m in found.stats if m.node == 'sim']
    assert max(m.rate_hz for m in sim) > 0
    assert not math.isnan(sim[-1].lateness_max_ms)


def test_diagnostics_name_every_node(file: Path) -> None:
    """Each node is in /diagnostics with its figures; gate rejections are there by reason."""
    from mcap.reader import make_reader
    from mcap_ros2.decoder import DecoderFactory

    seen: dict[str, dict[str, str]] = {}
    with file.open('rb') as stream:
        reader = make_reader(stream, decoder_factories=[DecoderFactory()])
        for _, _, _, msg in reader.iter_decoded_messages(topics=['/diagnostics']):
            for status in msg.status:
                seen.setdefault(status.name, {}).update((v.key, v.value) for v in status.values)
    wanted = {'/gate', '/sim', '/brain', '/supervisor', '/recorder'}
    assert {name.removesuffix(': loop') for name in seen} >= wanted
    assert 'refused: closed' in seen['/gate: loop']
    assert {'rate_hz', 'queue_depth', 'inference_p99_ms', 'capsule_bytes'} <= set(
        seen['/brain: loop']
    )
    assert 'lateness_p99_ms' in seen['/sim: loop']
    assert 'lateness_p99_ms' not in seen['/gate: loop']  # not measured there


def test_definitions_read_back_what_was_written(tmp_path: Path) -> None:
    """Bytes of ROS, read by the definition made from the class: every field comes back."""
    joint = JointState(
        name=['a', 'b'], position=[1.5, -2.0], velocity=[0.0, 0.0], effort=[1.0, 2.0]
    )
    state = interfaces.RobotState(episode=3, epoch=4, tick=-1, subgoals=['x'], subgoal_done=[True])
    state.proprioception, state.simulator_state = [0.5, 0.25], [1, 2, 3]
    recording = Recording(tmp_path / 'a.mcap', 1)
    recording.add('/joints', JointState, serialize_message(joint), 1)
    recording.add('/robot/state', interfaces.RobotState, serialize_message(state), 2)
    recording.close()
    found = read(tmp_path / 'a.mcap')
    ((_, back),) = found.record.states
    assert (back.episode, back.epoch, back.tick) == (3, 4, -1)
    assert list(back.proprioception) == [0.5, 0.25]
    assert bytes(back.simulator_state) == b'\1\2\3'
    assert list(back.subgoals) == ['x']
    assert list(back.subgoal_done) == [True]
    assert full_name(JointState) == 'sensor_msgs/msg/JointState'
    assert 'MSG: std_msgs/Header' in definition(JointState)
    assert 'MSG: builtin_interfaces/Time' in definition(JointState)


def test_the_layout_shows_what_there_is() -> None:
    """Every path of the Foxglove layout is a topic of ours and a field that its type has."""
    layout = json.loads(config('foxglove_layout.json').read_text())
    text = json.dumps(layout['configById'])
    paths = [json.loads(f'"{p}"') for p in re.findall(r'"value": "((?:[^"\\]|\\.)*)"', text)]
    topics = re.findall(r'"imageTopic": "([^"]+)"', text)
    assert len(paths) > 10
    assert set(topics) <= set(KINDS)
    for path in paths:
        topic, field = re.match(r'(/[\w/]+)(?:\{[^}]*\})?\.(\w+)', path).groups()  # type: ignore
        assert field in KINDS[topic].get_fields_and_field_types(), path
    shown = re.findall(r"'(\w+![\w]+)'", repr(layout['layout']))
    assert sorted(shown) == sorted(layout['configById'])


def test_the_page_has_everything(file: Path, tmp_path: Path) -> None:
    """`flashrt report` writes one file with pictures, film and figures, and no script."""
    page = tmp_path / 'page.html'
    assert cli.main(['report', str(file), '--out', str(page)]) == 0
    text = page.read_text()
    assert text.count('data:image/png;base64,') == 4  # timeline, latencies, a strip per camera
    assert text.count('data:video/webm;base64,') == 1
    for words in (INSTRUCTION, 'Timeline', 'Why the gate held', 'every subgoal is reached'):
        assert words in text
    assert '<script' not in text
    assert not re.findall(r'(?:src|href)="http', text)
    s = facts.summary(read(file), facts.told(read(file)))
    assert s['outcome'] == 'done'
    assert s['subgoals_done'] == ['open the drawer', 'close the drawer']
    assert s['reentry_ms'] is not None


@pytest.mark.skipif(shutil.which('chromium') is None, reason='no chromium on this machine')
def test_the_page_in_a_browser(file: Path, tmp_path: Path) -> None:
    """A real browser draws it: the picture of the page is not blank."""
    from PIL import Image as Picture

    page, shot = tmp_path / 'page.html', tmp_path / 'page.png'
    page.write_text(render(read(file)))
    words = ['chromium', '--headless', '--no-sandbox', '--disable-gpu', '--window-size=1240,1800']
    words += [f'--user-data-dir={tmp_path}/profile', f'--screenshot={shot}', page.as_uri()]
    subprocess.run(words, check=True, capture_output=True, timeout=850)
    pixels = np.asarray(Picture.open(shot).convert('RGB'))
    assert _colours(pixels) > 1000
    assert _colours(np.full_like(pixels, 255)) == 1  # what a blank page would be


def _colours(pixels: np.ndarray) -> int:
    return len(np.unique(pixels.reshape(-1, 3), axis=0))


def test_what_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No file, no MCAP, a file cut short, one without robot states: one line each, code 2."""
    assert cli.main(['report', str(tmp_path / 'none.mcap')]) == 2
    assert 'there is no file' in capsys.readouterr().err
    other = tmp_path / 'other.mcap'
    other.write_bytes(b'not a recording')
    empty = Recording(tmp_path / 'empty.mcap', 1)
    empty.add('/joints', JointState, serialize_message(JointState()), 1)
    empty.close()
    cut = tmp_path / 'cut.mcap'
    cut.write_bytes(empty.path.read_bytes()[:-40])
    for path, words in (
        (other, 'is no complete MCAP file'),
        (cut, 'is no complete MCAP file'),
        (empty.path, 'has no robot states: it must hold robot/state; its topics: /joints'),
    ):
        with pytest.raises(RecordingError, match=re.escape(words)):
            read(path)
        assert cli.main(['report', str(path)]) == 2
        assert capsys.readouterr().err.count('\n') == 1
