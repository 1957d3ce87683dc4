#!/usr/bin/env bash
# Make the drawer policy from nothing: demonstrations, training, evaluation.
#
#   scripts/train_drawer.sh OUTDIR
#
# OUTDIR gets drawer/ (the checkpoint), history.json, training.png, rollout.json, sequence.json,
# control.json and log.txt. Needs python3 with the packages of requirements/, not an installation
# of this one. On one H200 with 16 cores it takes about five minutes.
#
# EPISODES       demonstrations to record (500)
# EVAL_EPISODES  evaluation episodes for each skill (50)
# RECIPE         config/train_drawer.yaml
# WORK           folder for data and intermediate files (a temporary one)
# WORKERS        processes that simulate (all cores)
# PYTHON         python3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
out=${1:?usage: scripts/train_drawer.sh OUTDIR}
mkdir -p "$out" && out=$(cd "$out" && pwd)
work=${WORK:-$(mktemp -d)}
[ -n "${WORK:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work/src"
ln -sfn "$root/flashrt_ros" "$work/src/flashrt_ros"
ln -sfn "$root/policies" "$work/src/flashrt_policies"
ln -sfn "$root/sim" "$work/src/flashrt_sim"
export PYTHONPATH="$work/src${PYTHONPATH:+:$PYTHONPATH}"
export MUJOCO_GL=${MUJOCO_GL:-egl} PYTHONUNBUFFERED=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
workers=${WORKERS:-$(nproc)}
exec > >(tee -a "$out/log.txt") 2>&1

say() { echo "[${SECONDS} s] $*"; }
flashrt() { "${PYTHON:-python3}" -m flashrt_ros.cli "$@"; }
quiet() { tr '\r' '\n' | tail -n "${1:-3}"; } # a progress bar leaves its last lines only

say 'recording demonstrations'
OMP_NUM_THREADS=1 flashrt data generate --episodes "${EPISODES:-500}" --workers "$workers" \
  --out "$work/data" 2>&1 | quiet

say 'training'
flashrt train policy --recipe "${RECIPE:-config/train_drawer.yaml}" --data "$work/data" \
  --out "$work/run" 2>&1 | quiet 40
mkdir -p "$out/drawer"
cp "$work/run/checkpoint/"* "$out/drawer/"
cp "$work/run/history.json" "$work/run/training.png" "$out/"

evaluate() { # FILE, then arguments of `flashrt rollout`
  OMP_NUM_THREADS=1 flashrt rollout --policy "$out/drawer" --workers "$workers" \
    --episodes "${EVAL_EPISODES:-50}" --json "$out/$1" "${@:2}" 2>&1 | quiet 5
}
say 'evaluating each skill'
evaluate rollout.json
say 'evaluating a sequence'
evaluate sequence.json --subgoal 'open the drawer' --subgoal 'close the drawer' --sequence
say 'control: told to close when the drawer should be opened (success must be rare)'
evaluate control.json --subgoal 'open the drawer' --told 'close the drawer' --limit 150
say 'done'
