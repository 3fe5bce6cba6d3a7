#!/bin/bash
while [ $# -gt 0 ]; do
  case "$1" in
    init|add|sync|lock|pip|venv|python|self|cache) exit 0;;
    run|--quiet|-q|tool) shift;; --with|-p|--python|--from|-w) shift 2;; -*) shift;; *) break;;
  esac
done
[ $# -gt 0 ] || exit 0
exec "$@"
