# Sourced by the Makefile, and by hand (`source scripts/env.sh`) to use .venv in a shell of your own.
# shellcheck shell=bash
_flashrt_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

export VIRTUAL_ENV=$_flashrt_root/.venv
export PATH=$VIRTUAL_ENV/bin:$PATH
export PYTHONNOUSERSITE=1

if [ -z "${ROS_DISTRO:-}" ]; then
  export AMENT_PREFIX_PATH=$VIRTUAL_ENV # the ROS 2 wheels live in the environment itself
elif [ -f "$_flashrt_root/.cache/colcon/install/local_setup.bash" ]; then
  case $- in *u*) _flashrt_flags=u ;; *) _flashrt_flags= ;; esac
  set +u # ROS's own scripts read variables that are not set
  # shellcheck disable=SC1091
  source "$_flashrt_root/.cache/colcon/install/local_setup.bash"
  [ -z "$_flashrt_flags" ] || set -u
  unset _flashrt_flags
fi

# Everything runs on this machine, and does not talk to robots that happen to be on the network.
export ROS_AUTOMATIC_DISCOVERY_RANGE=${ROS_AUTOMATIC_DISCOVERY_RANGE:-LOCALHOST}
export MUJOCO_GL=${MUJOCO_GL:-egl} # render without a screen
unset _flashrt_root
