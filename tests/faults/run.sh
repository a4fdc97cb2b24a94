#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Puts one-line faults into copies of the tree, one at a time, and expects some test to fail for each.
#   run.sh [LIST] [NAME-FRAGMENT]   LIST: faults.txt beside this file, whose head describes the format; only the faults whose
#                                   name holds NAME-FRAGMENT
# On x86-64; faults of NEON are compiled for AArch64 and tested under qemu. The tree is built once (-O1); a fault costs one compilation of the kernels of one ISA, a link, and the tests up to the first
# failure. Prints a table and last "faults: N, M caught". Exit status 1 if a fault is not caught, does not compile, or its old
# text is not in its file exactly once. Work under build/faults.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
list=$(realpath "${1:-$here/faults.txt}")
only=${2:-}
work=$root/build/faults
die() { echo "faults: ERROR: $*" >&2; exit 1; }

# ---- the list: names[i], files[i], ...
names=() files=() olds=() news=() bys=() isas=() rebuilds=()
number=0
while IFS= read -r line || [ -n "$line" ]; do
  number=$((number + 1))
  [[ $line =~ ^(#.*)?$ ]] && continue
  [[ $line =~ ^(name|file|old|new|by|isa|rebuild):[[:space:]]*(.*)$ ]] || die "$list:$number: not KEY: VALUE with a known key"
  key=${BASH_REMATCH[1]} value=${BASH_REMATCH[2]}
  if [ "$key" = name ]; then
    names+=("$value") files+=("") olds+=("") news+=("") bys+=("") isas+=(scalar) rebuilds+=(kernels)
    continue
  fi
  i=$((${#names[@]} - 1))
  [ "$i" -ge 0 ] || die "$list:$number: $key before the first name"
  case $key in
    file) files[i]=$value ;;
    old) olds[i]=$value ;;
    new) news[i]=$value ;;
    by) bys[i]=$value ;;
    isa) isas[i]=$value ;;
    rebuild) rebuilds[i]=$value ;;
  esac
done < "$list"
chosen=()
for i in "${!names[@]}"; do
  [ -n "${files[i]}" ] && [ -n "${olds[i]}" ] || die "fault '${names[i]}' lacks its file or its old text"
  [[ ${names[i]} == *"$only"* ]] && chosen+=("$i")
done
[ ${#chosen[@]} -gt 0 ] || die "no fault to try in $list"

# ---- a build without faults, whose commands are repeated for each fault
pristine=$work/pristine
echo "building the tree without faults"
mkdir -p "$work"
rm -rf "$pristine" "$work"/fault.*
mkdir "$pristine"
cp -a "$root"/{CMakeLists.txt,CMakePresets.json,LICENSE,cmake,include,tests,golden} "$pristine"
preset_of() { case $1 in neon) echo aarch64 ;; *) echo gcc-release ;; esac; } # preset_of ISA
for preset in gcc-release aarch64; do
  its_isas=$(for i in "${chosen[@]}"; do [ "$(preset_of "${isas[i]}")" != $preset ] || echo "${isas[i]}"; done | sort -u | paste -sd ';')
  [ -n "$its_isas" ] || continue
  cmake -S "$pristine" --preset $preset -B "$pristine/build/$preset" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DKDA_BUILD_EXAMPLES=OFF \
    -DKDA_BUILD_BENCHMARKS=OFF -DCMAKE_COMPILE_WARNING_AS_ERROR=OFF "-DKDA_TEST_ISAS=$its_isas" -DKDA_TEST_TREE=OFF > "$work/configure.log" 2>&1 ||
    { tail -5 "$work/configure.log" >&2; die "the tree does not configure"; }
  cmake --build "$pristine/build/$preset" --parallel "$(nproc)" --target kda_tests kda_golden_test > "$work/build.log" 2>&1 ||
    { tail -20 "$work/build.log" >&2; die "the tree does not build"; }
done

# run_tests TREE FAULT OUTPUT: the tests that should catch the fault, stopping at the first failure
run_tests() {
  local program=kda_tests filter=(--abort)
  case ${bys[$2]} in golden) program=kda_golden_test filter=() ;; ?*) filter+=("${bys[$2]}") ;; esac
  (cd "$1/tests" && KDA_GOLDEN_DIR=$root/golden timeout 900 "$root/tests/emulated/on.sh" --file "$root/golden" "${isas[$2]}" \
    "$1/build/$(preset_of "${isas[$2]}")/tests/$program" "${filter[@]}"; exit $?) > "$3" 2>&1 < /dev/null
}
declare -A passed=()
for i in "${chosen[@]}"; do
  [ -z "${passed[${isas[i]} ${bys[i]}]:-}" ] || continue
  run_tests "$pristine" "$i" "$work/pristine.log" && ! grep -q 'No test' "$work/pristine.log" ||
    { tail -5 "$work/pristine.log" >&2; die "without any fault, the tests '${bys[i]}' fail on ${isas[i]}, or there are none"; }
  passed[${isas[i]} ${bys[i]}]=1
done

# ---- one fault: a line of the table on stdout, exit status 1 unless it is caught
try_fault() {
  local i=$1 tree=$work/fault.$1 start=$SECONDS text rest program=kda_tests folder wanted what status=0 verdict
  folder=build/$(preset_of "${isas[i]}")
  verdict() { printf '%-10s %4d s  %-6s  %s%s\n' "$1" $((SECONDS - start)) "${isas[i]}" "${names[i]}" "${2:+  <- $2}"; }
  text=$(cat "$root/${files[i]}" && echo .) || { verdict NO-FILE "${files[i]}"; return 1; }
  rest=${text//"${olds[i]}"/}
  if [ $((${#text} - ${#rest})) != ${#olds[i]} ]; then
    verdict NO-MATCH "the old text is in ${files[i]} $(((${#text} - ${#rest}) / ${#olds[i]})) times, not once"
    return 1
  fi
  cp -a "$pristine" "$tree"
  text=${text/"${olds[i]}"/"${news[i]}"}
  printf '%s' "${text%.}" > "$tree/${files[i]}"

  [ "${bys[i]}" != golden ] || program=kda_golden_test
  wanted='!/ -c /' # all links, and of the compilations those of the ISA's kernels or of the files named
  for what in ${rebuilds[i]}; do
    case $what in
      # the kernels of 1 x 1 blocking are what the others are compared with: only tests of blocking need them faulty too
      kernels) wanted+=' || / -DKDA_TARGET_'${isas[i]^^}'=1 /'; [[ "${bys[i]:-[blocking]}" == *"[blocking]"* ]] || wanted+=' && !/ -DKDA_FORCE_1X1_BLOCKING /' ;;
      *) wanted+=' || / -c [^ ]*\/tests\/'${what//./\\.}'$/' ;;
    esac
  done
  if ! { echo "set -e"; ninja -C "$pristine/$folder" -t commands "$program" | awk "$wanted" | sed "s|$pristine|$tree|g"; } > "$tree/commands" ||
    ! (cd "$tree/$folder" && bash "$tree/commands") > "$tree/log" 2>&1; then
    verdict NO-COMPILE "$(grep -m1 -E 'error' "$tree/log" | cut -c1-150)"
    rm -rf "$tree"
    return 1
  fi
  run_tests "$tree" "$i" "$tree/log" || status=$?
  case $status in
    0) verdict MISSED ;;
    124) verdict caught "does not end" ;;
    *) verdict caught "$(grep -m1 -E ':[0-9]+: (failed|FAILED)|FAILED|FAIL|Sanitizer' "$tree/log" | sed "s|$tree/||; s|$pristine/||" | cut -c1-100)" ;;
  esac
  rm -rf "$tree"
  [ $status != 0 ]
}

# ---- all of them, one per core
results=$work/results
rm -rf "$results"
mkdir "$results"
for i in "${chosen[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
  (try_fault "$i" | tee "$results/$i"; exit "${PIPESTATUS[0]}") && touch "$results/$i.caught" &
done
wait
caught=$(find "$results" -name '*.caught' | wc -l)
echo "faults: ${#chosen[@]}, $caught caught"
[ "$caught" = ${#chosen[@]} ]
