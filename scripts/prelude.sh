# What the training scripts begin with; sourced by them with their arguments.
#
# Goes to the repository's root, makes OUTDIR (the first argument) and `work` (WORK, or a temporary
# folder that goes when the script ends), lets Python import the three packages from the source
# tree, and writes everything that is said to OUTDIR/log.txt as well.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
out=${1:?usage: scripts/$(basename "$0") OUTDIR}
mkdir -p "$out" && out=$(cd "$out" && pwd)
work=${WORK:-$(mktemp -d)}
[ -n "${WORK:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work/src"
ln -sfn "$root/flashrt_ros" "$work/src/flashrt_ros"
ln -sfn "$root/policies" "$work/src/flashrt_policies"
ln -sfn "$root/sim" "$work/src/flashrt_sim"
export PYTHONPATH="$work/src${PYTHONPATH:+:$PYTHONPATH}"
export MUJOCO_GL=${MUJOCO_GL:-egl} PYTHONUNBUFFERED=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
exec > >(tee -a "$out/log.txt") 2>&1

flashrt() { "${PYTHON:-python3}" -m flashrt_ros.cli "$@"; }
