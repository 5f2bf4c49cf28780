#!/usr/bin/env bash
# Makes a Docker engine answer on this machine, for the tests; does nothing where one answers.
#
# As root on Debian or Ubuntu it installs and starts one in the background, and leaves it running.
# As another user it only says that the tests that need an engine will be skipped.
# GPUYARD_TEST_ENGINE=skip: never install or start anything.
set -euo pipefail

socket=/var/run/docker.sock
case ${DOCKER_HOST:-} in unix://*) socket=${DOCKER_HOST#unix://} ;; esac
wait_s=60

say() { echo "test engine: $*"; }
fail() { echo "test engine: $*" >&2; exit 1; }

# Asks the Engine API itself, since neither the docker command nor curl need be there.
answers() {
  python3 - "$socket" 2>/dev/null <<'PY'
import socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.settimeout(5)
    s.connect(sys.argv[1])
    s.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
    sys.exit(b" 200 " not in s.recv(64))
PY
}

# True while a process of that name runs; a zombie, as a killed daemon may stay for long, does not.
runs() {
  grep -qsx "$1" "/proc/$2/comm" && ! grep -qs '^State:[[:space:]]*[ZX]' "/proc/$2/status"
}

install_missing() {
  local missing=()
  # The tests' image is made of busybox on any engine, the rest is only for one of our own.
  command -v busybox >/dev/null || missing+=(busybox-static)
  # Moves the wall clock of single daemons in the fault tests.
  compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null || missing+=(libfaketime)
  if ! answers; then
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v iptables >/dev/null || missing+=(iptables)
    command -v ip >/dev/null || missing+=(iproute2)
  fi
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || fail "missing ${missing[*]}, and no apt-get to install it with"
  say "installing ${missing[*]}, which takes about a minute"
  # The package's own start script would start dockerd with other flags and no log; 101 forbids it.
  local policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    trap "rm -f $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
  fi
  if ! apt_install "${missing[@]}" >"$log.apt" 2>&1 9>&-; then
    tail -n 15 "$log.apt" >&2
    fail "apt-get could not install ${missing[*]}; its last lines are above, the rest in $log.apt"
  fi
}

apt_install() {
  local apt=(apt-get -y -qq -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update &&
    DEBIAN_FRONTEND=noninteractive "${apt[@]}" install --no-install-recommends "$@"
}

start_engine() {
  say "starting dockerd, log in $log"
  # Killed daemons leave these, and dockerd would trust a number that is in use again.
  local daemon file
  for daemon in dockerd containerd; do
    file=/var/run/docker.pid
    [ $daemon = dockerd ] || file=/var/run/docker/containerd/containerd.pid
    if [ -e $file ] && ! runs $daemon "$(cat $file)"; then rm -f $file; fi
  done
  setsid dockerd --host "unix://$socket" >"$log" 2>&1 </dev/null 9>&- &
  local pid=$! waited=0
  until answers; do
    if ! kill -0 $pid 2>/dev/null || [ $waited -ge $wait_s ]; then
      tail -n 15 "$log" >&2
      fail "dockerd did not come up in ${waited} s; its last lines are above, all of them in $log"
    fi
    sleep 1
    waited=$((waited + 1))
    [ $((waited % 5)) -ne 0 ] || say "waiting for dockerd, ${waited} s"
  done
  say "up after ${waited} s"
}

if [ "${GPUYARD_TEST_ENGINE:-}" = skip ] || [ "$(id -u)" -ne 0 ]; then
  if answers; then
    say "one answers on $socket"
  elif [ "${GPUYARD_TEST_ENGINE:-}" = skip ]; then
    say "none answers on $socket, GPUYARD_TEST_ENGINE=skip: the tests that need one are skipped"
  else
    say "none answers on $socket, only root may start one: the tests that need one are skipped"
  fi
  exit 0
fi

export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
log=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gpuyard/test-dockerd.log
mkdir -p "$(dirname "$log")"
# Two `make test` at once must not start two engines on one socket.
exec 9>"$log.lock"
flock 9
install_missing
if answers; then
  say "one answers on $socket"
else
  start_engine
fi
