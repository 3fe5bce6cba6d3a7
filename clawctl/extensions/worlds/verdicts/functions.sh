# Read by each shell of a test script (BASH_ENV). Each file of the graded code that a command could name is a function, which runs it in
# the sandbox of the graded code. CLAWCTL_FOLDERS are the folders where such files are. Interpreters that are named by their path are
# functions as well, which start clawctl's programs of the same names.
_TEXT=; [ -f "$0" ] && case "$(realpath -m -- "$0")" in /tests/*) _TEXT=$(<"$0");; esac
_graded() {
  [ -e "$1" ] || return 1
  case "$(realpath -m -- "$1")" in /tests/*|/usr/*|/etc/*|/opt/clawctl/*) return 1;; esac
}
_define_graded() {
  local path short
  while IFS= read -r path; do
    case "$path" in *[!A-Za-z0-9_./+=@%,-]*) continue;; esac
    builtin eval "function $path { /opt/clawctl/bin/graded $path \"\$@\"; }"
    case "$path" in "$PWD"/*) short=${path#"$PWD"/};; *) continue;; esac
    builtin eval "function ./$short { /opt/clawctl/bin/graded ./$short \"\$@\"; }"
    case "$short" in */*) builtin eval "function $short { /opt/clawctl/bin/graded $short \"\$@\"; }";; esac
  done < <(PATH=${PATH#/opt/clawctl/bin:} command find ${CLAWCTL_FOLDERS//:/ } -type f -size +0 2>/dev/null | head -n 2000)
}
_define_programs() {
  local path name real
  for path in /opt/clawctl/bin/*; do
    name=${path##*/}
    for real in /usr/bin/$name /bin/$name /usr/local/bin/$name; do
      [ -x "$real" ] && builtin eval "function $real { $path \"\$@\"; }"
    done
    case "$name" in gcc|g++|cc|c++|clang|make|cmake|cargo|rustc|go|tcc|ghc) builtin eval "$name() { _then_define $path \"\$@\"; }";; esac
  done
  for real in /usr/bin/python3.* /usr/local/bin/python3.*; do
    case "$real" in *-config|*'*') ;; *) builtin eval "function $real { /opt/clawctl/bin/python3 \"\$@\"; }";; esac
  done
}
_then_define() { "$@"; local code=$?; _define_graded; return $code; }
chmod() { _then_define command chmod "$@"; }
_define_graded
_define_programs
cd() { builtin cd "$@" && _define_graded; }
pushd() { builtin pushd "$@" && _define_graded; }
# uv's installer leaves a file of this name, which scripts read. Nothing is installed here, so there is nothing to read.
_of_installer() { case "$1" in */.local/bin/env) return 0;; *) return 1;; esac; }
source() { _of_installer "$1" && return 0; _graded "$1" && /opt/clawctl/bin/source "$1"; builtin source "$@"; }
.() { _of_installer "$1" && return 0; _graded "$1" && /opt/clawctl/bin/source "$1"; builtin . "$@"; }
# A text that the script contains between quotes needs no further look. As a word it does, if a shell evaluates it: `score=1`.
_is_written() { case "$_TEXT" in *"'$1'"*|*"\"$1\""*) return 0;; *) return 1;; esac; }
_is_word() { case "$_TEXT" in *" $1 "*) return 0;; *) return 1;; esac; }
# A value of several words makes another condition of `[ $out = 42 ]`: "1 = 1 -o 1". The script's own operators stand in its condition.
_compared() {
  local word line lines text= from=$((BASH_LINENO[1] > 3 ? BASH_LINENO[1] - 3 : 0))
  for word; do
    case "$word" in -o|-a|!|'('|')') ;; *) continue;; esac
    if [[ -z $text ]]; then
      text=';'
      [[ -f ${BASH_SOURCE[2]} ]] && mapfile -t -s "$from" -n 5 lines < "${BASH_SOURCE[2]}"
      for line in "${lines[@]}"; do [[ $line == *\\ ]] && text+=${line%\\} || text+="$line;"; done
    fi
    [[ $text =~ (\[|test)' '([^]';&|']*' ')?"$word"' ' ]] || /opt/clawctl/bin/source "[ $*"
  done
}
[() { [[ $# -gt 4 ]] && _compared "$@"; builtin [ "$@"; }
test() { [[ $# -gt 3 ]] && _compared "$@"; builtin test "$@"; }
# A variable that the tests do not name may have programs load a file of the graded code: `export $(cat .env)`.
export() {
  local word folder
  for word; do
    case "$word" in *=*) ;; *) continue;; esac
    for folder in ./ ${CLAWCTL_FOLDERS//:/ }; do
      case "${word#*=}" in *"$folder"*) command grep -rqsF -- "${word%%=*}=" /tests || /opt/clawctl/bin/source "$word";; esac
    done
  done
  builtin export "$@"
}
eval() { _is_written "$*" || /opt/clawctl/bin/eval "$*"; builtin eval "$@"; }
_filter() {
  local name=$1 word; shift
  for word; do
    case "$word" in
      -*f*|--file*) "/opt/clawctl/bin/$name" "$@"; return;;
      *[!A-Za-z0-9_./-]*) _is_written "$word" || _is_word "$word" || { "/opt/clawctl/bin/$name" "$@"; return; };;
    esac
  done
  PATH=${PATH#/opt/clawctl/bin:} command "$name" "$@"
}
for _name in sed awk gawk mawk jq; do builtin eval "$_name() { _filter $_name \"\$@\"; }"; done
