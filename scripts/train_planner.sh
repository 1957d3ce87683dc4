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
source "$(dirname "${BASH_SOURCE[0]}")/prelude.sh" "$@"

resume=()
[ ! -f "$work/run/state.safetensors" ] || resume=(--resume)
flashrt train planner --out "$work/run" "${resume[@]}" \
  --recipe "${RECIPE:-config/train_planner.yaml}" --device "${DEVICE:-auto}" \
  --seconds "${2:-240}" --check "${CHECK:-2048}" 2>&1 | tr '\r' '\n'
mkdir -p "$out/planner"
cp "$work/run/checkpoint/"* "$out/planner/"
cp "$work/run/history.json" "$out/"
[ ! -f "$work/run/training.png" ] || cp "$work/run/training.png" "$out/"
