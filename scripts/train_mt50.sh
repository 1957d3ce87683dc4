#!/usr/bin/env bash
# Make the shipped policy from nothing: demonstrations, training, evaluation.
#
#   scripts/train_mt50.sh OUTDIR
#
# OUTDIR gets mt50/ (the checkpoint), history.json, training.png, log.txt, a contact sheet and one
# JSON report a suite. Needs python3 with the packages of requirements/, not an installation of
# this one. A stopped run goes on if it is given the same WORK and OUTDIR.
#
# EPISODES        demonstrations of each of the fifty tasks (130)
# SCENE_EPISODES  demonstrations of each scene with several subgoals (160)
# EVAL_EPISODES   evaluation episodes of each task (20)
# RECIPE          config/train_mt50.yaml
# WORK            folder for data and intermediate files (a temporary one)
# WORKERS         processes that simulate (all cores)
# PYTHON          python3
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/prelude.sh" "$@"
workers=${WORKERS:-$(nproc)}

say() { echo "[${SECONDS} s] $*"; }
quiet() { tr '\r' '\n' | tail -n "${1:-3}"; } # a progress bar leaves its last lines only

say 'recording demonstrations'
OMP_NUM_THREADS=1 flashrt data generate --suite mt50 --episodes "${EPISODES:-130}" \
  --scene-episodes "${SCENE_EPISODES:-160}" --workers "$workers" --out "$work/data" \
  --no-lerobot 2>&1 | quiet

say 'training'
resume=()
[ ! -f "$work/run/state.safetensors" ] || resume=(--resume)
flashrt train policy --recipe "${RECIPE:-config/train_mt50.yaml}" --data "$work/data" \
  --out "$work/run" "${resume[@]}" 2>&1 | quiet 40
mkdir -p "$out/mt50"
cp "$work/run/checkpoint/"* "$out/mt50/"
cp "$work/run/history.json" "$work/run/training.png" "$out/"

evaluate() { # SUITE EPISODES, then more arguments of `flashrt rollout`
  say "evaluating $1"
  OMP_NUM_THREADS=1 flashrt rollout --policy "$out/mt50" --workers "$workers" --suite "$1" \
    --episodes "$2" --json "$out/$1.json" "${@:3}" 2>&1 | quiet 70
}
episodes=${EVAL_EPISODES:-20}
evaluate mt50 "$episodes" --sheet "$out/mt50-sheet.png"
evaluate scenes "$episodes"
evaluate sequences "$episodes"
evaluate interrupts "$episodes"
evaluate mt50-held-out $(((episodes + 1) / 2))
evaluate mt50-wrong $(((episodes + 3) / 4))
say 'done'
