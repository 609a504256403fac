#!/usr/bin/env bash
# programs_test.sh PROGRAM...: each runs on a machine that has the driver, libc and libstdc++ only.
# The driver itself is looked for at run time.
set -uo pipefail

failed=0
for program in "$@"; do
  needed=$(readelf -d "$program" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p')
  [[ -n $needed ]] || { echo "$program: readelf names no library" >&2; failed=1; }
  others=$(grep -Ev '^(libc|libm|libgcc_s|libstdc\+\+|ld-linux-x86-64)\.so' <<<"$needed")
  [[ -z $others ]] || { echo "$program needs" $others >&2; failed=1; }
done
exit $failed
