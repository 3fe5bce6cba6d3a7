#!/bin/bash
case " $* " in *" install "*) ;; *) exit 0;; esac
missing=0
for name in "$@"; do
  case "$name" in -*|install) continue;; esac
  [ -e "/usr/share/doc/$name" ] || command -v "$name" >/dev/null && continue
  echo "E: no network, and $name is not on this machine" >&2
  missing=100
done
exit $missing
