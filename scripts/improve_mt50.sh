#!/usr/bin/env bash
# The shipped policy learns from its own episodes on the five tasks it is worst at.
#
#   scripts/improve_mt50.sh OUTDIR
#
# OUTDIR gets improvement.json, improvement.png, log.txt, the improved checkpoint (mt50/), the last
# value function (value/, a judge for flashrt tree), the curve of the last fine-tuning
# (training.png) and, as one archive, every rollout's report. Needs python3 with the packages of
# requirements/, not an installation of this one. A stopped run goes on if it is given the same
# WORK and OUTDIR; what it has by then is in OUTDIR, too.
#
# TASKS       worst:5
# REPORT      of how bad they are (docs/results/mt50.json)
# EPISODES    collected of each task in each round (the recipe's)
# ROUNDS      how often (the recipe's)
# RECIPE      config/improve_mt50.yaml
# SECONDS_MAX stop after so many, what there is then comes to OUTDIR (none)
# WORK        folder for data and intermediate files (a temporary one)
# WORKERS     processes that simulate (all cores but two)
# SIM_DEVICE  where the policy runs in rollouts: cpu, or cuda (cpu)
# PYTHON      python3
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/prelude.sh" "$@"
export OMP_NUM_THREADS=1
cores=$(nproc)
workers=${WORKERS:-$((cores > 3 ? cores - 2 : cores))}

options=()
[ -z "${REPORT:-}" ] || options+=(--report "$REPORT")
[ -z "${EPISODES:-}" ] || options+=(--episodes "$EPISODES")
[ -z "${ROUNDS:-}" ] || options+=(--rounds "$ROUNDS")
[ -z "${RECIPE:-}" ] || options+=(--recipe "$RECIPE")
limit=()
[ -z "${SECONDS_MAX:-}" ] || limit=(timeout --signal=INT --kill-after=10 "$SECONDS_MAX")

# Every line says when it came; of a progress bar one in ten seconds is left, and the last one.
timed() {
  local line stage before='' shown=-10
  stdbuf -o0 tr '\r' '\n' | while IFS= read -r line; do
    stage=${line%%:*}
    if [[ $line == *%\|* && $line != *100%* && $stage == "$before" ]]; then
      ((SECONDS >= shown + 10)) || continue
    fi
    before=$stage shown=$SECONDS
    [ -z "$line" ] || echo "[$SECONDS s] $line"
  done
}

status=0
"${limit[@]}" "${PYTHON:-python3}" -m flashrt_ros.cli improve --policy mt50 \
  --tasks "${TASKS:-worst:5}" --out "$work/improvement" --workers "$workers" \
  --sim-device "${SIM_DEVICE:-cpu}" "${options[@]}" 2>&1 | timed || status=$?

cd "$work/improvement"
for file in improvement.json improvement.png; do
  [ ! -f "$file" ] || cp "$file" "$out/"
done
last=$(ls -d round-*/checkpoint 2>/dev/null | tail -n 1) || true
if [ -n "$last" ]; then
  mkdir -p "$out/mt50"
  cp "$last"/* "$out/mt50/"
  cp "${last%/checkpoint}/training.png" "$out/"
  rm -rf "$out/value"
  cp -r "${last%/checkpoint}/value" "$out/value"
fi
find . -name '*.json' -not -path './demonstrations/*' -not -path '*/episodes/*' -print0 \
  -o -name '*.json.part' -print0 -o -name 'judged.npz' -print0 | tar czf "$out/reports.tar.gz" \
  --null -T -
exit "$status"
