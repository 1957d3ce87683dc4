"""`flashrt lm` continues texts and chats; tokenizers stream whole characters."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path

import pytest
import torch

from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.hybrid_lm.text import (
    ByteTokenizer,
    FileTokenizer,
    load_tokenizer,
    render_chat,
    stream,
)
from flashrt_ros.commands import lm as command

sys.path.insert(0, str(Path(__file__).parent))
import lm_oracle


def arguments(*words: str) -> argparse.Namespace:
    """Parse a command line as `flashrt` does."""
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers(dest='command'))
    return parser.parse_args(['lm', *words])


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small byte-level model, as users have it."""
    pytest.importorskip('transformers', reason='saves the checkpoint')
    path = tmp_path_factory.mktemp('bytes')
    dims = {**lm_oracle.hybrid(3), 'vocab_size': 257, 'eos_token_id': 256}
    lm_oracle.build(dims, 3).save_pretrained(path)
    return path


def test_generate_writes_the_text_and_the_speed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same seed gives the same text; figures go to standard error."""
    texts = []
    for seed in ('1', '1', '2'):
        args = arguments(
            'generate', str(folder), '--prompt', 'hello', '--tokens', '24', '--seed', seed,
            '--temperature', '1.5', '--capacity', '200',
        )  # fmt: skip
        assert command.run(args) == 0
        shown = capsys.readouterr()
        assert '[5 tokens read' in shown.err and 'a second]' in shown.err
        texts.append(shown.out)
    assert texts[0] == texts[1] != texts[2]


def test_chat_resumes_what_was_read_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second turn restores the first one's state at a multiple of the chunk."""
    monkeypatch.setattr(sys, 'stdin', io.StringIO('first line\nsecond line\n\nnot read\n'))
    args = arguments('chat', str(folder), '--tokens', '8', '--system', 'be short ' * 10)
    assert command.run(args) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if 'resumed' in line]
    assert len(lines) == 2 and lines[0].startswith('[0 tokens resumed')
    assert int(lines[1].split()[0][1:]) % 64 == 0 and not lines[1].startswith('[0')


def test_a_path_that_is_no_checkpoint_is_one_clear_line(tmp_path: Path) -> None:
    """Neither a folder nor a GGUF file."""
    with pytest.raises(CheckpointError, match='neither a checkpoint folder nor a .gguf file'):
        command.run(arguments('generate', str(tmp_path / 'none'), '--prompt', 'x'))


def test_a_character_cut_across_tokens_waits_for_its_rest() -> None:
    """Bytes of one character are shown together; a stop token is not shown."""
    tokenizer = ByteTokenizer()
    text = 'né ✓\nzwei'
    pieces = list(stream(tokenizer.decode, iter([*tokenizer.encode(text), 7, 65]), frozenset({7})))
    assert ''.join(pieces) == text and '\ufffd' not in ''.join(pieces)
    cut = list(stream(tokenizer.decode, iter(tokenizer.encode('✓')[:2]), frozenset()))
    assert ''.join(cut) == '\ufffd'  # the text ended inside a character: that is shown


def test_a_real_tokenizer_and_its_template_are_read(tmp_path: Path) -> None:
    """tokenizer.json, the end-of-text token and the chat template of a folder."""
    tokenizers = pytest.importorskip('tokenizers', reason='reads tokenizer.json')
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({chr(97 + i): i for i in range(26)}, []))
    inner.add_special_tokens(['<|im_end|>'])
    inner.save(str(tmp_path / 'tokenizer.json'))
    extra = {
        'eos_token': {'content': 'z'},
        'chat_template': '{% for m in messages %}{{ m.content }};{% endfor %}',
    }
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(extra))
    found = load_tokenizer(tmp_path, 27)
    assert isinstance(found, FileTokenizer)
    assert found.encode('cab') == [2, 0, 1] and found.stops == {25, 26}
    assert found.encode('a<|im_end|>') == [0, 26]
    assert render_chat(found, [{'role': 'user', 'content': 'hi'}]) == 'hi;'
    assert 'assistant' in render_chat(ByteTokenizer(), [{'role': 'user', 'content': 'hi'}])
    with pytest.raises(CheckpointError, match='tokenizer.json is missing'):
        load_tokenizer(tmp_path / 'none', 1000)
    (tmp_path / 'tokenizer.json').write_text('{')
    with pytest.raises(CheckpointError, match='cannot be read'):
        load_tokenizer(tmp_path, 27)


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    """The planted fault: a template that looks for Python's insides fails, in one line."""
    evil = FileTokenizer(None, template="{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(CheckpointError, match='chat template fails'):
        render_chat(evil, [])


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small products gain nothing from more."""
    torch.set_num_threads(1)
