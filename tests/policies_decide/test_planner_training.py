"""Training of the planner: it learns, it resumes with the same bits, what it exports runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from decide_tiny import network, recipe

from flashrt_policies.hybrid_lm.text import FileTokenizer, load_tokenizer
from flashrt_policies.kernels.gated_delta import recurrent
from flashrt_policies.planner_lm.decide import open_decider
from flashrt_policies.planner_lm.prompt import Prompter
from flashrt_policies.planner_lm.questions import YesNo
from flashrt_policies.planner_lm.training import recipe as recipes
from flashrt_policies.planner_lm.training import run as runs
from flashrt_policies.planner_lm.training import vocabulary
from flashrt_policies.planner_lm.training.batches import NONE, Batches
from flashrt_policies.planner_lm.training.delta import Inverse, delta_rule, invert
from flashrt_policies.planner_lm.training.examples import Examples
from flashrt_policies.planner_lm.training.measure import (
    calibration_error,
    fitted,
    measure,
    summarise,
)
from flashrt_policies.planner_lm.training.mixers import CausalConv
from flashrt_policies.planner_lm.training.run import export
from flashrt_policies.planner_lm.training.task import PlannerTask, fresh
from flashrt_policies.planner_lm.training.words import Words, load
from flashrt_policies.recipes import RecipeError, plain
from flashrt_policies.training import trainer as trainers
from flashrt_policies.training.trainer import Trainer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope='module')
def words() -> Words:
    """Return the shipped words."""
    return load(ROOT / 'config' / 'planner_words.yaml')


@cache
def tokens() -> FileTokenizer:
    """Return the tiny network's vocabulary: the bytes alone."""
    words = load(ROOT / 'config' / 'planner_words.yaml')
    return vocabulary.build(Examples(words, 0), 256)


def trainer(words: Words, folder: Path, steps: int) -> Trainer:
    """Return a trainer of the tiny network, one situation a step."""
    numbers = {'steps': steps, 'batch': 1, 'warmup': 1, 'measure': 1, 'validate_every': 99}
    made = recipe(**numbers, save_every=99)
    cpu = torch.device('cpu')
    held_out = Examples(words, 0, held_out=True)
    task = PlannerTask(made, Examples(words, 0), held_out, tokens(), cpu)
    return Trainer(task, made.train, plain(made), folder, cpu, lambda line: None)


def test_it_learns(words: Words, tmp_path: Path) -> None:
    """A few steps on one batch bring its loss down."""
    made = trainer(words, tmp_path, 40)
    batch = next(made.task.batches(0))
    losses = [float(made.step(batch)) for _ in range(12)]
    assert losses[-1] < 0.9 * losses[0], losses


def test_a_resumed_run_has_the_same_bits(words: Words, tmp_path: Path) -> None:
    """Two steps, a save, two more: the weights of four in one go; without the state, others."""
    whole = trainer(words, tmp_path / 'a', 4)
    whole.run()
    first = trainer(words, tmp_path / 'b', 4)
    first.run(2)
    second = trainer(words, tmp_path / 'b', 4)
    second.resume()
    second.run()
    pairs = zip(whole.average.parameters(), second.average.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert [entry['step'] for entry in second.validations] == [4]
    blank = trainer(words, tmp_path / 'c', 4)
    blank.done = 2
    blank.run()
    pairs = zip(whole.average.parameters(), blank.average.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs), 'negative control'


def test_a_state_of_another_recipe_is_refused(words: Words, tmp_path: Path) -> None:
    """Resuming with other numbers is one line."""
    made = trainer(words, tmp_path, 4)
    made.save()
    with pytest.raises(RecipeError, match='another recipe'):
        trainer(words, tmp_path, 5).resume()


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_what_is_exported_is_what_was_trained(dtype: str, tmp_path: Path) -> None:
    """The runtime's answers are those of the network with its matrices rounded, within 2e-5."""
    made = recipes.parse({**plain(recipe()), 'dtype': dtype})
    net = network(3)
    export(tmp_path, net, made)
    kind = getattr(torch, dtype)
    for parameter in net.parameters():
        if parameter.ndim > 1:
            parameter.data = parameter.data.to(kind).float()
    question = YesNo('Is it done?')
    decider = open_decider(tmp_path, capacity=512, longest_round=512)
    answer = decider.decide('can: nothing', [question])[0]
    asked = decider.prompter.question(question)
    tokens = torch.tensor([[*decider.prompter.state('can: nothing'), *asked.tokens]])
    with torch.no_grad():
        hidden, *_ = net(tokens, torch.tensor([tokens.shape[1]]))
    expected = net.head(hidden[0, -1])[asked.options].softmax(0).detach().numpy()
    assert np.abs(np.array(answer.probabilities) - expected).max() < 2e-5


def test_the_delta_rule_has_the_runtimes_values_and_a_gradient() -> None:
    """Against the token-by-token rule, over lengths around the chunk."""
    seed = 7
    print('seed', seed)
    generator = torch.Generator().manual_seed(seed)
    for rows in (1, 63, 64, 65, 130):
        q, k, v = (torch.randn(1, rows, 2, 8, generator=generator) for _ in range(3))
        g = -torch.rand(1, rows, 2, generator=generator)
        beta = torch.rand(1, rows, 2, generator=generator)
        start = torch.randn(1, 2, 8, 8, generator=generator)
        k.requires_grad_(True)
        out, end = delta_rule(q, k, v, g, beta, start)
        state = start[0].clone()
        with torch.no_grad():
            expected = recurrent(*(x[0].detach() for x in (q, k, v, g, beta)), state)
        assert torch.allclose(out[0], expected, atol=2e-5)
        assert torch.allclose(end[0], state, atol=2e-5)
        out.sum().backward()
        assert torch.isfinite(k.grad).all()


def test_gradients_written_out_are_right() -> None:
    """The convolution's and the inverse's gradients agree with finite differences."""
    torch.manual_seed(0)
    series = torch.randn(2, 9, 3, dtype=torch.float64, requires_grad=True)
    taps = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(CausalConv.apply, (series, taps))
    triangle = 0.3 * torch.randn(2, 32, 32, dtype=torch.float64)
    triangle.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda a: Inverse.apply(a.tril(-1)), (triangle,))


def test_the_inverse_of_a_triangle() -> None:
    """`invert` solves what it promises for every power of two, with keys that are alike."""
    for n in (1, 2, 16, 32, 64):
        a = torch.full((n, n), 0.9, dtype=torch.float64).tril(-1)
        eye = torch.eye(n, dtype=torch.float64)
        assert torch.allclose(invert(a) @ (eye + a), eye, atol=1e-9)


def test_calibration() -> None:
    """A sure and right judge has no error, an overconfident one has what it overclaims."""
    assert calibration_error([True] * 10, [1.0] * 10) == 0.0
    assert calibration_error([True, False] * 50, [0.9] * 100) == pytest.approx(0.4)
    assert calibration_error([True] * 9 + [False], [0.9] * 10) == pytest.approx(0.0)


def test_the_temperature_that_made_answers_is_found() -> None:
    """Answers drawn from logits divided by 2.5: it is found, and makes answers calibrated."""
    generator = torch.Generator().manual_seed(11)
    logits = 4 * torch.randn(20000, 4, generator=generator, dtype=torch.float64)
    logits[:10000, 2:] = float('-inf')
    answers = torch.multinomial((logits / 2.5).softmax(-1), 1, generator=generator)[:, 0]
    found = fitted(logits, answers)
    assert found == pytest.approx(2.5, rel=0.05)
    sure, best = logits.softmax(-1).max(-1)
    assert calibration_error((best == answers).tolist(), sure.tolist()) > 0.1, 'negative control'
    sure, best = (logits / found).softmax(-1).max(-1)
    assert calibration_error((best == answers).tolist(), sure.tolist()) < 0.02


def test_the_temperature_becomes_part_of_the_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Calibrated weights give the logits of the old ones, divided by it."""
    net, tokens = network(), torch.arange(40)[None]
    with torch.no_grad():
        before = net.head(net(tokens, torch.tensor([40]))[0])
        monkeypatch.setattr(runs, 'temperature', lambda *_: 1.7)
        assert runs.calibrate(net, [], torch.device('cpu')) == 1.7
        after = net.head(net(tokens, torch.tensor([40]))[0])
    assert torch.allclose(after * 1.7, before, atol=1e-4)
    assert not torch.allclose(after, before, atol=1e-2)


def test_a_run_by_the_clock_ends_in_time(
    words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a second a step a run of 90 seconds has as many steps as fit, and can go on later."""
    now = [0.0]
    monkeypatch.setattr(trainers.time, 'monotonic', lambda: now[0])
    made = trainer(words, tmp_path, 10**6)

    def step(batch: object) -> torch.Tensor:
        made.done += 1
        now[0] += 1.0
        return torch.zeros(())

    monkeypatch.setattr(made, 'step', step)
    monkeypatch.setattr(made.task, 'batches', lambda first: iter(lambda: None, 0))
    monkeypatch.setattr(made, '_pause', lambda until: False)
    made.run(seconds=90)
    assert 80 <= made.done == made.steps <= 90
    assert made.rate(made.done) == 0.0 or made.loop.cooldown == 0
    made.run(seconds=90)
    assert 160 <= made.done <= 180


def test_the_vocabulary_is_short_and_loses_nothing(words: Words, tmp_path: Path) -> None:
    """Any text survives, a situation is three times shorter, a letter is one token anywhere."""
    made = vocabulary.build(Examples(words, 0), 1024)
    vocabulary.save(made, tmp_path)
    read = load_tokenizer(tmp_path, 1024)
    foreign = 'Schubla-de öffnen \n\n 3.14 §'
    assert read.encode(foreign) == made.encode(foreign)
    assert read.decode(read.encode(foreign)) == foreign
    assert Prompter(read).style == 'short'
    examples = Examples(words, 5, held_out=True)
    texts = [examples[index].situation.text for index in range(50)]
    assert 2.5 * sum(len(read.encode(text)) for text in texts) < sum(map(len, texts))
    letter = read.encode('A')
    assert len(letter) == 1 and letter[0] in read.encode('can: A open; B close')
    asked = Prompter(read).question(examples[0].situation.next)
    assert [read.decode([token]) for token in asked.options[-2:]] == ['finished', 'cannot']


def test_what_is_taught_stands_where_it_is_settled(words: Words) -> None:
    """The token that teaches holds the character of the mark, as offsets of the library say."""
    made = vocabulary.build(Examples(words, 0), 1024)
    examples = [Examples(words, 3)[index] for index in range(20)]
    batch = Batches(Examples(words, 3), len(examples), made).batch(examples)
    for row, example in enumerate(examples):
        spans = made.inner.encode(example.situation.text).offsets
        expected = {
            next(i for i, (a, b) in enumerate(spans) if a <= place < b): class_
            for place, class_ in example.marks.items()
        }
        found = batch.marks[row]
        assert {int(i): int(found[i]) for i in (found != NONE).nonzero()} == expected


def test_measuring_counts_every_decision(words: Words) -> None:
    """Each situation counts once per decision; what the scene lacks is counted apart."""
    batches = Batches(Examples(words, 0, held_out=True), 1, tokens())[0]
    made = fresh(recipe(), len(words.skills))
    found = summarise(measure(made, batches, torch.device('cpu')))
    assert found['decisions']['count'] == 4 * len(batches)
    lacking = sum(int((~batch.possible).sum()) for batch in batches)
    assert found.get('cannot', {'count': 0})['count'] == lacking


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('model: 3', 'want a mapping'),
        ('train: {speed: 1}', 'train.speed is unknown'),
        ('model: {layers: [linear, hyper]}', 'want a list of linear, full'),
        ('train: {steps: fast}', "train.steps is 'fast'; want a int"),
        ('dtype: int8', 'want one of float16'),
        ('words: ../words.yaml', 'want a file name'),
        ('model: {kv_heads: 3}', 'no multiple'),
        ('model: {vocabulary: 255}', 'want 256 to 32767'),
    ],
)
def test_a_wrong_recipe_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    """Key and value are named, with what would be right."""
    path = tmp_path / 'recipe.yaml'
    path.write_text(text + '\n')
    with pytest.raises(RecipeError, match=said):
        recipes.load(path)


def test_the_shipped_recipe_is_right() -> None:
    """The recipe in config/ is read and names the words file beside it."""
    made = recipes.load(ROOT / 'config' / 'train_planner.yaml')
    assert (ROOT / 'config' / made.words).is_file()
