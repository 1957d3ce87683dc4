"""Questions: what can be asked, how it becomes tokens, and that the neighbours do not matter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from decide_tiny import network

from flashrt_policies.hybrid_lm.text import ByteTokenizer, FileTokenizer
from flashrt_policies.planner_lm.prompt import Prompter
from flashrt_policies.planner_lm.questions import (
    MOST,
    Answer,
    Choice,
    Question,
    QuestionError,
    Score,
    YesNo,
    levels,
)

if TYPE_CHECKING:
    from flashrt_policies.planner_lm.decide import Decider

STATE = 'can: open the drawer; close the drawer\ntask: open the drawer'
ASKED: list[Question] = [
    YesNo('Is it done?'),
    Choice('What comes next?', ('open the drawer', 'close the drawer', 'finished', 'cannot')),
    Score('How many are left?', levels(7)),
    Choice('Which?', tuple(f'option {i}' for i in range(MOST))),
]


def alone(state: str, question: Question) -> np.ndarray:
    """Return the probabilities by the whole prompt, run through the training's own network."""
    prompter = Prompter(ByteTokenizer())
    asked = prompter.question(question)
    tokens = torch.tensor([[*prompter.state(state), *asked.tokens]])
    net = network()
    with torch.no_grad():
        hidden, *_ = net(tokens, torch.tensor([tokens.shape[1]]))
        logits = net.head(hidden[0, -1])[asked.options]
    return logits.softmax(0).numpy()


def test_each_answer_is_what_it_would_be_alone(decider: Decider) -> None:
    """Four questions in one round: within 2e-5 of each one's own whole prompt."""
    for question, answer in zip(ASKED, decider.decide(STATE, ASKED), strict=True):
        expected = alone(STATE, question)
        assert answer.options == tuple(question.options)
        assert np.abs(np.array(answer.probabilities) - expected).max() < 2e-5
    other = decider.decide(STATE + '!', ASKED[:1])[0]
    assert abs(other.yes - alone(STATE, ASKED[0])[0]) > 2e-5, 'negative control: another state'


def test_several_states_in_one_round(decider: Decider) -> None:
    """Each state's answers are those of a round of its own."""
    cases = [(STATE, ASKED[:2]), (STATE + '; close it', ASKED[:3])]
    for (state, questions), answers in zip(cases, decider.decide_all(cases), strict=True):
        for answer, single in zip(answers, decider.decide(state, questions), strict=True):
            assert np.allclose(answer.probabilities, single.probabilities, atol=2e-5)


def test_an_answer_reads_as_people_want_it() -> None:
    """Likeliest option, its probability, yes, the expected level, and one option's own."""
    answer = Answer(('0', '1', '2'), (0.2, 0.3, 0.5))
    assert (answer.text, answer.probability, answer.index) == ('2', 0.5, 2)
    assert answer.level == pytest.approx(1.3)
    assert answer.of('1') == 0.3
    assert answer.of('7') == 0.0
    assert Answer(('yes', 'no'), (0.9, 0.1)).yes == 0.9


@pytest.mark.parametrize(
    ('question', 'words'),
    [
        (YesNo('  '), 'no text'),
        (YesNo('one\ntwo?'), 'line break'),
        (Choice('Which?', ('one',)), '1 options; want 2 to 255'),
        (Choice('Which?', tuple(map(str, range(256)))), '256 options; want 2 to 255'),
        (Choice('Which?', ('a', 'a')), 'there twice'),
        (Choice('Which?', ('a', 'b'), ('only one',)), '1 descriptions of 2 options'),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    decider: Decider, question: Question, words: str
) -> None:
    """A question that cannot be asked says what would be right."""
    with pytest.raises(QuestionError, match=words) as caught:
        decider.decide(STATE, [question])
    assert '\n' not in str(caught.value)


def test_bytes_have_a_label_for_every_option() -> None:
    """255 labels, all different, none a line break, the readable ones first."""
    numbers = tuple(map(str, range(MOST)))
    labels = Prompter(ByteTokenizer()).question(Choice('Which?', numbers)).options
    assert len(set(labels)) == len(labels) == MOST
    assert ord('\n') not in labels
    assert bytes(labels[:30]) == b'ABCDEFGHIJKLMNOPQRSTUVWXYZabcd'
    asked = Prompter(ByteTokenizer()).question(Choice('Which?', ('left', 'right'), ('<', '')))
    assert bytes(asked.tokens) == b'\nWhich?\nA left: <\nB right\n='
    assert bytes(asked.options) == b'AB'
    asked = Prompter(ByteTokenizer()).question(Choice('Which?', ('left', 'right')))
    assert bytes(asked.tokens) == b'\nWhich? left|right ='
    assert bytes(asked.options) == b'lr'


def text_tokenizer(folder: Path, template: str | None = None) -> FileTokenizer:
    """Return a tokenizer of words, one token each, a space in front belonging to the word."""
    import tokenizers

    names = [
        *map(chr, range(33, 127)),
        'yes',
        'no',
        ' yes',
        ' no',
        *(f' {chr(c)}' for c in range(65, 91)),
    ]
    vocab = {name: i for i, name in enumerate(dict.fromkeys([*names, ' ', '\n']))}
    inner = {
        'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [],
        'normalizer': None, 'pre_tokenizer': None, 'post_processor': None, 'decoder': None,
        'model': {
            'type': 'BPE', 'dropout': None, 'unk_token': None, 'continuing_subword_prefix': None,
            'end_of_word_suffix': None, 'fuse_unk': False, 'byte_fallback': False,
            'ignore_merges': True, 'vocab': vocab, 'merges': [],
        },
    }  # fmt: skip
    path = folder / 'tokenizer.json'
    path.write_text(json.dumps(inner))
    return FileTokenizer(tokenizers.Tokenizer.from_file(str(path)), template=template)


def test_text_models_get_labels_of_one_token(tmp_path: Path) -> None:
    """Yes and no, letters with a space in front, and a clear line where labels run out."""
    plain = Prompter(text_tokenizer(tmp_path))
    assert plain.style == 'plain'
    asked = plain.question(YesNo('Is it done?'))
    inner = plain.tokenizer
    assert [inner.decode([token]) for token in asked.options] == [' yes', ' no']
    asked = plain.question(Choice('Which?', ('left', 'right')))
    assert [inner.decode([token]) for token in asked.options] == [' A', ' B']
    with pytest.raises(QuestionError, match='no 200 labels'):
        plain.question(Choice('Which?', tuple(map(str, range(200)))))


def test_chat_models_are_asked_inside_their_template(tmp_path: Path) -> None:
    """What stands before the state and behind the question is the template's."""
    template = '<{{ messages[0]["content"] }}>{% if add_generation_prompt %}@{% endif %}'
    chat = Prompter(text_tokenizer(tmp_path, template))
    assert chat.style == 'chat'
    inner = chat.tokenizer
    assert inner.decode(chat.state('hot')).replace(' ', '') == '<hot'
    asked = inner.decode(chat.question(YesNo('ok?')).tokens)
    assert asked.replace(' ', '').endswith('>@')


def test_an_unknown_style_is_one_line() -> None:
    """The styles there are are named."""
    with pytest.raises(QuestionError, match='want one of short, plain, chat'):
        Prompter(ByteTokenizer(), 'prose')
