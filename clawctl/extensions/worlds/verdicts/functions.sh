# Read by each shell of a test script (BASH_ENV). Each file of the graded code that a command could name is a function, which runs it in
# the sandbox of the graded code. CLAWCTL_FOLDERS are the folders where such files are.
_graded() {
  [ -f "$1" ] || return 1
  case "$(realpath -m -- "$1")" in /tests/*|/usr/*|/opt/clawctl/*) return 1;; esac
}
_define_graded() {
  local path short
  while IFS= read -r path; do
    case "$path" in *[!A-Za-z0-9_./+=@%,-]*) continue;; esac
    eval "function $path { /opt/clawctl/bin/graded $path \"\$@\"; }"
    case "$path" in "$PWD"/*) short=${path#"$PWD"/};; *) continue;; esac
    eval "function ./$short { /opt/clawctl/bin/graded ./$short \"\$@\"; }"
    case "$short" in */*) eval "function $short { /opt/clawctl/bin/graded $short \"\$@\"; }";; esac
  done < <(find ${CLAWCTL_FOLDERS//:/ } -type f -size +0 2>/dev/null | head -n 2000)
}
_define_graded
cd() { builtin cd "$@" && _define_graded; }
pushd() { builtin pushd "$@" && _define_graded; }
# uv's installer leaves a file of this name, which scripts read. Nothing is installed here, so there is nothing to read.
_of_installer() { case "$1" in */.local/bin/env) return 0;; *) return 1;; esac; }
_refuse() { echo "$1 is the graded code's, and does not run in the shell of the tests" >&2; return 1; }
source() { if _of_installer "$1"; then return 0; elif _graded "$1"; then _refuse "$1"; else builtin source "$@"; fi; }
.() { if _of_installer "$1"; then return 0; elif _graded "$1"; then _refuse "$1"; else builtin . "$@"; fi; }
