#!/usr/bin/env bash
# Make the shipped planner from nothing: training for so many seconds, calibration, measurement.
#
#   scripts/train_planner.sh OUTDIR [SECONDS]
#
# OUTDIR gets planner/ (the checkpoint), history.json with what was measured on situations never
# trained, training.png and log.txt. SECONDS (240) is the time for training alone; about half a
# minute comes on top. Called again with the same WORK it trains on for as long. Needs python3 with
# the packages of requirements/, not an installation of this one.
#
# CHECK   held-out situations that are measured (2048)
# RECIPE  config/train_planner.yaml
# DEVICE  auto
# WORK    folder for intermediate files (a temporary one)
# PYTHON  python3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
out=${1:?usage: scripts/train_planner.sh OUTDIR [SECONDS]}
mkdir -p "$out" && out=$(cd "$out" && pwd)
work=${WORK:-$(mktemp -d)}
[ -n "${WORK:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work/src"
ln -sfn "$root/flashrt_ros" "$work/src/flashrt_ros"
ln -sfn "$root/policies" "$work/src/flashrt_policies"
ln -sfn "$root/sim" "$work/src/flashrt_sim"
export PYTHONPATH="$work/src${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
exec > >(tee -a "$out/log.txt") 2>&1

resume=()
[ ! -f "$work/run/state.safetensors" ] || resume=(--resume)
"${PYTHON:-python3}" -m flashrt_ros.cli train planner --out "$work/run" "${resume[@]}" \
  --recipe "${RECIPE:-config/train_planner.yaml}" --device "${DEVICE:-auto}" \
  --seconds "${2:-240}" --check "${CHECK:-2048}" 2>&1 | tr '\r' '\n'
mkdir -p "$out/planner"
cp "$work/run/checkpoint/"* "$out/planner/"
cp "$work/run/history.json" "$out/"
[ ! -f "$work/run/training.png" ] || cp "$work/run/training.png" "$out/"
