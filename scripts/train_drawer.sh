#!/usr/bin/env bash
# Make the drawer policy from nothing: demonstrations, training, evaluation.
#
#   scripts/train_drawer.sh OUTDIR
#
# OUTDIR gets drawer/ (the checkpoint), history.json, training.png, recipe.yaml, rollout.json,
# sequence.json and log.txt. Needs python3 with the packages of requirements/, not an installation
# of this one. On one H200 with 16 cores it takes seven to nine minutes.
#
# EPISODES       demonstrations to record (400)
# DATA_SECONDS   stop recording after this long and train on what there is (140)
# TRAIN_SECONDS  fewer steps than the recipe's if a measured step says they would take longer (180)
# EVAL_EPISODES  evaluation episodes for each skill (50)
# RECIPE         config/train_drawer.yaml
# WORK           folder for data and intermediate files (a temporary one)
# WORKERS        processes that simulate (all cores)
# PYTHON         python3
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
out=${1:?usage: scripts/train_drawer.sh OUTDIR}
mkdir -p "$out" && out=$(cd "$out" && pwd)
work=${WORK:-$(mktemp -d)}
mkdir -p "$work/src"
ln -sfn "$root/flashrt_ros" "$work/src/flashrt_ros"
ln -sfn "$root/policies" "$work/src/flashrt_policies"
ln -sfn "$root/sim" "$work/src/flashrt_sim"
export PYTHONPATH="$work/src${PYTHONPATH:+:$PYTHONPATH}"
export MUJOCO_GL=${MUJOCO_GL:-egl} PYTHONUNBUFFERED=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
python=${PYTHON:-python3}
workers=${WORKERS:-$(nproc)}
exec > >(tee -a "$out/log.txt") 2>&1

say() { echo "[${SECONDS} s] $*"; }
flashrt() { "$python" -m flashrt_ros.cli "$@"; }
quiet() { tr '\r' '\n' | tail -n "${1:-3}"; } # a progress bar leaves its last lines only

say 'measuring a training step'
"$python" - "${RECIPE:-config/train_drawer.yaml}" "$work/recipe.yaml" \
  "${TRAIN_SECONDS:-180}" <<'PY' || exit 1
"""Write the recipe with as many steps as fit the time."""
import re
import sys
import time
from pathlib import Path

import numpy as np
import torch

from flashrt_policies.training import recipe as recipes
from flashrt_policies.training.data import Demonstrations, Frames
from flashrt_policies.training.run import exact, spec_of
from flashrt_policies.training.trainer import Trainer

source, target, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
recipe = recipes.load(source)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
exact(device)
count = 256
data = Demonstrations(
    images={name: np.zeros((count, 96, 96, 3), np.uint8) for name in ('front', 'wrist')},
    proprio=np.zeros((count, 4), np.float32),
    actions=np.zeros((count, 4), np.float32),
    episode=np.repeat([0, 1], count // 2),
    skill=np.repeat([0, 1], count // 2),
    ahead=np.ones(count, np.int64),
    skills=('a', 'b'),
    wordings=[np.ones((1, 64), np.int32)] * 2,
)
spec = spec_of(data, recipe.horizon, (-1.0,) * 4, (1.0,) * 4)
frames = Frames(data, spec.cameras, recipe.horizon, device, 0.0, 0)
trainer = Trainer(recipe, spec, frames, Path('.'))
warm, timed = (5, 30) if device.type == 'cuda' else (1, 1)
for turn in range(warm + timed):
    if turn == warm:
        float(trainer.step())
        began = time.monotonic()
    loss = trainer.step()
float(loss)
step = (time.monotonic() - began) / timed
steps = min(recipe.train.steps, max(20, int(seconds / step / 100) * 100))
memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == 'cuda' else 0.0
print(f'{1e3 * step:.1f} ms a step on {device} ({memory:.1f} GiB): {steps} steps')
text = re.sub(r'(?m)^(\s+steps:) \d{3,}$', rf'\1 {steps}', source.read_text())
text = re.sub(r'(?m)^(\s+validate_every:) \d+$', rf'\1 {max(1, steps // 6)}', text)
target.write_text(text)
assert recipes.load(target).train.steps == steps
PY
cp "$work/recipe.yaml" "$out/recipe.yaml"

say 'recording demonstrations'
OMP_NUM_THREADS=1 timeout -s INT -k 3 "${DATA_SECONDS:-140}" "$python" -m flashrt_ros.cli \
  data generate --episodes "${EPISODES:-400}" --workers "$workers" --out "$work/data" 2>&1 | quiet
say "$(find "$work/data" -name 'episode-*.npz' | wc -l) episodes, $(du -sh "$work/data" | cut -f1)"

say 'training'
flashrt train policy --recipe "$work/recipe.yaml" --data "$work/data" --out "$work/run" \
  2>&1 | quiet 40
[ -f "$work/run/checkpoint/config.json" ] || { say 'no checkpoint: training failed'; exit 1; }
mkdir -p "$out/drawer" && cp "$work/run/checkpoint/"* "$out/drawer/"
cp "$work/run/history.json" "$work/run/training.png" "$out/"

export OMP_NUM_THREADS=1
say 'evaluating each skill'
flashrt rollout --policy "$out/drawer" --episodes "${EVAL_EPISODES:-50}" --workers "$workers" \
  --json "$out/rollout.json" 2>&1 | quiet 6
say 'evaluating a sequence'
flashrt rollout --policy "$out/drawer" --episodes "${EVAL_EPISODES:-50}" --workers "$workers" \
  --subgoal 'open the drawer' --subgoal 'close the drawer' --sequence \
  --json "$out/sequence.json" 2>&1 | quiet 5
say 'control: the wrong instruction (success by the right one must be rare)'
cat > "$work/wrong.py" <<'PY' # a file, because the worker processes import it
"""Roll out each skill while the policy is told to do the other."""
import sys

from flashrt_sim.evaluation import Goal, Task, summarise, table
from flashrt_sim.rollout import Deployment, roll_out

policy, workers, episodes = sys.argv[1], int(sys.argv[2]), max(1, int(sys.argv[3]) // 2)
words = ('open the drawer', 'close the drawer')
tasks = [
    Task('flashrt/Drawer-v0', (Goal(right, wrong),), limit=150)
    for right, wrong in zip(words, words[::-1])
]
if __name__ == '__main__':
    results = list(roll_out(Deployment(policy), tasks, episodes, workers=workers))
    print('the task column says what the policy was told, success is by the other skill')
    print(table(summarise(results)))
PY
"$python" "$work/wrong.py" "$out/drawer" "$workers" "${EVAL_EPISODES:-50}" 2>&1 | quiet 6
say "done: $(ls "$out" "$out/drawer" | tr '\n' ' ')"
[ -n "${WORK:-}" ] || rm -rf "$work"
