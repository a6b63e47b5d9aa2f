# shellcheck shell=bash
# For .ci/run and tests/release.sh: a temporary folder, a new virtual environment, and parts, all of which run.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp" && export TMPDIR="$work/tmp" # what tests leave in the temporary folder goes with it
unset PYTHONPATH PYTHONHOME
failed=()

part() { # part NAME COMMAND...
    local name=$1 start=$SECONDS status
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@"
    status=$?
    printf '== %s: exit code %d after %d s\n' "$name" "$status" $((SECONDS - start))
    printf '%s\t%d\t%d\n' "$name" "$status" $((SECONDS - start)) >>"$work/parts"
    [ "$status" -eq 0 ] || failed+=("$name")
    return "$status"
}

new_environment() { # new_environment EXTRAS
    part "virtual environment" "${PYTHON:-python3}" -m venv --upgrade-deps "$work/venv" || exit 1
    # shellcheck disable=SC1091
    source "$work/venv/bin/activate"
    part "install" pip install -qq -e ".[$1]" || exit 1
}

finish() {
    if [ "${#failed[@]}" -gt 0 ]; then
        printf '\nfailed: %s\n' "$(IFS=,; echo "${failed[*]}")"
        exit 1
    fi
    printf '\nall parts passed in %d s\n' "$SECONDS"
}
