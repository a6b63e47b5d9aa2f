#!/usr/bin/env bash
# All tests that .ci/run leaves out: `bash tests/release.sh`. Needs the network, 2 cores, 16 GiB, and at most 90 minutes.
#
# Slow tests, with real data and a real Slurm; other projects' tests; a short soak; both ends of the supported range.
# They run in a new virtual environment, so that they see the declared dependencies and no others.
#
#   MIRRORKIT_DATA          a folder with mnist/ and cifar-10-batches-bin/; default: made from ../shared/data
#   MIRRORKIT_CIFAR_SHARDS  a folder with CIFAR-10 (JPEG) as TFRecord files
#   PYTHON                  the Python of the environment; default: python3
#
# The checkout must be a commit, without changes: at the end tests/release_result.py writes tests/release-result.json,
# which names it. Every part runs even when an earlier one failed; the exit code is 0 only when all of them passed.
source "$(dirname "${BASH_SOURCE[0]}")/../.ci/parts.sh"
result=tests/release-result.json
shopt -s nullglob
pythons=("${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3.1?) # beside those on the path

unchanged() { # unchanged COMMIT
    [ -n "$1" ] && git diff --stat --exit-code "$1" -- . ":!$result" && return
    echo "this checkout is not of one commit; commit first, or run in a worktree: git worktree add --detach FOLDER"
    return 1
}

real_data() { # MNIST as it is, CIFAR-10 decoded: where the data lies is never written to
    [ -n "${MIRRORKIT_DATA:-}" ] && [ -n "${MIRRORKIT_CIFAR_SHARDS:-}" ] && return
    local source
    source=$(cd ../shared/data && pwd) || return
    export MIRRORKIT_DATA="$work/data" MIRRORKIT_CIFAR_SHARDS="$source/cifar10-jpeg"
    mkdir "$work/data" && ln -s "$source/mnist" "$work/data/mnist" && python ../shared/data/make_cifar10.py "$work/data"
}

real_slurm() { # where nobody is root, Slurm's tests say so and skip
    if ! command -v slurmctld && [ "$(id -u)" -eq 0 ] && command -v apt-get; then
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends slurm-wlm munge
    fi
    command -v slurmctld
}

tests() { # tests NAME OPTION...
    part "$1" pytest --junitxml "$work/$1.xml" "${@:2}"
}

commit=$(git rev-parse HEAD)
part "a commit" unchanged "$commit" || exit 1
new_environment test
part "real data" real_data
part "real Slurm" real_slurm
tests "slow tests" -m "slow and not alone" -n 2 --dist loadfile --durations 15
# Those that measure time or have to hit a moment, each with the machine to itself.
tests "slow tests, one by one" -m "slow and alone"
part "foreign suites" python tests/foreign/run.py
part "soak" python tests/kills/soak.py --quick --lines "$work/soak.jsonl"
# A sample of the fast suite: CI runs all of it on the newest versions.
part "supported range" python tests/package/supported_range.py ${pythons:+--python "${pythons[@]}"} \
    --tests tests/strategy tests/optim tests/train/test_equivalence.py
part "the same commit" unchanged "$commit"
python tests/release_result.py "$commit" "$work/parts" "$result" || failed+=("result")
finish
