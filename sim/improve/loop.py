"""The loop: each stage leaves a file, and is not done again where the file is.

A stopped improvement goes on in the midst of a stage: episodes, demonstrations and the steps of
the fine-tuning that are finished stay finished. All follows from the recipe's seed; what a GPU or
another renderer rounds differently aside.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from flashrt_policies import registry
from flashrt_policies.checkpoint import read_config
from flashrt_policies.flow_vla.advantage import conditioned
from flashrt_policies.flow_vla.policy import ARCHITECTURE, load_model
from flashrt_policies.recipes import plain
from flashrt_policies.training.recipe import Recipe
from flashrt_policies.training.run import exact, train
from flashrt_policies.training.value_function import Fitted
from flashrt_policies.training.value_function import save as save_value
from flashrt_ros.control.types import EXECUTE

from ..data.dataset import EpisodeDataset
from ..data.demonstrations import SCENE, TASK, Order, generate_all
from ..envs.registration import SCENES
from ..errors import SimulationError
from ..rollout.evaluation import Result, Task
from ..rollout.run import Deployment
from .data import Judged, OwnEpisodes, mixture
from .measure import measured
from .recipe import Improvement
from .report import Round, write

_COLLECTING = 1_000  # rollouts that are learned from have seeds from here on


class Improver:
    """One improvement of one policy.

    Args:
        out: folder of everything that is made.
        recipe: every number.
        policy: name of shipped weights, or a folder.
        tasks: to be improved.
        others: not to be harmed.
        device: where the networks are trained.
        sim_device: where the policy runs in rollouts.
        workers: processes that simulate.
        tell: called with each line for people.

    Raises:
        SimulationError: `out` holds another improvement, or the policy is of another kind.
        CheckpointError: missing or damaged weights.
        RecipeError: the recipe does not fit the policy's chunks.
    """

    def __init__(
        self,
        out: Path,
        recipe: Improvement,
        policy: str,
        tasks: Sequence[Task],
        others: Sequence[Task],
        *,
        device: str = 'cpu',
        sim_device: str = 'cpu',
        workers: int = 1,
        tell: Callable[[str], None] = print,
    ) -> None:
        self.out, self.recipe, self.policy = out, recipe, policy
        self.tasks, self.others = tasks, others
        self.device, self.sim_device, self.workers = torch.device(device), sim_device, workers
        self.tell = tell
        folder = registry.resolve(policy)
        config = read_config(folder)
        if config['architecture'] != ARCHITECTURE:
            raise SimulationError(
                f'policy {policy} is a {config["architecture"]}; want a {ARCHITECTURE}'
            )
        exact(self.device)
        spec = registry.parse_spec(folder, config['spec'])
        self.model, self.weights = load_model(folder, config, spec, self.device)
        self.training = Recipe(
            seed=recipe.seed, horizon=spec.horizon, model=self.model.sizes, train=recipe.train,
            loss=recipe.loss, augment=recipe.augment,
        )  # fmt: skip
        self._claim(self.weights)

    def _claim(self, digest: str) -> None:
        """Make the folder this improvement's, or see that it is."""
        settings = {
            'recipe': plain(dataclasses.replace(self.recipe, rounds=1)),  # more may follow
            'weights': digest,
            'tasks': [task.environment for task in self.tasks],
            'others': [task.environment for task in self.others],
        }
        path = self.out / 'settings.json'
        if path.is_file():
            there = json.loads(path.read_text('utf-8'))
            differs = [key for key in settings if there.get(key) != settings[key]]
            if differs:
                raise SimulationError(
                    f'{self.out} holds an improvement with other {" and ".join(differs)}; '
                    'choose another --out or remove it'
                )
            return
        self.out.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix('.part')
        temporary.write_text(json.dumps(settings, indent=1) + '\n', 'utf-8')
        os.replace(temporary, path)

    def run(self) -> dict[str, Any]:
        """Do all that is not done yet.

        Returns:
            The report, which stands in ``improvement.json``, too.

        Raises:
            FlashrtError: of any stage, one line.
        """
        evaluate = self.recipe.evaluate
        shown = self._demonstrations()
        before = self._evaluate('before', self.policy, self.tasks, evaluate.episodes)
        rounds: list[Round] = []
        policy = self.policy
        for number in range(self.recipe.rounds):
            rounds.append(self._round(number, policy, shown, rounds))
            policy = str(self.out / f'round-{number}' / 'checkpoint')
        last = f'round-{self.recipe.rounds - 1}'
        unsaid = str(self.out / last / 'unsaid')
        controls = {
            'unsaid': self._evaluate(f'{last}/unsaid', unsaid, self.tasks, evaluate.unsaid),
            'others before': self._evaluate('others', self.policy, self.others, evaluate.others),
            'others after': self._evaluate(f'{last}/others', policy, self.others, evaluate.others),
        }
        return write(self.out, self.recipe, self.policy, before, rounds, controls)

    def _round(
        self, number: int, policy: str, shown: list[EpisodeDataset], earlier: Sequence[Round]
    ) -> Round:
        """Collect, value, relabel, fine-tune, evaluate."""
        recipe, folder = self.recipe, self.out / f'round-{number}'
        self.tell(f'round {number}: collecting with {policy}')
        limited = [dataclasses.replace(task, limit=recipe.collect.limit) for task in self.tasks]
        collected = measured(
            folder / 'collected.json',
            Deployment(policy, self.sim_device, EXECUTE, delay=0),
            limited,
            recipe.collect.episodes,
            seed=_COLLECTING + 10 * recipe.seed + number,
            workers=self.workers,
            record=folder / 'episodes',
        )
        own = OwnEpisodes(
            [*(self.out / f'round-{n}' / 'episodes' for n in range(number)), folder / 'episodes'],
            [*(each.collected for each in earlier), collected],
            self.model.spec.horizon,
        )
        judged = self._judge(folder, own)
        self._train(folder, shown, own, judged)
        after = self._evaluate(
            f'round-{number}/after', str(folder / 'checkpoint'), self.tasks,
            recipe.evaluate.episodes,
        )  # fmt: skip
        return Round(collected, judged, after)

    def _demonstrations(self) -> list[EpisodeDataset]:
        shown, out = self.recipe.demonstrated, self.out / 'demonstrations'
        names = [task.environment for task in (*self.tasks, *self.others)]
        wanted = [(name, shown.tasks, TASK) for name in names]
        wanted += [(name, shown.scenes, SCENE) for name in SCENES]
        orders = [
            Order(name, count, out / name.split('/')[1], how)
            for name, count, how in wanted
            if count
        ]
        total = sum(order.episodes for order in orders)
        finished = generate_all(orders, workers=self.workers, seed=0)
        for _ in tqdm(finished, total=total, unit='episode', desc='demonstrations'):
            pass
        return [EpisodeDataset(order.folder) for order in orders]

    def _evaluate(
        self, name: str, policy: str, tasks: Sequence[Task], episodes: int
    ) -> list[Result]:
        return measured(
            self.out / f'{name}.json',
            Deployment(policy, self.sim_device, EXECUTE, delay=0),
            tasks,
            episodes,
            seed=self.recipe.evaluate.seed,
            workers=self.workers,
        )

    def _judge(self, folder: Path, own: OwnEpisodes) -> Judged:
        path, value = folder / 'judged.npz', folder / 'value'
        if not path.is_file() or not (value / 'config.json').is_file():
            self.tell(f'fitting the value function to {len(own.outcomes)} episodes')
            recipe = self.recipe
            judged, network = own.judge(
                self.model, recipe.value, recipe.relabel, recipe.collect.limit, self.device,
                recipe.seed,
            )  # fmt: skip
            tasks = tuple(task.environment for task in self.tasks)
            fitted = Fitted(self.weights, tasks, len(own.outcomes), recipe.collect.limit)
            save_value(value, network, registry.resolve(self.policy), fitted)
            if not path.is_file():  # what has been learned from stays what it was
                judged.save(path)
        return Judged.load(path)

    def _train(
        self, folder: Path, shown: list[EpisodeDataset], own: OwnEpisodes, judged: Judged
    ) -> None:
        """Fine-tune the first policy, as the paper does, so that nothing drifts over rounds."""
        if (folder / 'checkpoint' / 'config.json').is_file():
            return
        spec = self.model.spec
        data = mixture(shown, own, judged, self.recipe.demonstrated.share, spec.horizon)
        self.tell(f'fine-tuning on {len(data.seen if data.seen is not None else data)} pictures')
        train(
            self.training, data, spec.action_low, spec.action_high, folder, str(self.device),
            resume=(folder / 'state.safetensors').is_file(),
            start=conditioned(self.model).requires_grad_(True), tell=self.tell,
        )  # fmt: skip
