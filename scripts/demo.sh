#!/usr/bin/env bash
# A yard on this machine from its start to its end: `make demo`.
#
# Each command is printed before it runs. Jobs run as containers where a Docker engine answers, else
# as plain processes; without an NVIDIA GPU simulated ones stand in. Everything is kept in a
# temporary folder, and nothing is left behind, whichever way this ends.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
bin=$root/.venv/bin
[ -x "$bin/gpuyard" ] || { echo "demo: $bin/gpuyard is missing: make venv" >&2; exit 1; }
# The caller's own yard and settings stay out of this.
unset "${!GPUYARD_@}"
folder=$(mktemp -d "${TMPDIR:-/tmp}/gpuyard-demo-XXXXXX")
cd "$folder"

say() { printf '\n# %s\n' "$*"; }
fail() { echo "demo: $*" >&2; exit 1; }

# Ends the yard in the orderly way, then whatever did not go, by its process id.
clean_up() {
  local code=$? pid=
  trap - EXIT INT TERM
  if [ -s .gpuyard/lock ]; then
    pid=$(cat .gpuyard/lock)
    timeout 60 "$bin/gpuyard" down >/dev/null 2>&1 || true
    if kill -0 "$pid" 2>/dev/null; then
      kill -KILL "$pid" || true
      timeout 60 "$bin/gpuyard" down >/dev/null 2>&1 || true
    fi
  fi
  if [ "$code" -ne 0 ] && ls .gpuyard/log/*.log >/dev/null 2>&1; then
    echo "demo: failed with $code; the yard's last log lines:" >&2
    tail -n 5 .gpuyard/log/*.log >&2
  fi
  cd /
  rm -rf "$folder"
  exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Words as one would type them.
typed() {
  local word
  for word in "$@"; do
    case $word in
      *[!A-Za-z0-9_./:=,@%+-]*) printf " '%s'" "$word" ;;
      *) printf ' %s' "$word" ;;
    esac
  done
}

show() {
  printf '\n$ gpuyard%s\n' "$(typed "$@")"
  "$bin/gpuyard" "$@"
}

say 'A yard on this machine: the bus, a coordinator, an agent.'
if image=$("$bin/python" "$root/scripts/demo_image.py"); then
  runtime=docker
else
  runtime=process
  # The process runtime records the image and uses the machine's own programs.
  image=none
fi
show up -d --runtime "$runtime"
show nodes

say 'A job: its progress and its output as they come.'
# shellcheck disable=SC2016  # the job's own shell expands these
show run --gpus 1 "$image" sh -c \
  'for i in 1 2 3; do echo "step $i of 3 on $GPUYARD_NODE"; sleep 1; done; echo "had $GPUYARD_GPU_UUIDS"'

say 'A job handed in and left alone: its place, its log, its end.'
# shellcheck disable=SC2016
script='for i in 1 2 3 4; do echo "epoch $i of 4"; sleep 1; done'
printf '\n$ gpuyard%s\n' "$(typed submit --name train --gpus 2 "$image" sh -c "$script")"
id=$("$bin/gpuyard" submit --name train --gpus 2 "$image" sh -c "$script")
echo "$id"
show jobs
show logs -f "$id"
show wait "$id"
show job "$id"

say "The command's exit code is the container's own."
code=0
show run "$image" sh -c 'echo out; echo err >&2; exit 7' || code=$?
echo "exit code $code"
[ "$code" -eq 7 ] || fail "the exit code was to be 7"

say 'The end of the yard.'
show down
echo
echo "demo: done; jobs ran with the $runtime runtime"
