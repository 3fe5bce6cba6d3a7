# Sourced by the other scripts: makes .venv with the pinned dependencies, once; later runs only compare a stamp.
# usage: make_venv [EXTRA]      e.g. make_venv test

fail() {
  echo "${0##*/}: $1" >&2
  exit 1
}

find_python() {
  for candidate in python3.13 python3.12 python3.11 python3; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  fail "no Python 3.11 or newer with the venv module found: install one (Debian: apt-get install python3 python3-venv)."
}

make_venv() {
  local extra="${1:-}" wanted stamp=".venv/installed-${1:-base}" python log
  wanted=$(cat pyproject.toml constraints.txt | cksum)
  if [ -x .venv/bin/clawctl ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    return
  fi
  python=$(find_python) || exit 1
  log=$(mktemp)
  echo "making .venv (a minute or two) …" >&2
  "$python" -m venv .venv >"$log" 2>&1 || fail "could not make .venv: $(tail -n 1 "$log")"
  if ! .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".${extra:+[$extra]}" >"$log" 2>&1; then
    fail "could not install the dependencies ($(grep -m 1 -i error "$log" || tail -n 1 "$log")); the whole log is in $log. Check the network and the disk, remove .venv and try again."
  fi
  rm -f "$log"
  [ -z "$extra" ] || echo "$wanted" > .venv/installed-base
  echo "$wanted" > "$stamp"
}
